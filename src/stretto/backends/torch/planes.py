"""K or V of all cells of a layer as the device holds them, and how rows are written there.

A plane is a tensor [n_cells, heads, size] of float32, float16, bfloat16 or float8_e4m3fn, or `Q8`. The
numbers are those of the native backend in the same order, so the bytes of saved cells are exchangeable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stretto.backends.torch.device import Tensor
from stretto.errors import wrong_value

BLOCK = 32  # numbers that share a scale
KINDS = ("f16", "bf16", "f32", "fp8", "q8")


@dataclass(frozen=True)
class Q8:
    """A plane of 8-bit numbers, each 32 of a head with a scale: the native backend's blocks, taken apart."""

    numbers: Tensor  # int8[n_cells, heads, size]
    scales: Tensor  # float16[n_cells, heads, ⌈size / 32⌉]

    def __getitem__(self, index: Any) -> Q8:
        """Some of the cells; or the first numbers of each head: `plane[..., :size]`, in whole blocks."""
        if isinstance(index, tuple) and len(index) == 2 and index[0] is Ellipsis:
            return Q8(self.numbers[index], self.scales[..., : -(-index[1].stop // BLOCK)])
        return Q8(self.numbers[index], self.scales[index])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Cells, heads and their size."""
        n, heads, size = self.numbers.shape
        return n, heads, size

    @property
    def nbytes(self) -> int:
        """Its bytes on the device."""
        return int(self.numbers.nbytes + self.scales.nbytes)


Plane = Any  # Tensor | Q8


def new_plane(kind: str, n_cells: int, heads: int, size: int, device: Any) -> Plane:
    """A plane of zeros; `kind` is one of `KINDS`."""
    import torch

    shape = n_cells, heads, size
    if kind == "q8":
        scales = torch.zeros(n_cells, heads, -(-size // BLOCK), dtype=torch.float16, device=device)
        return Q8(torch.zeros(shape, dtype=torch.int8, device=device), scales)
    types = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "fp8": torch.float8_e4m3fn}
    if kind not in types:
        raise wrong_value("kv", kind, f"one of {', '.join(KINDS)}")
    return torch.zeros(shape, dtype=types[kind], device=device)


def operand(plane: Plane) -> Any:
    """The type that queries and widened K and V have in products: that of the plane, or float16."""
    import torch

    if isinstance(plane, Q8) or plane.dtype == torch.float8_e4m3fn:
        return torch.float16
    return plane.dtype


def write(x: Tensor, plane: Plane, cells: Tensor) -> None:
    """Write rows [n, heads, size] to cells int32[n]."""
    import torch

    at = cells.long()
    if isinstance(plane, Q8):
        rows = quantize(x)
        plane.numbers[at], plane.scales[at] = rows.numbers, rows.scales
    elif plane.dtype == torch.float8_e4m3fn:
        top = torch.finfo(plane.dtype).max  # beyond it the format has no number
        plane.view(torch.uint8)[at] = x.float().clamp(-top, top).to(plane.dtype).view(torch.uint8)
    else:
        plane[at] = x.to(plane.dtype)


def read(plane: Plane, cells: Tensor) -> Tensor:
    """The rows of cells int32[n] in the type of products: [n, heads, size]."""
    import torch

    at = cells.long()
    if isinstance(plane, Q8):
        wide = plane.scales[at].repeat_interleave(BLOCK, dim=2)[..., : plane.shape[2]]
        return plane.numbers[at].to(torch.float16) * wide
    if plane.dtype == torch.float8_e4m3fn:
        return plane.view(torch.uint8)[at].view(plane.dtype).to(torch.float16)
    return plane[at]


def quantize(x: Tensor) -> Q8:
    """Rows [n, heads, size] as 8-bit numbers, with the rounding of the native backend."""
    import torch

    n, heads, size = x.shape
    blocks = -(-size // BLOCK)
    wide = torch.nn.functional.pad(x.float(), (0, blocks * BLOCK - size)).view(n, heads, blocks, BLOCK)
    scales = (wide.abs().amax(3) / 127).to(torch.float16)
    inverse = torch.where(scales > 0, 1 / scales.float(), 0.0)
    numbers = (wide * inverse[..., None]).clamp(-127, 127).round().to(torch.int8)
    return Q8(numbers.view(n, heads, -1)[..., :size], scales)


def to_bytes(plane: Plane) -> Tensor:
    """uint8[n, heads, bytes of a head]: rows in the layout of saved cells."""
    import torch

    if not isinstance(plane, Q8):
        return plane.contiguous().view(torch.uint8)
    n, heads, size = plane.shape
    blocks = plane.scales.shape[2]
    padded = torch.nn.functional.pad(plane.numbers, (0, blocks * BLOCK - size)).view(n, heads, blocks, BLOCK)
    scales = plane.scales.contiguous().view(torch.int8).view(n, heads, blocks, 2)
    return torch.cat((scales, padded), 3).reshape(n, heads, -1).view(torch.uint8)


def from_bytes(data: Tensor, like: Plane) -> Plane:
    """Rows of saved cells, uint8[n, heads, bytes of a head], as rows of a plane of the same kind."""
    import torch

    if not isinstance(like, Q8):
        return data.contiguous().view(like.dtype)
    n, heads, _ = data.shape
    blocks = data.contiguous().view(torch.int8).view(n, heads, -1, BLOCK + 2)
    scales = blocks[..., :2].contiguous().view(torch.float16)[..., 0]
    return Q8(blocks[..., 2:].reshape(n, heads, -1)[..., : like.shape[2]].contiguous(), scales)


def is_plain(plane: Plane) -> bool:
    """Whether rows are written there as they are, in another type at most."""
    import torch

    return not isinstance(plane, Q8) and plane.dtype != torch.float8_e4m3fn


def tensors(plane: Plane) -> tuple[Tensor, ...]:
    """The tensors a plane is made of, cell by cell; of 8-bit floats as bytes, which can be indexed."""
    import torch

    if isinstance(plane, Q8):
        return plane.numbers, plane.scales
    return (plane if is_plain(plane) else plane.view(torch.uint8),)


def select(plane: Plane, cells: Tensor) -> Plane:
    """Rows of a plane, as a plane."""
    parts = [part[cells] for part in tensors(plane)]
    return Q8(*parts) if isinstance(plane, Q8) else parts[0].view(plane.dtype)
