"""Weights on the device, by the names of a layer; and rotary tables."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from stretto.backends.matrices import Matrices, Rows
from stretto.backends.torch import matrix
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.layouts import LAYOUTS, TILE_ROWS, Packed
from stretto.backends.torch.matrix import Dense, Matrix, Part, is_widened, load_data, of_data
from stretto.backends.torch.matrix import weights as numbers_of
from stretto.backends.torch.rowwise import NormWeights
from stretto.errors import InvalidRequest, Unsupported
from stretto.models.parts import Norm, Rope
from stretto.models.spec import ModelSpec
from stretto.weights import formats
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF

# The matrices of all experts of a layer on the device, in one stack.

PACKED_WEIGHTS = 1 << 28  # repacked at a time: a byte each, and copies


@dataclass(frozen=True)
class Stack:
    """The matrices of all experts, of one shape and format: expert e has rows e × `stride` and following."""

    n_expert: int
    rows: int
    columns: int
    part: Part
    format: Format
    interleaved: bool = False
    widened: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        experts: Sequence[Sequence[Rows]],
        columns: int,
        device: Any,
        dtype: Any,
        *,
        interleave: bool = False,
    ) -> Stack:
        """The pieces of each expert, stacked along rows or interleaved, as `Matrix.load` has them."""
        found = {piece.format for pieces in experts for piece in pieces}
        if len(found) != 1:
            names = ", ".join(sorted(fmt.name for fmt in found))
            raise Unsupported(f"experts in several formats ({names}) run on the CPU: device='cpu'")
        fmt = found.pop()
        rows = sum(len(piece.data) for piece in experts[0])
        if any(sum(len(piece.data) for piece in pieces) != rows for pieces in experts):
            raise InvalidRequest("all experts must have the same number of rows", param="experts")
        parts = []
        each = max(1, PACKED_WEIGHTS // (rows * columns)) if rows % TILE_ROWS == 0 else 1
        for first in range(0, len(experts), each):
            some = experts[first : first + each]
            data = [load_data(pieces, device, dtype, interleave=interleave) for pieces in some]
            parts.append(of_data(torch.cat(data), fmt, columns, dtype))
        part = _stacked(parts)
        widened = {fmt.name: part.nbytes} if is_widened(fmt) else {}
        return cls(len(experts), rows, columns, part, fmt, interleave, widened)

    @property
    def stride(self) -> int:
        """Rows from one expert to the next: whole tiles of packed formats."""
        return -(-self.rows // TILE_ROWS) * TILE_ROWS if self.format in LAYOUTS else self.rows

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.part.nbytes

    def expert(self, e: int, dtype: Any) -> Tensor:
        """The numbers of expert e as they are multiplied with activations of a dtype, as float32."""
        first = e * self.stride
        if isinstance(self.part, Dense):
            return self.part.weight[first : first + self.rows].float()
        tiles = slice(first // TILE_ROWS, (first + self.stride) // TILE_ROWS)
        return matrix.unpack(self.part.tiles(tiles, self.rows)).to(dtype).float()


def _stacked(parts: Sequence[Part]) -> Part:
    first = parts[0]
    if isinstance(first, Dense):
        return Dense(torch.cat([part.weight for part in parts if isinstance(part, Dense)]))
    packed = [part for part in parts if isinstance(part, Packed)]

    def join(name: str) -> Tensor | None:
        tensors = [getattr(part, name) for part in packed]
        return None if tensors[0] is None else torch.cat(tensors)

    tiles = sum(int(part.quants.shape[0]) for part in packed)
    return Packed(
        first.format,
        tiles * TILE_ROWS,
        first.columns,
        first.part,
        *(join(name) for name in ("quants", "high", "scales", "minima", "supers")),
    )


class Weights:
    """The tensors of a file as the decoder wants them; loading one uploads it.

    `octets`: rows are rounded to 8 bits for products with packed ones, where kernels can.
    """

    def __init__(
        self,
        file: GGUF,
        spec: ModelSpec,
        device: torch.device,
        dtype: torch.dtype,
        n_positions: int,
        *,
        octets: bool = True,
    ) -> None:
        self._octets = octets
        self.file, self.spec, self.device, self.dtype = file, spec, device, dtype
        self.n_positions = min(n_positions, spec.context_length)
        self._matrices = Matrices(file, spec)
        self._shapes, self._slices = spec.tensors(), spec.slices()
        self._tables: dict[Rope, RopeTable] = {}
        self.nbytes = 0  # of all that was loaded
        self.widened: dict[str, int] = {}  # formats that are not multiplied packed: bytes on the device
        self.probe = torch.empty(0, device=device)

    def layer(self, i: int) -> LayerWeights:
        """The tensors of layer i."""
        return LayerWeights(self, f"blk.{i}.")

    @property
    def whole(self) -> LayerWeights:
        """The tensors that belong to no layer."""
        return LayerWeights(self, "")

    def has(self, name: str) -> bool:
        """Whether the spec has a tensor of that name, or it is a part of another one."""
        return name in self._shapes or name in self._slices

    def vector(self, name: str, n: int) -> Tensor:
        """float32[n]."""
        tensor, numbers = self._matrices.vector(name, n)
        self.file.forget(tensor)
        self.nbytes += numbers.nbytes
        return torch.from_numpy(np.array(numbers, np.float32)).to(self.device)

    def matrix(
        self,
        names: Mapping[str, int],
        columns: int,
        interleave: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Matrix:
        """Matrices of so many rows each, as one: below each other, or row by row."""
        pieces = [self._matrices.rows(name, rows) for name, rows in names.items()]
        matrix = Matrix.load(pieces, columns, self.device, dtype or self.dtype, interleave=interleave)
        for piece in pieces:
            if not piece.is_copy:
                self.file.forget(piece.tensor)
        self.count(matrix)
        matrix = replace(matrix, parts=tuple(map(self._multiplied, matrix.parts)))
        return matrix if uses_kernels(self.probe) else _widened(matrix)

    def stack(self, names: Sequence[str], n: int, rows: int, columns: int) -> Stack:
        """The matrices of n experts; two names are those of gates and of what they multiply, row by row."""
        pieces = [[self._matrices.rows(f"{name}.{e}", rows) for name in names] for e in range(n)]
        stack = Stack.load(pieces, columns, self.device, self.dtype, interleave=len(names) == 2)
        for tensor in {piece.tensor.name: piece.tensor for each in pieces for piece in each}.values():
            self.file.forget(tensor)
        self.count(stack)
        return replace(stack, part=self._multiplied(stack.part))

    def _multiplied(self, part: Part) -> Part:
        """The part with the rounding of rows that the precision asks for."""
        return replace(part, octets=self._octets) if isinstance(part, Packed) else part

    def count(self, loaded: Matrix | Stack) -> None:
        """Add what was loaded to the figures of formats and memory."""
        self.nbytes += loaded.nbytes
        for name, nbytes in loaded.widened.items():
            self.widened[name] = self.widened.get(name, 0) + nbytes

    def warn_of_widened(self) -> None:
        """Say which formats take more memory here than in the file."""
        if self.widened:
            sizes = ", ".join(f"{name} ({n / 1e6:,.1f} MB)" for name, n in sorted(self.widened.items()))
            number = 8 * self.dtype.itemsize
            warnings.warn(
                f"{self.file.path.name}: weights in {sizes} are widened to {number} bits on a GPU; formats "
                "that stay packed there: Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, MXFP4",
                UserWarning,
                stacklevel=2,
            )

    def heads(self, name: str, n: int, rows: int, columns: int) -> Tensor:
        """The matrices of n heads: dtype[n, rows, columns]."""
        found = [self._matrices.rows(f"{name}.{head}", rows) for head in range(n)]
        numbers = np.stack(
            [formats.dequantize(each.data, each.format).reshape(rows, columns) for each in found]
        )
        self.nbytes += numbers.size * self.dtype.itemsize
        return torch.from_numpy(numbers).to(self.device, self.dtype)

    def rope(self, rope: Rope) -> RopeTable:
        """The table of a rope, which layers share."""
        if rope not in self._tables:
            self._tables[rope] = RopeTable(rope, self.n_positions, self.device)
        return self._tables[rope]


def _widened(matrix: Matrix) -> Matrix:
    """The same numbers, not packed: without kernels they would be unpacked in every product."""
    parts = (
        part if isinstance(part, Dense) else Dense(numbers_of(part, matrix.dtype).to(matrix.dtype))
        for part in matrix.parts
    )
    return replace(matrix, parts=tuple(parts))


class LayerWeights:
    """The tensors of one layer, by their names without its prefix."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.weights, self.prefix = weights, prefix
        self.dtype, self.device = weights.dtype, weights.device

    def has(self, name: str) -> bool:
        """Whether the layer has a tensor of that name."""
        return self.weights.has(self.prefix + name)

    def vector(self, name: str, n: int) -> Tensor:
        """float32[n]."""
        return self.weights.vector(self.prefix + name, n)

    def matrix(
        self,
        names: Mapping[str, int],
        columns: int,
        interleave: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Matrix:
        """Matrices of so many rows each, as one."""
        named = {self.prefix + name: rows for name, rows in names.items()}
        return self.weights.matrix(named, columns, interleave, dtype)

    def stack(self, names: Sequence[str], n: int, rows: int, columns: int) -> Stack:
        """The matrices of n experts."""
        return self.weights.stack([self.prefix + name for name in names], n, rows, columns)

    def heads(self, name: str, n: int, rows: int, columns: int) -> Tensor:
        """The matrices of n heads: dtype[n, rows, columns]."""
        return self.weights.heads(self.prefix + name, n, rows, columns)

    def biases(self, names: Mapping[str, int]) -> Tensor | None:
        """float32[all rows]: the biases of those matrices, if they have any."""
        if not any(self.has(f"{name}.bias") for name in names):
            return None
        return torch.cat([self.vector(f"{name}.bias", rows) for name, rows in names.items()])

    def norm(self, norm: Norm | None, n: int) -> NormWeights | None:
        """A norm with weights of n numbers."""
        if norm is None:
            return None
        return NormWeights(
            norm,
            self.vector(norm.weight_name, n) if norm.weight else None,
            self.vector(f"{norm.name}.bias", n) if norm.bias else None,
        )


class RopeTable:
    """Cosines and sines of a rope at all positions: float32[n, pairs]."""

    def __init__(self, rope: Rope, n: int, device: torch.device) -> None:
        self.rope = rope
        self.pairs = len(rope.frequencies)
        self.cos, self.sin = (torch.empty(n, self.pairs, device=device) for _ in range(2))
        for first in range(0, n, 8192):  # float64 in pieces
            angles = np.arange(first, min(n, first + 8192))[:, None] * np.asarray(rope.frequencies)
            self.cos[first : first + 8192] = torch.from_numpy(
                (np.cos(angles) * rope.magnitude).astype(np.float32)
            )
            self.sin[first : first + 8192] = torch.from_numpy(
                (np.sin(angles) * rope.magnitude).astype(np.float32)
            )
        axes = rope.axes if rope.axes is not None else (0,) * self.pairs
        self.axes = torch.tensor(axes, dtype=torch.int32, device=device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rows [n, 1, pairs] at positions int32[n], or int32[n, 3] by axes."""
        if positions.ndim == 1:
            rows = positions.long()
            return self.cos[rows][:, None], self.sin[rows][:, None]
        rows = positions.long()[:, self.axes.long()]  # [n, pairs]
        return self.cos.gather(0, rows)[:, None], self.sin.gather(0, rows)[:, None]

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [n, heads, size], its pairs rotated."""
        return rotate(x, cos, sin, self.rope)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, rope: Rope) -> Tensor:
    """x [n, heads, size] float32, with cosines and sines [n, 1, pairs]."""
    first, second = rope.sides
    a, b = x[..., first], x[..., second]
    out = x.clone()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out
