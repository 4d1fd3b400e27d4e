"""A device in NumPy for plans of attention: it holds views, and reads items as the kernel does."""

from collections import Counter

import numpy as np

from stretto import _native
from stretto.backends.batch import Batch, Decoding
from stretto.backends.torch.planner import items_at, lay_out
from stretto.backends.torch.work import ALIGN, HEAD, SPAN

N_VOCAB = 100


class Device:
    """The part of `WorkPlanner` that needs no torch, and the views as kernels would see them."""

    def __init__(self, n_cells, kinds=((None, True),), n_slots=0, capacity=1 << 16, few=16):
        self.n_slots = n_slots
        codes = [(window or 0, causal) for window, causal in kinds]
        self.kinds, self.n_cells = kinds, n_cells
        self.native = _native.DevicePlanner(n_cells, N_VOCAB, n_slots, capacity, codes, few)
        self.views = np.full(self.native.capacity, -1, np.int32)
        self.places = np.full(self.native.capacity, -1, np.int32)
        self.n_sent = 0

    def plan(self, batch, windowed_images=False):
        at = batch.placement
        size, n_slots, counts = self.native.plan(
            batch.tokens,
            batch.positions,
            at.cells,
            at.views,
            at.sequences,
            at.edits,
            at.view_of,
            at.lengths,
            at.causal if windowed_images else None,
            at.table,
            at.slots,
            at.rotated,
            len(batch),
        )
        block = np.full(size, -7, np.int32)
        self.native.copy_block(block)
        self.receive()
        return lay_out(block, self.kinds, len(batch), n_slots, self.views, self.places, counts=counts)

    def decode(self, step, bucket, most_slots=1 << 14, size=1 << 18):
        block = np.full(size, -7, np.int32)
        size, shares = self.native.decode(
            step.ids,
            step.places,
            step.taken,
            step.sequences,
            step.edits,
            step.counts,
            step.stores,
            step.table,
            step.slots,
            step.rotated,
            bucket,
            most_slots,
            block,
        )
        self.receive()
        if not size:
            return None
        plan = lay_out(
            block[:size],
            self.kinds,
            bucket,
            most_slots,
            self.views,
            self.places,
            key=(bucket, shares, 0),
            has_runs=self.n_slots > 0,
        )
        offsets = plan.works[self.kinds[0]].offsets
        entries = offsets + plan.works[self.kinds[0]].lengths - 1
        self.views[entries], self.places[entries] = plan.cells, plan.positions
        return plan

    def receive(self):
        """Write what the planner sends into the views."""
        if self.native.capacity != len(self.views):
            self.views = np.full(self.native.capacity, -1, np.int32)
            self.places = np.full(self.native.capacity, -1, np.int32)
        self.n_sent = n = self.native.unsent
        block = np.empty(3 * n, np.int32)
        self.native.copy_unsent(block)
        entries, cells, places = block.reshape(3, n)
        self.views[entries], self.places[entries] = cells, places


def records(items):
    """[view, start, stop, span, rows] of each item."""
    if items is None:
        return []
    count, at = items.head
    size = HEAD + items.block
    found = items.data[at : at + count * size].reshape(count, size)
    return [(*map(int, each[:HEAD]), [int(row) for row in each[HEAD:] if row >= 0]) for each in found]


def attended(work, n):
    """For each row a Counter of the cells that the kernel reads for it; items are checked on the way."""
    found = [Counter() for _ in range(n)]
    singles, slots = Counter(), Counter()
    for kind in ("single", "shared", "prompt"):
        for view, start, stop, span, rows in records(getattr(work, kind)):
            assert start % ALIGN == 0
            assert start < stop
            assert rows
            assert len(set(rows)) == len(rows)
            assert kind == "prompt" or span * SPAN <= start < stop <= (span + 1) * SPAN
            for row in rows:
                first, last = max(start, work.firsts[row]), min(stop, work.lengths[row])
                assert np.array_equal(
                    work.views[view + first : view + last],
                    work.views[work.offsets[row] + first : work.offsets[row] + last],
                )
                found[row].update(work.views[view + first : view + last].tolist())
                if kind == "prompt":
                    assert work.spans[row] == work.wait[row] == 0
                else:
                    assert 0 <= span - work.firsts[row] // SPAN < work.spans[row]
                    slots[int(work.slot0[row]) + span] += 1
                    singles[row] += kind == "single"
    assert set(slots.values()) <= {1}
    assert set(slots) == set(range(int(work.spans.sum())))
    assert work.n_slots >= len(slots)
    assert [singles[row] for row in range(n)] == work.wait.tolist()
    assert all(wait or not spans for wait, spans in zip(work.wait, work.spans, strict=True))
    return found


def expected(batch, window, causal, windowed_images=False):
    """For each row the cells that it attends to, as the reference backend masks them."""
    at, found = batch.placement, []
    for row, position in enumerate(batch.positions):
        view = at.views[at.view_of[row]]
        narrow = windowed_images and window is None and at.causal is not None
        cells = view[: (at.causal if narrow else at.lengths)[row]] if causal else view
        distance = position - at.table[cells]
        if window is not None:
            cells = cells[(distance < window) & (causal | (distance > -window))]
        found.append(Counter(cells.tolist()))
    return found


def check(device, batch, windowed_images=False):
    """PassWork a batch; all rows of all kinds must attend to exactly their cells."""
    plan = device.plan(batch, windowed_images)
    for window, causal in device.kinds:
        wanted = expected(batch, window, causal, windowed_images)
        assert attended(plan.of(window, causal), plan.n) == wanted
    return plan


def check_step(device, cells, tokens, sequences, bucket):
    """A decode step; padding attends to the scratch cell."""
    step = Decoding(cells, tokens, sequences)
    plan = device.decode(step, bucket)
    padding = bucket - len(tokens)
    for window, causal in device.kinds:
        wanted = expected(step, window, causal) + [Counter([device.n_cells])] * padding
        assert attended(plan.of(window, causal), bucket) == wanted
    assert plan.tokens.tolist() == tokens + [0] * padding
    assert plan.cells.tolist() == step.taken + [device.n_cells] * padding
    return plan


def prefill(device, cells, lengths):
    """Sequences 0, 1, … with so many tokens each."""
    batch = Batch()
    for sequence, n in enumerate(lengths):
        batch.extend([1] * n, 0, [sequence])
    batch.place(cells)
    return check(device, batch)


__all__ = ["Device", "attended", "check", "check_step", "expected", "items_at", "prefill", "records"]
