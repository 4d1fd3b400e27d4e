"""The attention kernel against the plain version: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1).

On a GPU, results are also compared with `==` between kinds of items, which the interpreter's products do not
promise.
"""

import numpy as np
import pytest

from stretto.backends.torch.device import has_triton, is_interpreting

torch = pytest.importorskip("torch", reason="torch is an extra")
if not has_triton() or not (is_interpreting() or torch.cuda.is_available()):
    pytest.skip("kernels need a GPU, or TRITON_INTERPRET=1 and triton", allow_module_level=True)

from triton.runtime.errors import OutOfResources  # noqa: E402

from attention_work import Rows  # noqa: E402
from stretto.backends.torch.attention_layer import attend, plain_attend, store  # noqa: E402
from stretto.backends.torch.kernels import attend_launch  # noqa: E402
from stretto.backends.torch.planes import new_plane, to_bytes, write  # noqa: E402
from stretto.backends.torch.work import Scoring  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:Conversion of an array:DeprecationWarning"
)  # the interpreter's
DEVICE = "cpu" if is_interpreting() else "cuda"
N_CELLS = 700
RNG = np.random.default_rng(0)
CELLS = RNG.permutation(N_CELLS)
TABLE = RNG.integers(0, 600, N_CELLS)
# Rows of a prompt of 260 entries, and a fork of it; some have windows.
PROMPT = list(CELLS[:260])
VIEWS = [[*PROMPT, 600, 601], [*PROMPT, 602]]
LENGTHS = [65, 257, 262, 261]
VIEW_OF = [0, 0, 0, 1]
FIRSTS = [3, 250, 0, 257]


def rows(firsts=True):
    return Rows(VIEWS, VIEW_OF, LENGTHS, FIRSTS if firsts else [], list(range(290, 294)), TABLE, DEVICE)


def random(*shape, seed=0):
    return torch.tensor(
        np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32), device=DEVICE
    )


def example(kind="f16", heads=3, kv=1, size=32, value_size=None):
    """Queries and planes."""
    value_size = value_size or size
    keys, values = (new_plane(kind, N_CELLS, kv, s, DEVICE) for s in (size, value_size))
    cells = torch.arange(N_CELLS, dtype=torch.int32, device=DEVICE)
    store(random(N_CELLS, kv, size), random(N_CELLS, kv, value_size, seed=1), keys, values, cells)
    q = random(len(LENGTHS), heads, size, seed=2)
    return q if kind == "f32" else q.half(), keys, values


def expected(q, keys, values, work, **options):
    out = q.new_empty(len(q), q.shape[1] * values.shape[2], dtype=torch.float32)
    plain_attend(q, keys, values, work, Scoring(**options), out)
    return out


def check(q, keys, values, kinds=("single", "prompt"), **options):
    options = {"scale": 0.3} | options
    results = []
    for kind in kinds:
        work = rows().work(kind)
        out = torch.full((len(q), q.shape[1] * values.shape[2]), float("nan"), device=DEVICE)
        found = attend(q, keys, values, work, Scoring(**options), out)
        assert found is out
        error = (found - expected(q, keys, values, work, **options)).abs().max().item()
        assert error < (1e-5 if q.dtype == torch.float32 else 4e-3), (kind, error)
        results.append(found)
    if DEVICE == "cuda":
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("kind", ["f32", "f16", "fp8", "q8"])
def test_rows_attend_to_their_entries(kind):
    check(*example(kind))


@pytest.mark.parametrize("extra", ["cap", "sinks", "alibi"])
def test_scores_are_capped_and_biased(extra):
    options = {
        "cap": {"cap": 2.0},
        "sinks": {"sinks": random(3, seed=3) * 3},
        "alibi": {"alibi": random(3, seed=4).abs() * 0.01},
    }[extra]
    check(*example(), **options)


@pytest.mark.parametrize(
    ("heads", "kv", "size", "value_size"),
    [(2, 2, 80, 96), (7, 1, 40, 24), (20, 1, 48, 32), (2, 1, 8, 8)],
)
def test_heads_of_any_size_and_groups_of_any_size(heads, kv, size, value_size):
    check(*example("f16", heads, kv, size, value_size))


@pytest.mark.parametrize("kind", ["f16", "q8"])
def test_values_may_be_the_first_numbers_of_keys(kind):
    q, keys, _ = example(kind, heads=2, kv=1, size=48)
    check(q, keys, keys[..., :32])


def test_q8_heads_may_end_within_a_block():
    check(*example("q8", size=40))


def test_shared_spans_give_what_single_ones_give():
    q, keys, values = example()
    work = rows(firsts=False).work(shared=[([1, 2, 3], 0)])
    alone = rows(firsts=False).work()
    found, other = (attend(q, keys, values, w, Scoring(0.3)) for w in (work, alone))
    error = (found.float() - expected(q, keys, values, work, scale=0.3)).abs().max().item()
    assert error < 4e-3
    assert torch.equal(found, other) or DEVICE == "cpu"


def test_counters_are_ready_for_the_next_launch():
    q, keys, values = example()
    work = rows().work()
    first, again = (attend(q, keys, values, work, Scoring(0.3)) for _ in range(2))
    assert torch.equal(first, again)


def test_rows_alone_have_the_same_bits():
    q, keys, values = example()
    whole = attend(q, keys, values, rows().work(), Scoring(0.3))
    for row in (1, 3):
        alone = Rows(VIEWS, [VIEW_OF[row]], [LENGTHS[row]], [FIRSTS[row]], device=DEVICE).work()
        assert torch.equal(attend(q[row : row + 1], keys, values, alone, Scoring(0.3))[0], whole[row])


@pytest.mark.parametrize("size", [64, 40])
@pytest.mark.parametrize("kind", ["f16", "fp8", "q8"])
def test_the_kernel_stores_what_plain_torch_stores(kind, size):
    if kind == "fp8" and is_interpreting():
        pytest.skip("Triton's interpreter does not round to the nearest number of this format")
    x = random(3, 2, size, seed=6) * 5
    x[1, 1], x[0, 0, 7] = 0, 1e3
    cells = torch.tensor([5, 0, 9], dtype=torch.int32, device=DEVICE)
    plane, other = (new_plane(kind, 12, 2, size, DEVICE) for _ in range(2))
    store(x, None, plane, None, cells)
    write(x, other, cells)
    assert torch.equal(to_bytes(plane), to_bytes(other))


def test_smaller_tiles_replace_those_that_a_device_has_no_room_for(monkeypatch):
    q, keys, values = example()
    work = rows().work("prompt")
    expected = attend(q, keys, values, work, Scoring(0.3))
    launch, tiles = attend_launch.Call.launch_tile, []

    def limited(call, items, tile, pdl, programs):
        tiles.append(tile)
        if tile.heads > 1:
            raise OutOfResources(200, 100, "shared memory")
        launch(call, items, tile, pdl, programs)

    monkeypatch.setattr(attend_launch.Call, "launch_tile", limited)
    monkeypatch.setattr(attend_launch, "_FITTING", {})
    for _ in range(2):
        found = attend(q, keys, values, work, Scoring(0.3))
        assert (found.float() - expected.float()).abs().max() <= (2e-3 if is_interpreting() else 0)
    assert [(tile.heads, tile.stages) for tile in tiles] == [(4, 5), (4, 2), (2, 2), (1, 2), (1, 2)]


def test_queries_may_be_a_part_of_a_larger_tensor():
    q, keys, values = example()
    larger = random(len(q), 9, 32, seed=8).half()
    larger[:, 2:5] = q
    work = rows().work("prompt")
    found = attend(larger[:, 2:5], keys, values, work, Scoring(0.3))
    assert torch.equal(found, attend(q, keys, values, work, Scoring(0.3)))
