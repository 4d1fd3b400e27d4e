"""Recurrent mixers of the torch backend: plain versions, and kernels in Triton's interpreter
(TRITON_INTERPRET=1), against the reference backend; and the same bits however rows are cut into passes.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from stretto.backends.reference import mixers as oracle
from stretto.backends.reference.layer import LayerWeights
from stretto.backends.torch.device import is_interpreting
from stretto.backends.torch.work import TILE, run_numbers, runs
from stretto.errors import InvalidRequest, Unsupported
from stretto.models.mixers import Convolution, DeltaNet, Mamba2
from stretto.models.parts import Norm

torch = pytest.importorskip("torch", reason="torch is an extra")
recurrent = pytest.importorskip("stretto.backends.torch.recurrent_layer")


NORM = Norm("ssm_norm", 1e-5)
SLOTS = np.array([2, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 2], np.int32)  # 3 rows of slot 2, 11 of slot 0
N_SLOTS = 5
MIXERS = {
    "delta net": DeltaNet(1, 2, 16, 8, 4, NORM),
    "tiled delta net": DeltaNet(2, 4, 8, 8, 3, NORM, tiled=True),
    "fused delta net": DeltaNet(2, 4, 5, 6, 4, NORM, fused=True),
    "convolution": Convolution(24, 3),
    "Mamba-2": Mamba2(4, 8, 2, 16, 4, NORM),
    "Mamba-2 without a norm": Mamba2(2, 10, 1, 7, 4, None, conv_bias=False),
}

every_mixer = pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)


@pytest.fixture(params=["plain", "kernels"])
def version(request, monkeypatch):
    """Which of the two versions runs."""
    if request.param == "kernels" and not is_interpreting():
        pytest.skip("kernels need TRITON_INTERPRET=1 and triton")
    monkeypatch.setattr(recurrent, "uses_kernels", lambda _: request.param == "kernels")
    return request.param


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def widths(mixer):
    """The projections of a mixer, and how wide they are."""
    if isinstance(mixer, Convolution):
        return {"shortconv.in_proj": 3 * mixer.width}
    if isinstance(mixer, Mamba2):
        return {"ssm_in": mixer.inner + mixer.channels + mixer.n_head}
    heads = mixer.n_value_head
    gates = {"ssm_ba": 2 * heads} if mixer.fused else {"ssm_beta": heads, "ssm_alpha": heads}
    return {"attn_qkv": mixer.channels, "attn_gate": heads * mixer.value_size} | gates


def tensors_of(mixer):
    """Weights of a layer; projections cut x into parts, and the last product changes nothing."""
    shapes = mixer.tensors(sum(widths(mixer).values()))
    found = {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    if "ssm_a" in found:
        found["ssm_a"] = -np.exp(found["ssm_a"] - 1)
    whole, at = np.eye(sum(widths(mixer).values()), dtype=np.float32), 0
    for name, width in widths(mixer).items():
        found[f"{name}.weight"] = whole[at : at + width]
        at += width
    for name in ("ssm_out.weight", "shortconv.out_proj.weight"):
        if name in found:
            found[name] = np.eye(found[name].shape[1], dtype=np.float32)
    return found


def by_oracle(mixer, x, slots, states):
    """Rows and states of the reference backend."""
    kinds = {DeltaNet: "delta_net", Convolution: "short_convolution", Mamba2: "mamba2"}
    states = states.copy()
    run = SimpleNamespace(placement=SimpleNamespace(slots=slots), states=[states])
    w = LayerWeights(tensors_of(mixer), 0, {}, prefix="")
    return getattr(oracle, kinds[type(mixer)])(mixer, w, 0, x, run), states


def by_torch(mixer, x, slots, states, bucket=None, dtype=torch.float32):
    """Rows of one pass; states change in place."""
    named = tensors_of(mixer)
    w = recurrent.read_weights(mixer, lambda name: torch.from_numpy(named[name]) if name in named else None)
    if bucket is not None:
        x = np.concatenate((x, normal(bucket - len(x), x.shape[1], seed=9)))
    found, x = runs(slots, bucket, "cpu"), torch.from_numpy(x)
    if isinstance(mixer, DeltaNet):
        inner = mixer.n_value_head * mixer.value_size
        parts = x.split([mixer.channels, inner, 2 * mixer.n_value_head], 1)
        return recurrent.delta_net(mixer, w, *parts, states, found, dtype)
    function = recurrent.convolution if isinstance(mixer, Convolution) else recurrent.mamba2
    return function(mixer, w, x, states, found, dtype)


def example(mixer, n=15):
    return normal(n, sum(widths(mixer).values())), normal(N_SLOTS, mixer.state_floats, seed=1)


def close(found, expected):
    return np.abs(found - expected).max() < 2e-5 * max(1.0, np.abs(expected).max())


@every_mixer
def test_a_pass_gives_the_rows_and_states_of_the_reference(mixer, version):
    x, before = example(mixer)
    expected, after = by_oracle(mixer, x, SLOTS, before)
    states = torch.from_numpy(before.copy())
    assert close(by_torch(mixer, x, SLOTS, states).numpy(), expected)
    assert close(states.numpy(), after)
    assert np.array_equal(states[[1, 3]].numpy(), before[[1, 3]])  # slots without rows


@every_mixer
def test_chunks_and_single_steps_give_the_same_bits(mixer, version):
    x, before = example(mixer, TILE + 2)
    slots = np.zeros(len(x), np.int32)
    whole = torch.from_numpy(before.copy())
    expected = by_torch(mixer, x, slots, whole)
    for sizes in [1, 1, TILE], [TILE - 1, 3]:
        states, at, found = torch.from_numpy(before.copy()), 0, []
        for size in sizes:
            found.append(by_torch(mixer, x[at : at + size], slots[at : at + size], states))
            at += size
        assert torch.equal(torch.cat(found), expected)
        assert torch.equal(states, whole)


@every_mixer
def test_other_rows_and_padding_change_no_bits(mixer, version):
    x, before = example(mixer)
    states = torch.from_numpy(before.copy())
    together = by_torch(mixer, x, SLOTS, states, bucket=20)
    assert together.shape[0] == 20
    for slot in (2, 4):
        rows, alone = np.flatnonzero(slot == SLOTS), torch.from_numpy(before.copy())
        found = by_torch(mixer, x[rows], SLOTS[rows], alone)
        assert torch.equal(found, together[rows])
        assert torch.equal(alone[slot], states[slot])
    assert not together[len(x) :].any()


@pytest.mark.parametrize("name", ["delta net", "convolution", "Mamba-2"])
def test_projections_may_be_half_precision(name, version):
    mixer, slots = MIXERS[name], np.zeros(3, np.int32)
    x, before = example(mixer, 3)
    x = x.astype(np.float16)
    expected, _ = by_oracle(mixer, x.astype(np.float32), slots, before)
    found = by_torch(mixer, x, slots, torch.from_numpy(before.copy()), dtype=torch.float16)
    assert found.dtype == torch.float16
    assert np.abs(found.float().numpy() - expected).max() < 2e-3 * max(1.0, np.abs(expected).max())


def test_runs_are_the_rows_of_each_slot_in_order():
    found = run_numbers(SLOTS, 16).within(torch.from_numpy(run_numbers(SLOTS, 16).numbers))
    bounds, rows = found.bounds.tolist(), found.rows.tolist()
    by_slot = {
        slot: rows[bounds[j] : bounds[j + 1]]
        for j, slot in enumerate(found.slots.tolist())
        if bounds[j] < bounds[j + 1]
    }
    assert by_slot == {slot: np.flatnonzero(slot == SLOTS).tolist() for slot in (0, 2, 4)}
    assert sorted(rows) == list(range(16))
    tiles = found.tiles.tolist()
    assert tiles[:4] == [[0, 0], [0, TILE], [1, 11], [2, 14]]
    assert all(first == len(SLOTS) for _, first in tiles[4:])


def test_shapes_of_runs_depend_on_the_bucket_alone():
    sizes = {len(run_numbers(np.array(slots, np.int32), 8).numbers) for slots in ([0], [3, 1], [5] * 8, [])}
    assert len(sizes) == 1


def test_more_rows_than_a_pass_has_are_refused():
    with pytest.raises(InvalidRequest, match="do not fit"):
        run_numbers(np.zeros(5, np.int32), 4)


def test_a_convolution_longer_than_a_tile_is_refused():
    with pytest.raises(Unsupported, match="convolution over"):
        recurrent.read_weights(Convolution(8, TILE + 2), lambda _: None)
