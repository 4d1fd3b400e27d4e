"""Attention over views in plain torch, against the NumPy oracle; planes of K and V as bytes."""

import numpy as np
import pytest

from stretto.backends.torch.device import is_interpreting

torch = pytest.importorskip("torch", reason="torch is not installed")
if is_interpreting():
    pytest.skip("kernels have tests of their own: test_attend_kernel.py", allow_module_level=True)

from attention_work import Rows  # noqa: E402
from stretto._native import ops  # noqa: E402
from stretto.backends.reference.mixers import attend as oracle  # noqa: E402
from stretto.backends.torch.attention_layer import attend, store, sum_received, weigh_cells  # noqa: E402
from stretto.backends.torch.planes import from_bytes, new_plane, read, to_bytes  # noqa: E402
from stretto.backends.torch.work import Scoring  # noqa: E402
from stretto.errors import InvalidRequest  # noqa: E402

N_CELLS = 40
TABLE = np.random.default_rng(5).integers(0, 30, N_CELLS)
ROWS = Rows(
    views=[[5, 3, 9, 11], [30, 2, 39, 4, 7]],
    view_of=[0, 0, 1, 1, 1],
    lengths=[1, 4, 5, 2, 3],
    firsts=[0, 2, 1, 0, 2],
    positions=[3, 8, 12, 1, 9],
    table=TABLE,
)


def random(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape, np.float32))


def planes(kind, heads, size, value_size=None):
    keys = new_plane(kind, N_CELLS, heads, size, "cpu")
    values = new_plane(kind, N_CELLS, heads, value_size or size, "cpu")
    cells = torch.arange(N_CELLS, dtype=torch.int32)
    store(
        random(N_CELLS, heads, size, seed=1),
        random(N_CELLS, heads, value_size or size, seed=2),
        keys,
        values,
        cells,
    )
    return keys, values


def dense(rows):
    mask = np.zeros((len(rows.lengths), N_CELLS), bool)
    for row, view in enumerate(rows.view_of):
        mask[row, rows.views[view][rows.firsts[row] : rows.lengths[row]]] = True
    return mask


def as_numpy(plane):
    return read(plane, torch.arange(N_CELLS)).float().numpy()


@pytest.mark.parametrize("kind", ["f32", "f16", "fp8", "q8"])
@pytest.mark.parametrize("extra", ["", "cap", "sinks", "alibi"])
def test_rows_attend_to_their_entries_as_the_oracle_says(kind, extra):
    keys, values = planes(kind, heads=2, size=40, value_size=24)
    q = random(5, 6, 40)
    q = q if kind == "f32" else q.half().float()
    sinks = random(6, seed=3) if extra == "sinks" else None
    alibi = random(6, seed=4).abs() if extra == "alibi" else None
    bias = None
    if alibi is not None:
        distance = np.abs(TABLE[None, :] - np.array(ROWS.positions)[:, None])
        bias = -alibi.numpy()[:, None, None] * distance.astype(np.float32)
    options = {"scale": 0.3, "cap": 2.0 if extra == "cap" else 0.0, "sinks": sinks, "alibi": alibi}
    found = attend(q, keys, values, ROWS.work(), Scoring(**options))
    sinks = None if sinks is None else sinks.numpy()
    args = as_numpy(keys), as_numpy(values), dense(ROWS), 0.3, options["cap"], sinks, bias
    expected, shares = oracle(q.numpy(), *args)
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)
    for row, got in enumerate(weigh_cells(q, keys, ROWS.work(), range(5), Scoring(**options))):
        view = ROWS.views[ROWS.view_of[row]][: ROWS.lengths[row]]
        np.testing.assert_allclose(got.numpy(), shares[:, row, view], atol=2e-6)
    probes = torch.tensor([9, 39, 0], dtype=torch.int32)
    got = sum_received(q, keys, ROWS.work(), probes, Scoring(**options))
    np.testing.assert_allclose(got.numpy(), shares.mean(0)[:, probes], atol=2e-6)


def test_values_may_be_the_first_numbers_of_keys():
    keys, _ = planes("f16", heads=1, size=48)
    q = random(5, 4, 48)
    whole = attend(q, keys, keys[..., :32], ROWS.work(), Scoring(0.2))
    apart = attend(q, keys, keys[..., :32].contiguous(), ROWS.work(), Scoring(0.2))
    assert torch.equal(whole, apart)


@pytest.mark.parametrize("size", [64, 80])
@pytest.mark.parametrize("kind", ["f32", "f16", "q8"])
def test_saved_heads_are_the_bytes_of_the_native_backend(kind, size):
    x = random(N_CELLS, 2, size) * 3
    x[3, 1] = 0
    plane = new_plane(kind, N_CELLS, 2, size, "cpu")
    store(x, None, plane, None, torch.arange(N_CELLS, dtype=torch.int32))
    data = to_bytes(plane)
    native = ops.store_heads(x.view(-1, size).numpy(), kind, "portable")
    np.testing.assert_array_equal(data.view(-1, data.shape[2]).numpy(), native)
    again = from_bytes(data, plane)
    assert torch.equal(read(again, torch.arange(N_CELLS)), read(plane, torch.arange(N_CELLS)))


def test_numbers_beyond_the_range_of_fp8_become_its_largest():
    plane = new_plane("fp8", 2, 1, 8, "cpu")
    store(torch.full((1, 1, 8), -1e6), None, plane, None, torch.tensor([1]))
    assert (read(plane, torch.tensor([1])) == -448).all()


def test_an_unknown_kind_of_cache_is_refused_by_name():
    with pytest.raises(InvalidRequest, match="'q4'"):
        new_plane("q4", 1, 1, 8, "cpu")
