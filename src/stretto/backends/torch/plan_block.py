"""Where the integers of a pass are in their block, as csrc/device_plan.h lays them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stretto.backends.torch.device import Tensor
from stretto.backends.torch.plan import PROMPT_ROWS, SHARED_ROWS, Items, Kind, Plan, Work
from stretto.backends.torch.runs import RunNumbers

BLOCKS = (1, SHARED_ROWS, PROMPT_ROWS)  # rows of single, shared and prompt items
HEADS = 2 * len(BLOCKS)  # integers of a kind at the beginning
ROW_SECTIONS, KIND_SECTIONS = 7, 5
NO_NUMBERS = np.empty(0, np.int32)


def items_at(n: int, n_kinds: int) -> int:
    """Where the items of a block of n rows begin."""
    return _runs_at(n, n_kinds) + _padded(5 * n + 1)


def lay_out(
    block: Tensor,
    kinds: Sequence[Kind],
    n: int,
    n_slots: int,
    views: Tensor,
    places: Tensor,
    *,
    counts: Sequence[int] = (),
    key: tuple[int, bool, int] | None = None,
    has_runs: bool = False,
) -> Plan:
    """The plan whose integers are in a block (a tensor, or an array in tests).

    `counts`: of items, as the planner gives them. With a `key` it is a plan of decoding, whose counts change
    from step to step. `has_runs`: the model has recurrent layers, and each row has a slot of its own.
    """
    at = _padded(HEADS * len(kinds))
    sections = _sections(block, at, n)
    tokens, positions, cells, offsets = (next(sections) for _ in range(4))
    at += 4 * _padded(n)
    rotated = block[at : at + 3 * n].reshape(n, 3)
    sections = _sections(block, at + 3 * _padded(n), n)
    works = {}
    for i, kind in enumerate(kinds):
        firsts, lengths, slot0, spans, wait = (next(sections) for _ in range(KIND_SECTIONS))
        single, shared, prompt = (
            _items(block, HEADS * i + 2 * j, rows, n_slots, counts[3 * i + j] if key is None else None)
            for j, rows in enumerate(BLOCKS)
        )
        if key is not None:
            shared, prompt = shared if key[1] else None, None
        works[kind] = Work(
            views,
            places,
            positions,
            offsets,
            firsts,
            lengths,
            slot0,
            spans,
            wait,
            n_slots,
            single,
            shared,
            prompt,
        )
    at, runs = _runs_at(n, len(kinds)), None
    if has_runs:  # each row is a run, and a tile
        runs = RunNumbers(NO_NUMBERS, n, n, n).within(block[at : at + 5 * n + 1])
    return Plan(n, tokens, positions, cells, rotated, works, runs, key)


def _items(block: Tensor, at: int, rows: int, n_slots: int, count: int | None) -> Items | None:
    head = block[at : at + 2]
    return None if count == 0 else Items(rows, block, head, count, n_slots if count is None else count)


def _runs_at(n: int, n_kinds: int) -> int:
    return _padded(HEADS * n_kinds) + (ROW_SECTIONS + KIND_SECTIONS * n_kinds) * _padded(n)


def _padded(n: int) -> int:
    return -(-n // 4) * 4


def _sections(block: Tensor, at: int, n: int) -> Iterator[Tensor]:
    """Sections of n integers one after the other, each aligned."""
    while True:
        yield block[at : at + n]
        at += _padded(n)
