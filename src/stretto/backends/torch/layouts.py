"""Packed weights as the device stores them, repacked from the file's blocks.

A tile is 16 rows by one step of 64 columns (32 with 8 bits); K is cut into `PARTS` parts, whose products are
summed in order. Within a tile the numbers stand as a tensor core's first operand wants them: lane l of 32
has rows l // 4 and l // 4 + 8, columns 2 × (l % 4) and the next, and those 8 further, of each 16 columns. So
one load of 16 bytes gives a thread what it multiplies, and no number moves between threads. The order of a
lane's numbers is: 32 columns, row + 8, next column, 16 columns, 8 further; a word of 4-bit numbers has one
scale, and the two columns of a pair stand 16 bits apart in it.

    quants  int32[tiles, steps, PARTS, 32 lanes, 4 words]
    high    int32[tiles, steps, PARTS, 32 lanes, 1 or 2]     the bits above the fourth of Q5_K and Q6_K
    scales  16 bits[tiles, steps, PARTS, 8 rows, 4]          32 columns, row + 8 (each twice with 8 bits)
    minima  as scales: those of Q4_1
    supers  float16[tiles, spans of 256, PARTS, 8 rows, 4]   row + 8, (d, dmin) of formats in blocks of 256

Scales are float16; of MXFP4 exponents; of Q4_K and Q5_K bytes, a scale and a minimum; of Q6_K bytes, those of
two groups of 16 columns, 128 more than they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.backends.torch.device import Tensor
from stretto.weights.formats import Format

# The blocks of packed formats, as files have them, read by torch on the device.
#
# A reader takes uint8[rows, blocks, bytes of a block] and gives numbers uint8[rows, columns]; what 32
# columns have as their scale, in 16 bits; their minima (Q4_1); and d and dmin of formats in blocks of 256.


def _half(blocks: Tensor, at: int) -> Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0]


def _nibbles(x: Tensor) -> Tensor:
    """uint8[..., n] → [..., 2n]: all low nibbles, then all high ones."""
    return torch.cat((x & 15, x >> 4), -1)


def _read_q4(blocks: Tensor) -> Any:
    return _nibbles(blocks[..., 2:]).flatten(1), _half(blocks, 0), None, None


def _read_q4_1(blocks: Tensor) -> Any:
    return _nibbles(blocks[..., 4:]).flatten(1), _half(blocks, 0), _half(blocks, 2), None


def _read_q8(blocks: Tensor) -> Any:
    return (blocks[..., 2:] ^ 128).flatten(1), _half(blocks, 0), None, None


def _read_mxfp4(blocks: Tensor) -> Any:
    return _nibbles(blocks[..., 1:]).flatten(1), blocks[..., 0].short(), None, None


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """uint8[..., 12] → scales and minima uint8[..., 8] of Q4_K and Q5_K."""
    a, b, c = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = torch.cat((a & 63, (c & 15) | (a >> 6) << 4), -1)
    minima = torch.cat((b & 63, (c >> 4) | (b >> 6) << 4), -1)
    return scales, minima


def _read_q4_k(blocks: Tensor, at: int = 16) -> Any:
    scales, minima = _six_bits(blocks[..., 4:16])
    numbers = _nibbles(blocks[..., at:].unflatten(-1, (4, 32))).flatten(1)
    both = scales.short() | minima.short() << 8
    return numbers, both.flatten(1), None, (_half(blocks, 0), _half(blocks, 2))


def _read_q5_k(blocks: Tensor) -> Any:
    numbers, *others = _read_q4_k(blocks, 48)
    bits = torch.stack([blocks[..., 16:48] >> i & 1 for i in range(8)], -2)
    return (numbers | bits.flatten(1) << 4, *others)


def _read_q6_k(blocks: Tensor) -> Any:
    low = _nibbles(blocks[..., :128].unflatten(-1, (2, 64))).flatten(1)
    quarters = blocks[..., 128:192].unflatten(-1, (2, 32))
    high = torch.stack([quarters >> 2 * i & 3 for i in range(4)], -2).flatten(1)
    scales = (blocks[..., 192:208] ^ 128).contiguous()  # from 0 to 255 for −128 to 127
    d = _half(blocks, 208)
    return low | high << 4, scales.view(torch.int16).flatten(1), None, (d, d)


READERS = {
    Format.Q4_0: _read_q4,
    Format.Q4_1: _read_q4_1,
    Format.Q8_0: _read_q8,
    Format.MXFP4: _read_mxfp4,
    Format.Q4_K: _read_q4_k,
    Format.Q5_K: _read_q5_k,
    Format.Q6_K: _read_q6_k,
}


PARTS = 4
TILE_ROWS = 16


@dataclass(frozen=True)
class Layout:
    """How a format is packed: bits of a number in `quants` and in `high`, columns of a step."""

    code: int  # of the kernels
    low: int
    high: int
    step: int
    zero: int  # subtracted from each number

    @property
    def span(self) -> int:
        """Columns of a part come in multiples of it."""
        return 256 if self.code >= 4 else self.step


LAYOUTS = {
    Format.Q8_0: Layout(0, 8, 0, 32, 128),
    Format.Q4_0: Layout(1, 4, 0, 64, 8),
    Format.Q4_1: Layout(2, 4, 0, 64, 0),
    Format.MXFP4: Layout(3, 4, 0, 64, 0),
    Format.Q4_K: Layout(4, 4, 0, 64, 0),
    Format.Q5_K: Layout(5, 4, 1, 64, 0),
    Format.Q6_K: Layout(6, 4, 2, 64, 32),
}


@dataclass(frozen=True)
class Packed:
    """Rows of a packed format on the device."""

    format: Format
    rows: int
    columns: int
    part: int  # columns of a part, padding included
    quants: Tensor
    high: Tensor | None
    scales: Tensor
    minima: Tensor | None
    supers: Tensor | None
    octets: bool = field(
        default=True, kw_only=True
    )  # whether bfloat16 rows are rounded to 8 bits to multiply them, where kernels can

    @property
    def layout(self) -> Layout:
        """How the format is packed."""
        return LAYOUTS[self.format]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All there is on the device."""
        kept = self.quants, self.high, self.scales, self.minima, self.supers
        return tuple(t for t in kept if t is not None)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(int(t.nbytes) for t in self.tensors)

    def tiles(self, at: slice, rows: int) -> Packed:
        """Some tiles, of which so many rows are meant."""
        kept = self.quants, self.high, self.scales, self.minima, self.supers
        cut = [None if t is None else t[at] for t in kept]
        return Packed(self.format, rows, self.columns, self.part, *cut, octets=self.octets)


def part_columns(fmt: Format, columns: int) -> int:
    """Columns of each part of K, padding included."""
    span = LAYOUTS[fmt].span
    return -(-columns // (PARTS * span)) * span


def pack(data: Tensor, fmt: Format, columns: int) -> Packed:
    """The file's bytes uint8[rows, bytes of a row], on the device, repacked."""
    layout = LAYOUTS[fmt]
    blocks = data.reshape(len(data), columns // fmt.block, fmt.size)
    numbers, scales, minima, supers = READERS[fmt](blocks)
    part = part_columns(fmt, columns)
    numbers = _lanes(numbers, part, layout)
    high = None
    if layout.high:
        high = _words(numbers >> 4, layout.high)
        numbers = numbers & 15
    return Packed(
        fmt,
        len(data),
        columns,
        part,
        _words(numbers, layout.low),
        high,
        _of_rows(scales, part, layout.step, 32),
        None if minima is None else _of_rows(minima, part, layout.step, 32),
        None
        if supers is None
        else torch.stack([_of_rows(x, part, 256, 256) for x in supers], -1).flatten(-2),
    )


def _pad(x: Tensor, rows: int, columns: int) -> Tensor:
    if x.shape == (rows, columns):
        return x
    padded = x.new_zeros(rows, columns)
    padded[: x.shape[0], : x.shape[1]] = x
    return padded


def _lanes(numbers: Tensor, part: int, layout: Layout) -> Tensor:
    """uint8[rows, columns] → [tiles, steps, PARTS, 32 lanes, step / 2], in the order of the words."""
    tiles = -(-len(numbers) // TILE_ROWS)
    x = _pad(numbers, tiles * TILE_ROWS, PARTS * part)
    x = x.reshape(tiles, 2, 8, PARTS, part // layout.step, layout.step // 32, 2, 2, 4, 2)
    x = x.permute(0, 4, 3, 2, 8, 5, 1, 9, 6, 7)
    return x.reshape(tiles, part // layout.step, PARTS, 32, layout.step // 2)


def _words(numbers: Tensor, bits: int) -> Tensor:
    """Numbers of so many bits along the last axis, packed in words of 32, the first one lowest."""
    each = 8 // bits
    octets = numbers if each == 1 else torch.zeros_like(numbers[..., ::each])
    for i in range(each if each > 1 else 0):
        octets |= numbers[..., i::each] << (bits * i)
    return octets.contiguous().view(torch.int32)


def _of_rows(x: Tensor, part: int, step: int, group: int) -> Tensor:
    """A number for each row and group of columns → [tiles, steps, PARTS, 8, groups of a step × 2]."""
    tiles = -(-len(x) // TILE_ROWS)
    x = _pad(x, tiles * TILE_ROWS, PARTS * part // group)
    x = x.reshape(tiles, 2, 8, PARTS, part // step, step // group)
    x = x.permute(0, 4, 3, 2, 5, 1).reshape(tiles, part // step, PARTS, 8, -1)
    return x.repeat_interleave(2, -1) if step == 32 else x.contiguous()
