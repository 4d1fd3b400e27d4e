"""From batches to plans: the integers of a pass, found natively and sent in one block.

`place` serves any batch. `decode` serves decode steps, with a fixed block for each number of rows (bucket): a
step costs one native call and one asynchronous copy. If a pass that was planned does not run, call `forget`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stretto import _native
from stretto.backends.batch import Batch, Decoding, Placement
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.upload import Fixed, Sender
from stretto.backends.torch.views import Views
from stretto.backends.torch.work import (
    HEAD,
    PROMPT_ROWS,
    SHARED_ROWS,
    SPAN,
    AttentionWork,
    Ints,
    Items,
    Kind,
    PassWork,
    RunNumbers,
    Runs,
    run_numbers,
)
from stretto.errors import InvalidRequest
from stretto.models.mixers import Latent
from stretto.models.spec import ModelSpec

# Where the integers of a pass are in their block, as csrc/device/plan.h lays them out.

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
) -> PassWork:
    """The work whose integers are in a block (a tensor, or an array in tests).

    `counts`: of items, as the planner gives them. With a `key` it is of decoding, whose counts change
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
        works[kind] = AttentionWork(
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
    return PassWork(n, tokens, positions, cells, rotated, works, runs, key)


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


BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEW_ROWS = 16  # of one view, that attend span by span: one program for all their cells would take long
MOST_SLOTS = 1 << 14  # of partial results in a decode step; a step with more takes `place`


def find_bucket(n: int) -> int | None:
    """The smallest bucket for n rows; None if there are more rows than in any."""
    return next((bucket for bucket in BUCKETS if n <= bucket), None)


def list_kinds(spec: ModelSpec) -> tuple[Kind, ...]:
    """The distinct kinds of attention of a model's layers."""
    found: dict[Kind, None] = {}
    for layer in spec.layers:
        if layer.attention is not None:
            found[layer.attention.reach, layer.attention.causal] = None
        elif isinstance(layer.mixer, Latent):
            found[None, True] = None
    return tuple(found)


@dataclass
class OneRow:
    """A decode step of one sequence, as the lists of `Decoding`; the device alone may know its token."""

    taken: list[int]  # the cell
    places: list[int]  # the position
    counts: list[int]  # entries of the view, the cell included
    stores: list[Ints]  # the view
    table: Ints
    sequences: list[int]
    edits: list[int]
    slots: list[int]
    ids: list[int] = field(default_factory=lambda: [0])
    rotated: Ints | None = None


class WorkPlanner:
    """Plans the passes of one model; the views of its sequences are on the device."""

    def __init__(
        self,
        device: Any,
        n_cells: int,
        n_vocab: int,
        kinds: Sequence[Kind] = ((None, True),),
        *,
        context_length: int,
        n_slots: int = 0,
        windowed_images: bool = False,
        capacity: int | None = None,
        most_slots: int = MOST_SLOTS,
    ) -> None:
        self.kinds = tuple(kinds)
        self._windowed_images = windowed_images
        self._spans = -(-min(context_length, n_cells) // SPAN)
        self._most_slots = most_slots
        self._n_slots = n_slots
        size = max(1 << 18, min(8 * n_cells, 1 << 28)) if capacity is None else capacity
        codes = [(window or 0, causal) for window, causal in self.kinds]
        self._native = _native.DevicePlanner(n_cells, n_vocab, n_slots, size, codes, FEW_ROWS)
        self.views = Views(device, self._native.capacity)
        self._device = device
        self._sender = Sender(device)
        self._buckets: dict[int, _Bucket] = {}
        self.n_made = 0  # plans so far; those of decode steps are in the same memory

    def place(self, batch: Batch, placement: Placement) -> PassWork:
        """The work of any placed batch."""
        self.n_made += 1
        try:
            return self._place(batch, placement)
        except BaseException:
            self.forget()
            raise

    def _place(self, batch: Batch, placement: Placement) -> PassWork:
        n, k = len(batch), len(placement.views)
        size, n_slots, counts = self._native.plan(
            batch.tokens,
            batch.positions,
            placement.cells,
            placement.views,
            # Views that nobody names are compared with what the device has.
            [-1 - i for i in range(k)] if placement.sequences is None else placement.sequences,
            [0] * k if placement.edits is None else placement.edits,
            placement.view_of,
            placement.lengths,
            placement.causal if self._windowed_images else None,
            placement.table,
            placement.slots,
            placement.rotated,
            n,
        )
        views = self.views
        views.update(self._native, self._sender)
        self._native.copy_block(self._sender.take(size))
        block = self._sender.send(size)
        work = lay_out(block, self.kinds, n, n_slots, views.cells, views.positions, counts=counts)
        return work if placement.slots is None else replace(work, runs=self._runs(placement.slots))

    def decode(self, decoding: Decoding | OneRow, bucket: int) -> PassWork | None:
        """The work of a decode step, padded to `bucket` rows; None if it is too large: take `place` then."""
        fixed = self._buckets.get(bucket) or self._open(bucket)
        self.n_made += 1
        try:
            size, shares = self._native.decode(
                decoding.ids,
                decoding.places,
                decoding.taken,
                decoding.sequences,
                decoding.edits,
                decoding.counts,
                decoding.stores,
                decoding.table,
                decoding.slots,
                decoding.rotated,
                bucket,
                fixed.n_slots,
                fixed.block.take(),
            )
            if self._native.unsent:
                self.views.update(self._native, self._sender)
            if not size:
                return None
            fixed.block.send(size)
        except BaseException:
            self.forget()  # there are views whose last cells no pass will append
            raise
        return self._works(fixed)[shares]

    def blank(self, bucket: int, shares: bool = False) -> PassWork:
        """That of padding alone, to capture a graph with before there is a step."""
        fixed = self._buckets.get(bucket) or self._open(bucket)
        self.views.update(self._native, self._sender)
        fixed.block.send(self._native.blank(bucket, fixed.block.take()))
        return self._works(fixed)[shares]

    def forget(self) -> None:
        """Send all views again: after a pass that failed the device may lack cells."""
        self._native.clear()

    def _runs(self, slots: Ints) -> Runs | None:
        """The rows of recurrent layers by slot."""
        if not self._n_slots:
            return None
        found = run_numbers(slots)
        n = len(found.numbers)
        self._sender.take(n)[:n] = found.numbers
        return found.within(self._sender.send(n))

    def _open(self, bucket: int) -> _Bucket:
        """The fixed block of a bucket."""
        if bucket not in BUCKETS:
            raise InvalidRequest(
                f"bucket must be one of {BUCKETS}, not {bucket}", param="bucket", value=bucket
            )
        n_slots = max(bucket, min(self._most_slots, bucket * (self._spans + 1)))
        # A slot takes a single item, or its share of a shared one, which has two rows at least.
        items = len(self.kinds) * n_slots * max(HEAD + 1, (HEAD + SHARED_ROWS) // 2)
        block = Fixed(self._device, items_at(bucket, len(self.kinds)) + items)
        self._buckets[bucket] = _Bucket(bucket, block, n_slots)
        return self._buckets[bucket]

    def _works(self, fixed: _Bucket) -> list[PassWork]:
        """The plans of a bucket without and with shared items, over the views where they are now."""
        generation = self.views.generation
        if fixed.generation != generation:
            fixed.generation = generation
            fixed.works = [
                lay_out(
                    fixed.block.tensor,
                    self.kinds,
                    fixed.rows,
                    fixed.n_slots,
                    self.views.cells,
                    self.views.positions,
                    key=(fixed.rows, shares, generation),
                    has_runs=self._n_slots > 0,
                )
                for shares in (False, True)
            ]
        return fixed.works


class _Bucket:
    """What decode steps of up to so many rows use again and again."""

    def __init__(self, rows: int, block: Fixed, n_slots: int) -> None:
        self.rows = rows
        self.block = block
        self.n_slots = n_slots
        self.generation = -1
        self.works: list[PassWork] = []
