"""The interface of image encoders: blocks run in slices, so that decode steps can run in between.

x = encoder.embed(patches, grid)          # float32[n, positions, n_embd]: n images or tiles of one size
for i in range(spec.n_layer):
    for _ in encoder.block(i, x, grid, rows):  # in place; can be paused between any two slices
        ...
    if i in spec.deepstack:
        taps.append(deepstack(encoder, i, x, grid))
vectors = encoder.project(x, grid, taps)  # float32[n, tokens, n_vector]

What lies between patches and vectors may be on a GPU: arrays that only the encoder computes with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.vision.families import FAMILIES
from stretto.vision.families.base import Operations
from stretto.vision.families.qwen3vl import deepstack
from stretto.vision.spec import Grid, VisionSpec

Floats = NDArray[np.float32]

SLICE_ROWS = 1024  # of a slice, while no other request runs


class Encoder(Operations, Protocol):
    """A ViT and its projector. An image's vectors do not depend on the batch or on the slices."""

    name: str  # identifies its results, to the last bit, among encoders of the same file
    spec: VisionSpec

    def embed(self, patches: Floats, grid: Grid) -> Floats:
        """float32[n, patches, patch_numbers] → [n, positions, n_embd]: the first block's input."""
        ...

    def join(self, parts: Sequence[Floats]) -> Floats:
        """Images or tiles that were embedded apart, as one batch."""
        ...

    def block(self, index: int, x: Floats, grid: Grid, rows: Callable[[], int]) -> Iterator[None]:
        """One block over all positions of each image, in place, in slices of about `rows()` rows."""
        ...

    def project(self, x: Floats, grid: Grid, taps: Sequence[Floats] = ()) -> Floats:
        """[n, positions, n_embd] → [n, tokens, n_vector]: the last norm, the projector, and `taps`."""
        ...

    def close(self) -> None:
        """Free everything; the encoder is not used again."""
        ...


def encode(encoder: Encoder, patches: Floats, grid: Grid | None = None) -> Floats:
    """Encode in one call: float32[n, tokens, n_vector]. The grid is that of `image_size` if none is given."""
    spec = encoder.spec
    grid = grid or spec.grid
    x, taps = encoder.embed(patches, grid), []
    for index in range(spec.n_layer):
        for _ in encoder.block(index, x, grid, lambda: SLICE_ROWS):
            pass
        if index in spec.deepstack:
            taps.append(deepstack(encoder, index, x, grid))
    return encoder.project(x, grid, taps)


def projected(encoder: Encoder, x: Floats, grid: Grid, taps: Sequence[Floats]) -> Floats:
    """What `project` does, with an encoder's operations."""
    spec = encoder.spec
    if spec.post_norm:
        x = encoder.norm(x, "v.post_ln")
    if spec.class_token:
        x = np.ascontiguousarray(x[:, 1:])
    vectors = FAMILIES[spec.projector].project(encoder, x, grid)
    return np.concatenate((vectors, *taps), axis=-1) if taps else vectors
