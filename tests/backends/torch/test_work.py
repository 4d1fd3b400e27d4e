"""Plans of attention: every row attends to each of its cells exactly once, whatever the batch is."""

import random

import numpy as np
import pytest

from attention_plans import N_VOCAB, Device, check, check_step, items_at, prefill, records
from stretto import _native
from stretto.backends.batch import Batch, Decoding
from stretto.backends.torch.planner import list_kinds
from stretto.backends.torch.work import SPAN, run_numbers
from stretto.cache.cells import Cells
from tiny_models import tiny_spec, with_mixers

ALL = ((None, True), (40, True), (512, True), (None, False), (300, False))
CAUSAL = ALL[:3]


def test_kinds_are_those_of_the_layers():
    assert list_kinds(tiny_spec("gemma3")) == ((8, True), (None, True))
    assert list_kinds(with_mixers(tiny_spec("gemma3"), causal=False)) == ((8, False), (None, False))
    assert list_kinds(tiny_spec("deepseek2-lite")) == ((None, True),)


def test_a_prompt_is_blocks_of_rows():
    device, cells = Device(4000, CAUSAL), Cells(4000)
    plan = prefill(device, cells, [700])
    work = plan.of(None)
    assert work.single is None
    assert work.shared is None
    assert work.prompt.count == 22
    assert records(work.prompt)[0][1:3] == (0, 700)  # the longest first
    assert records(plan.of(40).prompt)[0][2] - records(plan.of(40).prompt)[0][1] <= 40 + 32 + 64


def test_a_few_rows_of_a_long_view_share_its_spans():
    device, cells = Device(4000, CAUSAL), Cells(4000)
    prefill(device, cells, [1000])
    batch = Batch()
    batch.extend([1, 2, 3, 4], 1000, [0])
    batch.place(cells)
    work = check(device, batch).of(None)
    assert [(span, rows) for *_, span, rows in records(work.shared)] == [(s, [0, 1, 2, 3]) for s in range(3)]
    assert work.wait.tolist() == [1, 1, 1, 1]
    assert work.prompt is None


def test_rows_behind_a_long_view_attend_span_by_span():
    device, cells = Device(9000), Cells(9000)
    prefill(device, cells, [1600])
    for n, is_split in ((50, False), (350, False), (50, True), (65, False)):
        batch = Batch()
        batch.extend([1] * n, cells.end(0), [0])
        batch.place(cells)
        work = check(device, batch).of(None)
        assert (work.prompt is None, work.shared is not None) == (is_split, is_split)


def test_forks_read_their_prefix_once():
    device, cells = Device(4000, CAUSAL), Cells(4000)
    prefill(device, cells, [2044])
    for fork in range(1, 20):
        cells.copy(0, fork)
    for length in range(2045, 2053):
        plan = check_step(device, cells, [1] * 20, list(range(20)), 32)
        assert plan.key == (32, True, 0)
        # Spans of the prefix in blocks of 10 rows; what is each row's own, and padding.
        assert plan.of(None).shared.head[0] == 7 * 2
        assert plan.of(None).single.head[0] == 20 * (1 if length <= 2048 else 2) + 12
        assert plan.of(512).shared.head[0] == 2 * (2 if length < 2048 else 1)


def test_branches_of_branches_share_what_they_have_in_common():
    device, cells = Device(8000), Cells(8000)
    prefill(device, cells, [600])
    for fork in (1, 2, 3):
        cells.copy(0, fork)
    batch = Batch()
    batch.extend([5] * 500, 600, [1])
    batch.place(cells)
    check(device, batch)
    cells.copy(1, 4)
    cells.copy(1, 5)
    work = check_step(device, cells, [1] * 6, [0, 1, 2, 3, 4, 5], 8).of(None)
    shared = {(span, tuple(rows)) for *_, span, rows in records(work.shared)}
    everyone = (0, 1, 2, 3, 4, 5)
    assert shared == {(0, everyone), (1, everyone), (2, (1, 4, 5)), (3, (1, 4, 5))}


def test_only_appending_sends_nothing():
    device, cells = Device(4000), Cells(4000)
    prefill(device, cells, [300, 200])
    check_step(device, cells, [1, 2], [0, 1], 2)
    assert device.n_sent == 0
    cells.remove(1, 190)  # the end: what comes instead is appended
    check_step(device, cells, [1, 2], [0, 1], 2)
    assert device.n_sent == 1
    cells.remove(0, 100, 110)
    check_step(device, cells, [1, 2], [0, 1], 2)
    assert device.n_sent == 302 - 10 - 100 + 1
    cells.shift(1, 0, None, 7)  # the same cells at other positions
    check_step(device, cells, [1, 2], [0, 1], 2)
    assert device.n_sent == 193


def test_padding_is_a_row_of_its_own():
    device, cells = Device(500, n_slots=4), Cells(500)
    batch = Batch()
    batch.extend([1] * 20, 0, [0])
    batch.place(cells)
    with pytest.raises(ValueError, match="recurrent layers: a slot for each row"):
        device.plan(batch)
    plain = Device(500)
    check(plain, batch)
    plan = check_step(plain, cells, [9], [0], 4)
    assert plan.positions.tolist() == [20, 0, 0, 0]
    assert plan.rotated.tolist() == [[20] * 3, [0] * 3, [0] * 3, [0] * 3]
    block = np.zeros(1000, np.int32)
    size = plain.native.blank(8, block)
    assert size == items_at(8, 1) + 8 * 5
    assert block[:2].tolist() == [8, items_at(8, 1)]


def test_runs_of_a_step_are_its_rows():
    device, cells = Device(500, n_slots=9), Cells(500)
    step = Decoding(cells, [1, 2, 3], [0, 1, 2])
    step.slots = [4, 7, 8]
    found = run_numbers(np.array(step.slots, np.int32), 4)
    runs, expected = device.decode(step, 4).runs, found.within(found.numbers.copy())
    for name in ("rows", "bounds", "slots", "tiles"):
        assert getattr(runs, name).tolist() == getattr(expected, name).tolist()


def test_parallel_tokens_and_images_attend_to_each_other():
    device, cells = Device(2000, ALL), Cells(2000)
    batch = Batch()
    batch.extend([1] * 300, 0, [0])
    for token in (7, 5, 6):
        batch.add(token, 300, [0])  # visible members of one position
    for i in range(40):
        batch.set_vector(batch.add(0, 301 + i, [0]), [0.0], ahead=39 - i)
    batch.add(3, 341, [0])
    batch.place(cells)
    check(device, batch)
    check(device, batch, windowed_images=True)
    cells.copy(0, 1)
    batch = Batch()
    for token in (7, 5, 6):
        batch.add(token, 342, [token])  # isolated ones, in sets of their own
        cells.copy(0, token)
    batch.place(cells)
    check(device, batch)


def test_an_encoder_attends_in_both_directions():
    device, cells = Device(2000, ALL[3:]), Cells(2000)
    batch = Batch()
    for sequence, n in enumerate((5, 700, 1, 33)):
        batch.add_text([1] * n, sequence)
    batch.place(cells)
    check(device, batch)


def test_a_pool_that_is_full_begins_again_and_grows():
    device, cells = Device(6000, capacity=64), Cells(6000)
    prefill(device, cells, [100, 500])
    first = device.native.capacity
    for sequence in range(2, 10):
        cells.copy(1, sequence)
        check_step(device, cells, [1] * sequence, list(range(sequence)), 16)
    assert device.native.capacity > first
    device.native.clear()
    check_step(device, cells, [1] * 10, list(range(10)), 16)
    assert device.n_sent == 1 + sum(cells.count(sequence) for sequence in range(10))


def test_a_step_that_does_not_fit_is_planned_as_any_batch():
    device, cells = Device(6000), Cells(6000)
    prefill(device, cells, [300] * 4)
    step = Decoding(cells, [1] * 4, [0, 1, 2, 3])
    assert device.decode(step, 4, most_slots=7) is None
    assert device.n_sent == 4  # the cells that no step appends
    check(device, step)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda step: step.ids.__setitem__(0, N_VOCAB), "tokens: 100 in row 0 is out of range"),
        (lambda step: step.ids.__setitem__(1, -1), "tokens: -1 in row 1"),
        (lambda step: step.taken.__setitem__(1, 50), "cells: 50 in row 1 is out of range"),
        (lambda step: step.places.__setitem__(0, -1), "positions"),
        (lambda step: step.counts.__setitem__(0, 99), "a view has 16 cells, not 99"),
        (lambda step: step.counts.__setitem__(0, 0), "lengths"),
        (lambda step: step.counts.__setitem__(0, -5), "lengths"),
        (lambda step: step.stores[0].__setitem__(0, 50), "a view: 50"),
        (lambda step: step.edits.pop(), "different lengths"),
        (lambda step: setattr(step, "table", step.table[:10]), "a position for each cell"),
        (lambda step: setattr(step, "rotated", np.zeros((2, 2), np.int32)), "three rotated positions"),
    ],
)
def test_what_would_reach_outside_is_refused(change, message):
    device, cells = Device(50), Cells(50)
    step = Decoding(cells, [1, 2], [0, 1])
    change(step)
    with pytest.raises(ValueError, match=message):
        device.decode(step, 2)


def test_wrong_batches_are_refused():
    device, cells = Device(50, ALL), Cells(50)
    batch = Batch()
    batch.extend([1] * 5, 0, [0])
    batch.place(cells)
    at = batch.placement
    for change, message in (
        (lambda: at.view_of.__setitem__(2, 1), "view_of: 1 in row 2"),
        (lambda: at.lengths.__setitem__(2, 6), "lengths"),
        (lambda: at.lengths.__setitem__(2, 0), "at least one cell"),
        (lambda: at.cells.__setitem__(4, 50), "cells: 50 in row 4"),
    ):
        held = at.view_of.copy(), at.lengths.copy(), at.cells.copy()
        change()
        with pytest.raises(ValueError, match=message):
            device.plan(batch)
        for array, old in zip((at.view_of, at.lengths, at.cells), held, strict=True):
            array[:] = old
    check(device, batch)
    with pytest.raises(ValueError, match="chunks are of attention in one direction"):
        _native.DevicePlanner(50, 10, 0, 64, [(-1, False)], 16)


@pytest.mark.parametrize("seed", range(4))
def test_random_batches_and_edits_cover_every_cell_once(seed):
    random_source = random.Random(seed)
    pick = random_source.randrange
    kinds = random_source.sample(CAUSAL, pick(1, 4))
    device, cells = Device(6000, tuple(kinds), capacity=1 << 14), Cells(6000)
    next_id = 1
    for _ in range(15):
        batch, taken = Batch(), set()
        for _ in range(pick(1, 5)):  # prompts in chunks, beside rows that decode
            known = [s for s in cells.sequences if s not in taken]
            sequence = random_source.choice(known) if known and pick(3) else (next_id := next_id + 1)
            taken.add(sequence)
            n = random_source.choice((1, 1, 2, 7, 30, 300, SPAN))
            if cells.n_free > 1000:
                batch.extend([pick(N_VOCAB) for _ in range(n)], cells.end(sequence), [sequence])
            if pick(3) == 0:
                for token in random_source.sample(range(N_VOCAB), 3):
                    batch.add(token, cells.end(sequence) + n, [sequence])
        if len(batch):
            batch.place(cells)
            check(device, batch)
        for _ in range(pick(4)):
            some = random_source.sample(cells.sequences, min(len(cells.sequences), pick(1, 17)))
            check_step(device, cells, [pick(N_VOCAB) for _ in some], some, 16)
        sequence = random_source.choice(cells.sequences)
        end = cells.end(sequence)
        edit = pick(5)
        if edit == 0:
            cells.remove(sequence, pick(end), None)
        elif edit == 1:
            start = pick(end)
            cells.remove(sequence, start, start + 20)
        elif edit == 2 and not cells.count_shared(sequence, end // 2):
            cells.shift(sequence, end // 2, None, pick(20))
        elif cells.n_free > 1000:
            cells.copy(sequence, next_id := next_id + 1)
        if cells.n_free < 2000:
            cells.clear()
            cells.place([1], [0], [(0,)])
    cells.check()
