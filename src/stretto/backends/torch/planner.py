"""From batches to plans: the integers of a pass, found natively and sent in one block.

`plan` serves any batch. `decode` serves decode steps, with a fixed block for each number of rows (bucket): a
step costs one native call and one asynchronous copy. If a pass that was planned does not run, call `forget`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stretto import _native
from stretto.backends.batch import Batch, Decoding, Placement
from stretto.backends.torch.plan import HEAD, SHARED_ROWS, SPAN, Kind, Plan
from stretto.backends.torch.plan_block import items_at, lay_out
from stretto.backends.torch.runs import Ints, Runs, run_numbers
from stretto.backends.torch.sending import Fixed, Sender
from stretto.backends.torch.views import Views
from stretto.errors import InvalidRequest
from stretto.models.mixers import Latent
from stretto.models.spec import ModelSpec

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEW_ROWS = 16  # of one view, that attend span by span: one program for all their cells would take long
MOST_SLOTS = 1 << 14  # of partial results in a decode step; a step with more takes `plan`


def bucket_of(n: int) -> int | None:
    """The smallest bucket for n rows; None if there are more rows than in any."""
    return next((bucket for bucket in BUCKETS if n <= bucket), None)


def kinds_of(spec: ModelSpec) -> tuple[Kind, ...]:
    """The distinct kinds of attention of a model's layers."""
    found: dict[Kind, None] = {}
    for layer in spec.layers:
        if layer.attention is not None:
            found[layer.attention.window, layer.attention.causal] = None
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


class Planner:
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

    def plan(self, batch: Batch, placement: Placement) -> Plan:
        """The plan of any placed batch."""
        self.n_made += 1
        try:
            return self._plan(batch, placement)
        except BaseException:
            self.forget()
            raise

    def _plan(self, batch: Batch, placement: Placement) -> Plan:
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
        plan = lay_out(block, self.kinds, n, n_slots, views.cells, views.positions, counts=counts)
        return plan if placement.slots is None else replace(plan, runs=self._runs(placement.slots))

    def decode(self, decoding: Decoding | OneRow, bucket: int) -> Plan | None:
        """The plan of a decode step, padded to `bucket` rows; None if it is too large: take `plan` then."""
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
        return self._plans(fixed)[shares]

    def blank(self, bucket: int, shares: bool = False) -> Plan:
        """A plan of padding alone, to capture a graph with before there is a step."""
        fixed = self._buckets.get(bucket) or self._open(bucket)
        self.views.update(self._native, self._sender)
        fixed.block.send(self._native.blank(bucket, fixed.block.take()))
        return self._plans(fixed)[shares]

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

    def _plans(self, fixed: _Bucket) -> list[Plan]:
        """The plans of a bucket without and with shared items, over the views where they are now."""
        generation = self.views.generation
        if fixed.generation != generation:
            fixed.generation = generation
            fixed.plans = [
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
        return fixed.plans


class _Bucket:
    """What decode steps of up to so many rows use again and again."""

    def __init__(self, rows: int, block: Fixed, n_slots: int) -> None:
        self.rows = rows
        self.block = block
        self.n_slots = n_slots
        self.generation = -1
        self.plans: list[Plan] = []
