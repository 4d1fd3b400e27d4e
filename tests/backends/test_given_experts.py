"""Experts of the native core for rows from outside, as a GPU's driver has them computed."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'stretto[cuda]'")

from stretto import _native
from stretto.backends.native import NativeBackend
from stretto.backends.torch.host_experts import NO_EXPERT, host_spec
from stretto.hardware import usable_cores
from tiny_models import tiny_file, tiny_spec

# Gates, biases, weighed inputs, no gate.
MODELS = ("mixtral", "gpt-oss", "llama4", "nemotron_h_moe", "deepseek3")


class Experts:
    """The experts of a tiny model's last layer that has some, and rows for them."""

    def __init__(self, name, n, threads=2, precision="standard"):
        file, spec = tiny_file(name), tiny_spec(name)
        self.layer = max(spec.expert_tensors())
        ffn = spec.layers[self.layer].ffn
        self.n_expert = ffn.n_expert
        self.backend = NativeBackend(
            file, host_spec(spec, {self.layer}), 1, threads, precision=precision, repack=True
        )
        random = np.random.default_rng(1)
        self.rows = random.standard_normal((n, spec.n_embd), np.float32)
        self.chosen = np.stack(
            [random.permutation(ffn.n_expert)[: ffn.routing.n_used] for _ in range(n)]
        ).astype(np.int32)
        self.weights = random.random(self.chosen.shape, np.float32)

    def task(self, rows=slice(None)):
        arrays = [np.ascontiguousarray(each[rows]) for each in (self.rows, self.chosen, self.weights)]
        out = np.empty_like(arrays[0])
        return _native.ExpertTask(self.backend.decoder, self.layer, *arrays, out), out

    def run(self, rows=slice(None)):
        task, out = self.task(rows)
        task.run()
        assert not task.take_failure()
        return out


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["standard", "high"])
def test_a_row_has_the_same_bits_alone_and_among_others(name, precision):
    experts = Experts(name, 9, precision=precision)
    together = experts.run()
    assert np.isfinite(together).all()
    assert together.any(axis=1).all()
    for i in range(9):
        np.testing.assert_array_equal(experts.run(slice(i, i + 1)), together[i : i + 1])
    other = Experts(name, 9, threads=1, precision=precision)
    np.testing.assert_array_equal(other.run(), together)


def test_rows_of_padding_are_left_out():
    experts = Experts("mixtral", 5)
    expected = experts.run()
    experts.chosen[[1, 4]] = NO_EXPERT
    experts.rows[1] = np.nan
    found = experts.run()
    expected[[1, 4]] = 0
    np.testing.assert_array_equal(found, expected)
    experts.chosen[:] = NO_EXPERT
    assert not experts.run().any()


@pytest.mark.parametrize("wrong", [-2, NO_EXPERT, 1 << 20])
def test_a_choice_that_is_no_expert_fails_and_says_so(wrong):
    experts = Experts("mixtral", 3)
    experts.chosen[1, 0] = wrong
    task, out = experts.task()
    task.run()
    assert task.take_failure()
    assert not task.take_failure()
    assert np.isnan(out).all()


def test_a_driver_calls_a_task_by_addresses():
    experts = Experts("gpt-oss", 4, threads=usable_cores())
    task, out = experts.task()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_native.expert_function)(task.address)
    np.testing.assert_array_equal(out, experts.run())


def test_arrays_that_do_not_fit_are_refused():
    experts = Experts("mixtral", 3)
    decoder, layer = experts.backend.decoder, experts.layer
    rows, chosen, weights = experts.rows, experts.chosen, experts.weights
    out = np.empty_like(rows)
    for arrays in (
        (rows[:, :-1].copy(), chosen, weights, out),
        (rows, chosen[:2], weights, out),
        (rows, chosen, weights[:, :-1].copy(), out),
        (rows, chosen, weights, out[:2]),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            _native.ExpertTask(decoder, layer, *arrays)
    with pytest.raises(ValueError, match="has no experts"):
        _native.ExpertTask(decoder, 99, rows, chosen, weights, out)
    with pytest.raises(TypeError):
        _native.ExpertTask(None, layer, rows, chosen, weights, out)
