"""The blocks of packed formats, as files have them, read by torch on the device.

A reader takes uint8[rows, blocks, bytes of a block] and gives numbers uint8[rows, columns]; what 32 columns
have as their scale, in 16 bits; their minima (Q4_1); and d and dmin of formats in blocks of 256.
"""

from __future__ import annotations

from typing import Any

import torch

from stretto.backends.torch.device import Tensor
from stretto.weights.formats import Format


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
