"""What runs an encoder, a piece at a time, so that others need not wait for all of it.

x = encoder.embed(patches)              # float32[n, positions, n_embd]: n images or tiles together
for i in range(spec.n_layer):
    for _ in encoder.block(i, x, rows): # in place; stop wherever you like, and go on later
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

ROWS = 1024  # of a piece, where nobody waits


class Encoder(Protocol):
    """A ViT and its projector. What it gives for an image does not depend on company or on pieces."""

    name: str  # what tells its results, to the last bit, from those of other encoders of the same file
    spec: VisionSpec

    def embed(self, patches: Floats) -> Floats:
        """float32[n, n_patches, patch_numbers] → [n, n_positions, n_embd]: what the first block takes."""
        ...

    def block(self, index: int, x: Floats, rows: Callable[[], int]) -> Iterator[None]:
        """One block over all positions of each image, in place, in pieces of about `rows()` rows."""
        ...

    def project(self, x: Floats) -> Floats:
        """[n, n_positions, n_embd] → [n, n_tokens, n_out]: the last norm and the projector."""
        ...

    def close(self) -> None:
        """Free everything; the encoder is not used again."""
        ...


def encode(encoder: Encoder, patches: Floats) -> Floats:
    """All of it at once: float32[n, n_tokens, n_out]."""
    x = encoder.embed(patches)
    for index in range(encoder.spec.n_layer):
        for _ in encoder.block(index, x, lambda: ROWS):
            pass
    return encoder.project(x)


def merged(x: Floats, spec: VisionSpec) -> Floats:
    """[n, n_patches, n_embd] → [n, n_tokens, merge², n_embd]: the patches of each square, row by row."""
    side, merge = spec.n_side // spec.merge, spec.merge
    squares = x.reshape(len(x), side, merge, side, merge, spec.n_embd)
    return squares.transpose(0, 1, 3, 2, 4, 5).reshape(len(x), side * side, merge * merge, spec.n_embd)
