"""Plans and views as tensors: what the planner sends, and what a decode step appends by itself."""

import numpy as np
import pytest

from attention_plans import attended, expected
from stretto.backends.batch import Batch, Decoding
from stretto.backends.torch.device import is_interpreting
from stretto.backends.torch.planner import BUCKETS, WorkPlanner, find_bucket
from stretto.backends.torch.views import append_cells
from stretto.cache.cells import Cells
from stretto.errors import InvalidRequest

torch = pytest.importorskip("torch")
KINDS = ((None, True), (100, True))


def planner(n_cells=2000, **options):
    return WorkPlanner(torch.device("cpu"), n_cells, 100, KINDS, context_length=1000, **options)


def begin(plan):
    """What a pass begins with."""
    if plan.appends:
        work = plan.of(None)
        append_cells(work.views, work.places, work.offsets, work.lengths, plan.cells, plan.positions)


def check(plan, batch, scratch):
    """All rows of the plan attend to their cells, and those of padding to the scratch cell."""
    begin(plan)
    for window, causal in KINDS:
        cells = expected(batch, window, causal) + [{scratch: 1}] * (plan.n - len(batch))
        assert attended(numpy_of(plan.of(window, causal)), plan.n) == cells


def numpy_of(work):
    """The same work in arrays."""
    fields = {name: getattr(work, name) for name in work.__dataclass_fields__}
    for name, value in fields.items():
        if isinstance(value, torch.Tensor):
            fields[name] = value.numpy()
        elif hasattr(value, "data"):
            fields[name] = type(value)(
                value.block, value.data.numpy(), value.head.numpy(), value.count, value.most
            )
    return type(work)(**fields)


def test_prompts_and_steps_have_their_cells():
    device, cells = planner(), Cells(2000)
    batch = Batch()
    for sequence, n in enumerate((300, 5, 40)):
        batch.extend([1] * n, 0, [sequence])
    batch.place(cells)
    check(device.place(batch, batch.placement), batch, 2000)
    cells.copy(0, 3)
    for _ in range(3):
        step = Decoding(cells, [1, 2, 3, 4], [0, 1, 2, 3])
        check(device.decode(step, 8), step, 2000)


def test_addresses_of_a_bucket_stay():
    device, cells = planner(), Cells(2000)
    cells.place([1] * 600, list(range(600)), [(0,)] * 600)
    first = device.decode(Decoding(cells, [1], [0]), 4)
    second = device.decode(Decoding(cells, [2], [0]), 4)
    assert first is second
    assert first.key == (4, False, 0)
    assert second.tokens.tolist() == [2, 0, 0, 0]
    cells.copy(0, 1)
    shared = device.decode(Decoding(cells, [3, 4], [0, 1]), 4)
    assert shared.key == (4, True, 0)
    assert shared.tokens.data_ptr() == first.tokens.data_ptr()
    assert shared.of(None).shared.data.data_ptr() == first.of(None).single.data.data_ptr()


def test_a_blank_plan_is_padding_alone():
    device = planner()
    for bucket in BUCKETS:
        plan = device.blank(bucket)
        begin(plan)
        assert plan.cells.tolist() == [2000] * bucket
        assert attended(numpy_of(plan.of(100)), bucket) == [{2000: 1}] * bucket


def test_views_that_grow_have_other_keys():
    device, cells = planner(capacity=256), Cells(2000)
    cells.place([1] * 40, list(range(40)), [(0,)] * 40)
    step = Decoding(cells, [1], [0])
    before = device.decode(step, 1)
    check(before, step, 2000)
    cells.place([1] * 400, list(range(400)), [(1,)] * 400)
    step = Decoding(cells, [1, 1], [0, 1])
    check(device.decode(step, 2), step, 2000)
    step = Decoding(cells, [1], [1])
    after = device.decode(step, 1)
    check(after, step, 2000)
    assert after.key != before.key
    assert after.tokens.data_ptr() == before.tokens.data_ptr()


def test_a_failed_pass_is_forgotten():
    device, cells = planner(), Cells(2000)
    cells.place([1] * 40, list(range(40)), [(0,)] * 40)
    for _ in range(2):
        cells.hold()
        device.decode(Decoding(cells, [1], [0]), 1)  # nothing runs
        cells.rollback()
    device.forget()
    step = Decoding(cells, [1], [0])
    check(device.decode(step, 1), step, 2000)


def test_a_step_with_too_many_slots_is_planned_as_any_batch():
    device, cells = planner(most_slots=3), Cells(2000)
    for sequence in (0, 1):
        cells.place([1] * 300, list(range(300)), [(sequence,)] * 300)
    step = Decoding(cells, [1, 1], [0, 1])
    assert device.decode(step, 2) is None
    check(device.place(step, step.placement), step, 2000)


def test_a_model_without_attention_has_tokens_and_runs():
    device, cells = WorkPlanner(torch.device("cpu"), 50, 100, (), context_length=50, n_slots=3), Cells(50)
    step = Decoding(cells, [5, 6], [0, 1])
    step.slots = [2, 1]
    plan = device.decode(step, 4)
    assert plan.tokens.tolist() == [5, 6, 0, 0]
    assert plan.runs.slots.tolist() == [2, 1, 0, 0]
    plan = device.place(step, step.placement)
    assert plan.runs.rows.tolist() == [1, 0]
    assert plan.works == {}


def test_buckets_are_powers_of_two():
    assert [find_bucket(n) for n in (1, 3, 256, 257)] == [1, 4, 256, None]
    with pytest.raises(InvalidRequest, match="bucket must be one of"):
        planner().blank(3)


def test_append_cells_is_the_same_in_a_kernel():
    pytest.importorskip("triton")
    if not is_interpreting():
        pytest.skip("kernels run on a CPU with TRITON_INTERPRET=1 alone")
    random = np.random.default_rng(0)
    n = 150
    offsets = torch.arange(n, dtype=torch.int32) * 10
    lengths, cells, positions = (torch.tensor(random.integers(1, 10, n), dtype=torch.int32) for _ in range(3))
    views, places = (torch.zeros(10 * n, dtype=torch.int32) for _ in range(2))
    append_cells(views, places, offsets, lengths, cells, positions)
    for row in range(n):
        entry = int(offsets[row] + lengths[row]) - 1
        assert (views[entry], places[entry]) == (cells[row], positions[row])
    assert views.count_nonzero() == places.count_nonzero() == n
