"""Rows in 8 bits times packed weights: whole numbers multiplied by tensor cores, whatever the number of rows.

    rows = round_rows(x, part)                     # 8 bits for each 32 columns, 256 of blocks of 256
    multiply(x, part, out, bias, act, gated)       # out = x wᵀ

Sums within a group of columns are exact whole numbers; groups are added in one order (kernels/octets.cuh).
"""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_long, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from stretto.backends.torch import cuda
from stretto.backends.torch.cuda import TYPES, address, load, tensor_addresses
from stretto.backends.torch.device import Tensor, multiprocessors
from stretto.backends.torch.layouts import PARTS, TILE_ROWS, Packed

FEW_ROWS = 32  # by few_octets.cu
PLACES = 8  # rows are rounded into multiples of it
ROUNDED_BY_BLOCKS = 2  # rows of x, up to which each block rounds them itself,
ROUNDED_BYTES = 64 << 10  # if they take no more
READY = 3  # X of few_octets.cu: rows have been rounded
SUPER_CODE = 4  # of layouts: formats in blocks of 256 from here on
LEAST_SHARED_BYTES = 99 << 10  # of a block, that every GPU has
EXPERTS_TILE = 8, 2, 2  # warps, stages, blocks of a multiprocessor
NARROW, LONG = 5120, 8192  # rows of a matrix, and columns
COUNTERS = 1 << 16  # blocks of sums that are split


def multiplies(x: Tensor, part: Packed) -> bool:
    """Whether rows are rounded to 8 bits for products with a part."""
    return bool(x.is_cuda) and x.dtype == torch.bfloat16 and part.octets and cuda.is_available()


class _Pointers(Structure):
    _fields_ = (("numbers", c_void_p), ("scales", c_void_p), ("sums", c_void_p))


@dataclass(frozen=True)
class Rounded:
    """Rows in 8 bits, as products with packed parts of one kind want them."""

    places: int  # for rows
    numbers: Tensor  # int8[groups, places, 32]
    scales: Tensor  # float32[groups or spans, places]
    sums: Tensor | None

    @property
    def pointers(self) -> _Pointers:
        """As kernels take it."""
        return _Pointers(address(self.numbers), address(self.scales), address(self.sums))


@dataclass(frozen=True)
class Chosen:
    """Pairs of rows and experts, for products that choose a matrix for each block of rows."""

    rows: int  # of an expert's matrix
    experts: Tensor  # int32[blocks], below 0: none
    pairs: Tensor | None  # int32[blocks, size], below 0: none; without them each pair is a block
    each: int  # pairs that share a row of x


def list_constants(part: Packed) -> dict[str, int]:
    """The constants that all kernels for a part share."""
    slices, batch, resident = cuda.best_shape(part)
    steps = part.part // part.layout.step
    return {
        "FORMAT": part.layout.code, "K": part.columns, "N": part.rows, "STEPS": steps, "SLICES": slices,
        "U": batch, "RESIDENT": resident, "AHEAD": 1,
    }  # fmt: skip


def _extents(part: Packed) -> tuple[int, int, int]:
    """Groups of 32 columns, scales, and bytes of sums for each scale."""
    groups = PARTS * part.part // 32
    code = part.layout.code
    scales = groups // 8 if code >= SUPER_CODE else groups
    return groups, scales, 32 if code in (4, 5) else 4 if code == 2 else 0


def round_rows(x: Tensor, part: Packed) -> Rounded:
    """Rows [n, columns] in 8 bits, for products with a part."""
    x, n = x.contiguous(), len(x)
    places = _power(n) if n <= FEW_ROWS else n
    places = -(-places // PLACES) * PLACES
    groups, scales, sum_bytes = _extents(part)
    sizes = [places * 32 * groups, places * scales * 4, places * scales * sum_bytes]
    numbers, by, sums = torch.empty(sum(sizes), dtype=torch.uint8, device=x.device).split(sizes)
    found = Rounded(places, numbers, by, sums if sum_bytes else None)
    constants = {**list_constants(part), "N": TILE_ROWS, "OUT": 0, "BIAS": 0, "ACT": 0, "X": TYPES[x.dtype]}
    kernel = load("octets.cu", "octets", constants, x.device)
    arguments = c_void_p(address(x)), found.pointers, c_int(n), c_int(places)
    kernel.launch(-(-n * -(-groups // 8) // 4), 128, 0, arguments)
    return found


def multiply(
    x: Tensor,
    part: Packed,
    out: Tensor,
    bias: Tensor | None,
    act: int,
    gated: bool,
    *,
    rounded: Rounded | None = None,
) -> None:
    """Write the product of rows [n, columns] with a part into `out`."""
    x = x.contiguous()
    if len(x) <= FEW_ROWS:
        few(x, part, out, bias, act, gated, rounded=rounded)
    else:
        many(rounded or round_rows(x, part), part, out, bias, act, gated)


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def shared_bytes(part: Packed, rows: int) -> int:
    """What few_octets.cu has of x in shared memory."""
    groups, scales, sum_bytes = _extents(part)
    return rows * groups * 32 + -(-scales * rows * 4 // 16) * 16 + scales * rows * sum_bytes


def few(
    x: Tensor,
    part: Packed,
    out: Tensor,
    bias: Tensor | None,
    act: int,
    gated: bool,
    *,
    chosen: Chosen | None = None,
    clamp: tuple[float, float] = (0.0, 0.0),
    rounded: Rounded | None = None,
) -> None:
    """`multiply` for up to 32 rows, or for pairs of rows and experts, each by itself."""
    n = len(out) if chosen else len(x)
    by_blocks = n <= ROUNDED_BY_BLOCKS and shared_bytes(part, n) <= ROUNDED_BYTES
    if rounded is None and not chosen and not by_blocks:
        rounded = round_rows(x, part)
    rows = rounded.places if rounded else 1 if chosen else _power(n)
    n_rows = chosen.rows if chosen else part.rows
    constants = {
        **list_constants(part), "N": n_rows, "X": READY if rounded else TYPES[x.dtype], "ROWS": rows,
        "OUT": TYPES[out.dtype], "BIAS": int(bias is not None), "GATED": int(gated), "ACT": act,
        "EXPERTS": int(chosen is not None),
    }  # fmt: skip
    kernel = load("few_octets.cu", "few_octets", constants, x.device)
    arguments = (
        c_void_p(address(x)), rounded.pointers if rounded else _Pointers(), c_int(n), tensor_addresses(part),
        c_void_p(address(bias)), c_void_p(address(out)), c_long(out.stride(0)),
        c_void_p(address(chosen.experts if chosen else None)), c_int(chosen.each if chosen else 1),
        c_float(clamp[0]), c_float(clamp[1]),
    )  # fmt: skip
    tiles, resident = -(-n_rows // TILE_ROWS), constants["RESIDENT"] * multiprocessors(x.device)
    blocks = min(tiles, max(1, resident // n)) * n if chosen else min(tiles, resident)
    threads = 32 * PARTS * constants["SLICES"]
    kernel.launch(blocks, threads, 0 if rounded else shared_bytes(part, rows), arguments)


Tile = tuple[int, int, int, int]  # rows, warps, stages, blocks of a multiprocessor


def choose_tile(rows: int, part: Packed, device: Any) -> Tile:
    """How many_octets.cu cuts so many rows, as measured on an H200."""
    if rows > 64 or part.rows > NARROW:
        return 64, 4, 2, 3
    tile = 64, 8, 3, 1
    fits = block_bytes(part, tile) <= shared_limit(device)
    return tile if part.columns > LONG and fits else (32, 8, 2, 2)


@lru_cache(maxsize=8)
def shared_limit(device: Any) -> int:
    """Bytes of shared memory that a block may have."""
    if device.type != "cuda":
        return LEAST_SHARED_BYTES
    found = torch.cuda.get_device_properties(device)
    return int(getattr(found, "shared_memory_per_block_optin", LEAST_SHARED_BYTES))


def many(
    x: Rounded,
    part: Packed,
    out: Tensor,
    bias: Tensor | None,
    act: int,
    gated: bool,
    *,
    chosen: Chosen | None = None,
    clamp: tuple[float, float] = (0.0, 0.0),
    tile: Tile | None = None,
) -> None:
    """`multiply` for many rows, or for blocks of pairs of rows and experts."""
    device, n = out.device, len(out)
    if chosen is None:
        n_rows = part.rows
        rows, block, stages, at_once = tile or choose_tile(n, part, device)
        row_blocks = -(-n // rows)
    else:
        assert chosen.pairs is not None
        n_rows, row_blocks, rows = chosen.rows, len(chosen.experts), chosen.pairs.shape[1]
        block, stages, at_once = tile[1:] if tile else EXPERTS_TILE
    blocks = -(-n_rows // (TILE_ROWS * block))
    split = int(chosen is None and blocks * row_blocks < 2 * multiprocessors(device))
    constants = {
        **list_constants(part), "N": n_rows, "ROWS": rows, "BLOCK": block, "STAGES": stages,
        "AT_ONCE": at_once, "SPLIT": split,
        "OUT": TYPES[out.dtype], "BIAS": int(bias is not None), "GATED": int(gated), "ACT": act,
        "EXPERTS": int(chosen is not None),
    }  # fmt: skip
    kernel = load("many_octets.cu", "many_octets", constants, device)
    scratch = None
    if split:
        scratch = torch.empty(row_blocks * PARTS * rows * n_rows, dtype=torch.float32, device=device)
    arguments = (
        x.pointers, c_int(n), c_int(x.places), tensor_addresses(part), c_void_p(address(bias)),
        c_void_p(address(out)), c_long(out.stride(0)),
        c_void_p(address(chosen.experts if chosen else None)),
        c_void_p(address(chosen.pairs if chosen else None)), c_int(chosen.each if chosen else 1),
        c_float(clamp[0]), c_float(clamp[1]), c_void_p(address(scratch)),
        c_void_p(address(_counters(device) if split else None)), c_int(row_blocks),
    )  # fmt: skip
    shared = stages * stage_bytes(part, rows, block)
    kernel.launch(blocks * row_blocks * (PARTS if split else 1), 32 * block, shared, arguments)


@lru_cache(maxsize=8)
def _counters(device: Any) -> Tensor:
    """Zeros, which kernels leave as such."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def block_bytes(part: Packed, tile: Tile) -> int:
    """Shared memory of a block of many_octets.cu, sums included."""
    rows, block, stages, _ = tile
    return stages * stage_bytes(part, rows, block) + rows * (4 * (block * TILE_ROWS + 4) + 8)


def stage_bytes(part: Packed, rows: int, block: int) -> int:
    """Shared memory of a stage of many_octets.cu."""
    batch, step, code = list_constants(part)["U"], part.layout.step, part.layout.code
    groups = batch * step // 32
    scales = groups // 8 if code >= SUPER_CODE else groups
    x = groups * rows * 32 + scales * rows * (4 + _extents(part)[2])
    high = {5: 4, 6: 8}.get(code, 0)
    warp = batch * (512 + 64 + 32 * high + (64 if code == 2 else 0)) + (
        batch * 16 if code >= SUPER_CODE else 0
    )
    return -(-x // 16) * 16 + block * warp
