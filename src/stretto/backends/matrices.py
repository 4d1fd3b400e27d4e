"""Where the matrices of the native decoder are in a file.

The decoder wants one matrix for each expert and each head ("blk.0.ffn_up_exps.3"); a file has them in one
tensor, or several kinds of them in one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.models.mixers import Latent
from stretto.models.parts import Slice
from stretto.models.spec import ModelSpec
from stretto.weights import formats
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF, Tensor

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """The rows of a matrix: uint8[rows, bytes of a row], a view into the file unless it is a copy."""

    tensor: Tensor
    format: Format
    data: Bytes
    first: int = 0  # of the tensor's rows
    is_copy: bool = False


class Matrices:
    """The matrices and vectors of a spec in a file, by the decoder's names."""

    def __init__(self, file: GGUF, spec: ModelSpec) -> None:
        self._tensors = file.tensors
        self._slices = spec.slices()
        self._fused = {
            f"blk.{i}": layer.mixer
            for i, layer in enumerate(spec.layers)
            if isinstance(layer.mixer, Latent) and layer.mixer.fused
        }

    def vector(self, name: str, n: int) -> tuple[Tensor, Floats]:
        """The n numbers of a tensor or of a part of it."""
        at = self._slices.get(name, Slice(name, 0, n))
        tensor = self._tensors[at.tensor]
        numbers = tensor.dequantize().reshape(-1)[at.first : at.first + n]
        return tensor, np.ascontiguousarray(numbers)

    def rows(self, name: str, rows: int) -> Rows:
        """The rows of a matrix; the last part of its name may be the number of an expert or a head."""
        whole, _, last = name.rpartition(".")
        number = int(last) if last.isdecimal() else 0
        whole = whole if last.isdecimal() else name
        layer, _, kind = whole.rpartition(".")
        if layer in self._fused and kind in ("attn_k_b", "attn_v_b"):
            return self._of_fused(self._fused[layer], f"{layer}.attn_kv_b.weight", kind, number)
        if (
            last.isdecimal()
            and f"{whole}.weight" not in self._slices
            and f"{whole}.weight" not in self._tensors
        ):
            apart = f"{whole.removesuffix('_exps')}.{last}.weight"  # a tensor for each expert, as in 2023
            return _rows_of(self._tensors[apart], 0, rows)
        at = self._slices.get(f"{whole}.weight", Slice(f"{whole}.weight", 0, rows))
        tensor = self._tensors[at.tensor]
        each = tensor.shape[1] if at.experts else rows
        return _rows_of(tensor, number * each + at.first, rows)

    def _of_fused(self, mixer: Latent, name: str, kind: str, head: int) -> Rows:
        """A head's matrix of K or V, of files that have both in one tensor.

        V's rows are rows of the file. K is wanted the other way round, which no quantised format can be: it
        is stored as half floats, whose rounding is far below that of the activations.
        """
        tensor, first = self._tensors[name], head * (mixer.nope_size + mixer.value_size)
        if kind == "attn_v_b":
            return _rows_of(tensor, first + mixer.nope_size, mixer.value_size)
        numbers = formats.dequantize(_rows_of(tensor, first, mixer.nope_size).data, tensor.format)
        exact = tensor.format is Format.F32
        turned = np.ascontiguousarray(numbers.T, np.float32 if exact else np.float16)
        return Rows(tensor, Format.F32 if exact else Format.F16, turned.view(np.uint8), is_copy=True)


def _rows_of(tensor: Tensor, first: int, rows: int) -> Rows:
    data = tensor.data.reshape(-1, tensor.format.row_bytes(tensor.shape[-1]))
    return Rows(tensor, tensor.format, data[first : first + rows], first)
