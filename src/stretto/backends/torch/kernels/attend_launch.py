"""Launches of the attention kernel: the tiles it works in, and the memory of partial results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from stretto.backends.torch.device import Tensor, is_interpreting, multiprocessors
from stretto.backends.torch.kernels.attend import attend
from stretto.backends.torch.kernels.attend_row import attend_row
from stretto.backends.torch.kernels.early import early_options
from stretto.backends.torch.launching import launch
from stretto.backends.torch.planes import Q8, Plane
from stretto.backends.torch.work import HEAD, PROMPT_ROWS, SHARED_ROWS, SPAN, AttentionWork, Items, Scoring

FEW_ROWS = 16  # of a pass, whose items are too few for all multiprocessors
LEAST = 16  # rows and columns of a product
LEAST_PAIRS = 32  # of values of 8 bits: with 16, some tiles gave wrong sums (Triton 3.6)
COUNTERS = 1 << 20  # by row, K/V head and tile of heads
PROGRAMS = 16  # a multiprocessor, where items are more than that
ROW_PIECES = 31  # that a row is cut into (`attend_row`), and more where each has more than
ROW_TURNS = 16  # blocks of entries
ROW_JOINED = 64  # results of heads that are joined at a time


@dataclass(frozen=True)
class Tile:
    """How an item is computed. Results depend on `block` alone, so it is the same for all kinds of items."""

    block: int  # view entries a turn
    heads: int  # of one K/V head, for each row
    warps: int
    stages: int
    registers: int | None = None  # at most, for each thread


ROW_TILE = Tile(block=64, heads=LEAST, warps=4, stages=1)  # of `attend_row`
ROW_TILE_EXACT = Tile(block=32, heads=LEAST, warps=4, stages=1)  # the same with K and V in float32


def power_of_two(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()


def pieces(size: int, least: int = LEAST) -> tuple[int, int]:
    """A head as one piece, or as two where this pads less: powers of two of at least `least`."""
    whole = max(power_of_two(size), least)
    half = whole // 2
    rest = max(power_of_two(size - half), least)
    return (half, rest) if least <= half < size and rest < half else (whole, 0)


def choose_tile(rows: int, group: int, width: int, stored: int, n: int = 1, deep: bool = True) -> Tile:
    """The tile for items of `rows` rows: `group` heads a K/V head, heads padded to `width` numbers.

    K and V have `stored` bytes a number. Few rows `n` of a pass leave multiprocessors idle: their items have
    more warps, and load further ahead if `deep`. Warps and stages were measured on an H200.
    """
    if stored == 4:
        most, block = LEAST, 32 if width <= 128 else 16
    elif width > 256:
        most, block = 32, 32
    else:
        most, block = 128 if width <= 128 else 64, 64 if width <= 192 else 32
    if rows < PROMPT_ROWS:
        most = min(most, 64)
    heads = min(power_of_two(group), max(1, most // rows) if rows > 1 else LEAST)
    wide = rows * heads >= 128 or rows * heads * width > 8192 or stored == 4
    warps, stages = 8 if wide and rows > 1 else 4, 1 if stored == 4 else 2
    if stored == 4 or rows == SHARED_ROWS:
        return Tile(block, heads, warps, stages)
    if rows == 1 and width > 256:
        warps, stages = 8, 3
    elif rows == 1 and stored == 2:
        warps, stages = (2, 3) if width <= 128 and n > FEW_ROWS else (4, 5 if deep and width <= 128 else 3)
    elif width <= 256:
        stages = 5 if stored == 2 and wide and width <= 128 else 3
    return Tile(block, heads, warps, stages)


def smaller(tile: Tile) -> Tile | None:
    """A tile that takes less shared memory, with the same results; None: there is none."""
    if tile.stages > 2:
        return replace(tile, stages=2)
    if tile.heads > 1:
        return replace(tile, heads=tile.heads // 2)
    return replace(tile, stages=1) if tile.stages > 1 else None


_FITTING: dict[tuple[Any, ...], Tile] = {}  # tiles that replace others, on devices with little shared memory


@lru_cache(maxsize=8)
def _counters(device: Any) -> Tensor:
    """Counters of finished items, 0 between launches: the last item of each row resets its own."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def launch_attend(
    q: Tensor,
    keys: Plane,
    values: Plane,
    work: AttentionWork,
    scoring: Scoring,
    out: Tensor,
    deep: bool = True,
) -> None:
    """Attention into `out`: shared items, then single ones, which join them; prompt items."""
    call = Call(q, keys, values, work, scoring, out, deep)
    for items in (work.shared, work.single, work.prompt):
        if items is not None and items.most and items.count != 0:
            call.launch(items)


@dataclass(frozen=True)
class Turning:
    """How kernels turn the queries and keys of a projection: what they are compiled for, and take."""

    constants: dict[str, Any]
    norms: Sequence[Tensor]  # weights for queries, keys and values; any tensor where there are none
    rotation: Sequence[Tensor]  # cosines, sines, positions, axes
    numbers: Sequence[float]  # epsilons of the norms; slope, length and offset of the temperature
    at_k: int  # where K begins in a projection
    at_v: int


class Call:
    """A call of the kernel: the arguments that all kinds of items have in common."""

    def __init__(
        self,
        q: Tensor,
        keys: Plane,
        values: Plane,
        work: AttentionWork,
        scoring: Scoring,
        out: Tensor,
        deep: bool,
    ) -> None:
        self.n, heads, size = q.shape
        self.deep = deep
        self.device, self.n_kv, value_size = q.device, keys.shape[1], values.shape[2]
        self.group = heads // self.n_kv
        is_q8 = isinstance(keys, Q8)
        k, v = (plane.numbers if isinstance(plane, Q8) else plane for plane in (keys, values))
        k_scales, v_scales = (plane.scales if isinstance(plane, Q8) else plane for plane in (keys, values))
        self.stored = k.element_size()
        if self.stored == 1:  # pairs of numbers
            d1, d2 = pieces(size // 2)
            e1 = e2 = max(power_of_two(value_size // 2), LEAST_PAIRS)
            self.width = 2 * (d1 + d2)
        else:
            (d1, d2), (e1, e2) = pieces(size), pieces(value_size)
            self.width = d1 + d2
        tied = k.data_ptr() == v.data_ptr() and d1 == e1 and value_size == e1 * (2 if self.stored == 1 else 1)
        slots = max(1, work.n_slots) * heads
        mixes, sums = (q.new_empty(slots * each, dtype=torch.float32) for each in (value_size, 2))
        counters = (
            _counters(self.device)
            if self.n * heads <= COUNTERS
            else out.new_zeros(self.n * heads, dtype=torch.int32)
        )
        sinks, alibi = (q if given is None else given for given in (scoring.sinks, scoring.alibi))
        self.tensors = q, k, v, k_scales, v_scales, out, sinks, alibi
        self.rest = (
            work.views, work.places, work.positions, work.firsts, work.lengths, work.slot0, work.spans,
            work.wait, mixes, sums, counters, float(scoring.scale), float(scoring.cap),
        )  # fmt: skip
        self.constants = {
            "QN": q.stride(0), "QH": q.stride(1), "ON": out.stride(0),
            "KC": k.stride(0), "KH": k.stride(1), "VC": v.stride(0), "VH": v.stride(1),
            "KSC": k_scales.stride(0), "KSH": k_scales.stride(1),
            "VSC": v_scales.stride(0), "VSH": v_scales.stride(1),
            "H": heads, "HK": self.n_kv, "D": size, "D1": d1, "D2": d2, "DV": value_size, "E1": e1, "E2": e2,
            "SPAN": SPAN, "ITEM": HEAD, "Q8": is_q8, "FAST": not is_interpreting(), "TIED": tied,
            "CAP": scoring.cap != 0.0, "SINKS": scoring.sinks is not None, "ALIBI": scoring.alibi is not None,
        }  # fmt: skip

    def launch(
        self, items: Items, tile: Tile | None = None, pdl: bool | None = None, programs: int = 0
    ) -> None:
        """Compute items of one kind."""
        tile = tile or choose_tile(items.block, self.group, self.width, self.stored, self.n, self.deep)
        kind = items.block, self.width, self.stored, self.device, tile
        tile = _FITTING.get(kind, tile)
        while True:
            try:
                return self.launch_tile(
                    items, tile, early_options(self.device)["EARLY"] if pdl is None else pdl, programs
                )
            except OutOfResources:
                less = smaller(tile)
                if less is None:
                    raise
                _FITTING[kind] = tile = less

    def launch_tile(self, items: Items, tile: Tile, pdl: bool, programs: int) -> None:
        """Launch the kernel with a tile; it raises where the device has no room for that."""
        count = items.most if items.count is None else items.count
        units = count * self.n_kv * -(-self.group // tile.heads)
        if programs or items.count is None:  # unused programs of a graph should be few
            units = min(units, (programs or PROGRAMS) * multiprocessors(self.device))
        options: dict[str, Any] = {"maxnreg": tile.registers, "enable_fp_fusion": False, "launch_pdl": pdl}
        launch(
            attend, (units,),
            *self.tensors, items.data, items.head, *self.rest, **self.constants,
            GT=tile.heads, ROWS=items.block, MT=max(LEAST, items.block * tile.heads), BLOCK=tile.block,
            WHOLE=items.block == PROMPT_ROWS, JOIN=items.block == 1, PDL=pdl,
            num_warps=tile.warps, num_stages=tile.stages, **({} if is_interpreting() else options),
        )  # fmt: skip


def launch_row(
    projected: Tensor, turning: Turning, keys: Tensor, values: Tensor, cells: Tensor, work: AttentionWork,
    scoring: Scoring, out: Tensor,
) -> None:  # fmt: skip
    """Attention of one row into `out`, from its projection, by `attend_row`; K and V are stored."""
    constants = turning.constants
    heads, kv_heads, size = constants["H"], constants["HK"], constants["D"]
    tile = ROW_TILE_EXACT if keys.element_size() == 4 else ROW_TILE
    together = min(power_of_two(heads // kv_heads), LEAST)
    units = kv_heads * -(-heads // kv_heads // together)
    most = max(ROW_PIECES, multiprocessors(projected.device) // units)
    slots = (most + 1) * heads
    mixes, sums = (out.new_empty(slots * each, dtype=torch.float32) for each in (size, 2))
    pdl = early_options(projected.device)
    options: dict[str, Any] = {"num_warps": tile.warps, "num_stages": tile.stages}
    options |= {"launch_pdl": True} if pdl["EARLY"] else {}
    launch(
        attend_row, (units * (most + 1),),
        projected, keys, values, out, out if scoring.sinks is None else scoring.sinks,
        *turning.norms, *turning.rotation, cells,
        work.views, work.offsets, work.positions, work.firsts, work.lengths,
        mixes, sums, _counters(projected.device), float(scoring.scale),
        *turning.numbers, turning.at_k, turning.at_v, **constants,
        KC=keys.stride(0), KH=keys.stride(1), VC=values.stride(0), VH=values.stride(1),
        GT=together, MT=LEAST, BLOCK=tile.block, FEW=ROW_PIECES, MOST=most, TURNS=ROW_TURNS,
        JOINED=max(1, ROW_JOINED // together), SINKS=scoring.sinks is not None, PDL=pdl["EARLY"], **options,
    )  # fmt: skip
