"""The interface of image encoders: blocks run in slices, so that decode steps can run in between.

x = encoder.embed(patches)              # float32[n, positions, n_embd]: n images or tiles together
for i in range(spec.n_layer):
    for _ in encoder.block(i, x, rows): # in place; can be paused between any two slices
        ...
vectors = encoder.project(x)            # float32[n, n_tokens, n_out]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.vision.spec import VisionSpec

Floats = NDArray[np.float32]

SLICE_ROWS = 1024  # of a slice, while no other request runs


class Encoder(Protocol):
    """A ViT and its projector. An image's vectors do not depend on the batch or on the slices."""

    name: str  # identifies its results, to the last bit, among encoders of the same file
    spec: VisionSpec

    def embed(self, patches: Floats) -> Floats:
        """float32[n, n_patches, patch_numbers] → [n, n_positions, n_embd]: the first block's input."""
        ...

    def block(self, index: int, x: Floats, rows: Callable[[], int]) -> Iterator[None]:
        """One block over all positions of each image, in place, in slices of about `rows()` rows."""
        ...

    def project(self, x: Floats) -> Floats:
        """[n, n_positions, n_embd] → [n, n_tokens, n_out]: the last norm and the projector."""
        ...

    def close(self) -> None:
        """Free everything; the encoder is not used again."""
        ...


def encode(encoder: Encoder, patches: Floats) -> Floats:
    """Encode in one call: float32[n, n_tokens, n_out]."""
    x = encoder.embed(patches)
    for index in range(encoder.spec.n_layer):
        for _ in encoder.block(index, x, lambda: SLICE_ROWS):
            pass
    return encoder.project(x)


def merged(x: Floats, spec: VisionSpec) -> Floats:
    """[n, n_patches, n_embd] → [n, n_tokens, merge², n_embd]: the patches of each square, row by row."""
    side, merge = spec.n_side // spec.merge, spec.merge
    squares = x.reshape(len(x), side, merge, side, merge, spec.n_embd)
    return squares.transpose(0, 1, 3, 2, 4, 5).reshape(len(x), side * side, merge * merge, spec.n_embd)
