"""Experts in MXFP4: blocks of 32 numbers of four bits with one exponent, as they are or in llama.cpp's order.

A folder has two neighbours in a byte, the first in its lower half; a GGUF file has number i in the lower and
number i + 16 in the upper half of byte i, behind the exponent.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.weights.formats import Format
from stretto.weights.made_tensor import Kept
from stretto.weights.safetensors_file import Stored
from stretto.weights.tensor import Tensor

HALF = 16  # bytes of a block


class MXFP4Tensor(Tensor):
    """Matrices of experts, made when their data is read; `rows` are those that are taken of each."""

    _blocks: Stored
    _scales: Stored
    _rows: slice
    _kept: Kept

    def __init__(
        self, name: str, blocks: Stored, scales: Stored, rows: slice, kept: Kept, path: Path
    ) -> None:
        if (
            blocks.shape != (*scales.shape, HALF)
            or len(blocks.shape) != 4
            or {blocks.type, scales.type} != {"U8"}
        ):
            raise ModelError(
                f"blocks of {blocks.type}{list(blocks.shape)} do not fit scales of {list(scales.shape)}",
                path=path,
                field=f"tensor {blocks.name!r}",
            )
        experts, height, groups = scales.shape
        put = object.__setattr__  # the class is frozen
        put(self, "name", name)
        put(self, "shape", (experts, len(range(height)[rows]), groups * Format.MXFP4.block))
        put(self, "format", Format.MXFP4)
        put(self, "offset", 0)
        put(self, "_blocks", blocks)
        put(self, "_scales", scales)
        put(self, "_rows", rows)
        put(self, "_kept", kept)

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8[experts, rows, bytes of a row], made now unless it was the last to be read."""
        return self._kept.get(self.name, self._make)

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return prod(self.shape) // Format.MXFP4.block * Format.MXFP4.size

    def _make(self) -> NDArray[np.uint8]:
        blocks = self._blocks.data.reshape(self._blocks.shape)[:, self._rows]
        scales = self._scales.data.reshape(self._scales.shape)[:, self._rows]
        numbers = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 2 * HALF)
        made = np.empty((*scales.shape, Format.MXFP4.size), np.uint8)
        made[..., 0] = scales
        made[..., 1:] = numbers[..., :HALF] | numbers[..., HALF:] << 4
        return made.reshape(*self.shape[:2], -1)
