"""Caps on scores and logits, and the attention that cells receive: native against the reference."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto import _native
from stretto.backends import Batch
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.cache import Cells
from stretto.errors import InvalidRequest
from stretto.models import read_spec
from stretto.weights.gguf import GGUF
from tiny_models import with_mixers

TINY = Path(__file__).parent.parent / "data" / "tiny"
N_CELLS = 64


def backends(name, **changes):
    file = GGUF(TINY / f"{name}.gguf")
    spec = read_spec(file)
    spec = with_mixers(spec, **changes) if "cap" in changes else replace(spec, **changes)
    return ReferenceBackend(file, spec, N_CELLS), NativeBackend(file, spec, N_CELLS, 2)


def run(backend, n=40, probes=()):
    tokens = np.random.default_rng(4).integers(0, backend.spec.n_vocab, n).tolist()
    batch, cells = Batch(), Cells(N_CELLS)
    for position, token in enumerate(tokens):
        batch.add(token, position, [0], logits=True)
    batch.probe(probes)
    batch.place(cells)
    return backend.forward(batch), batch.received


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize("changes", [{"cap": 1.5}, {"logit_cap": 0.7}], ids=str)
def test_caps(monkeypatch, kernels, changes):
    monkeypatch.setenv("STRETTO_KERNELS", kernels)
    reference, native = backends("llama", **changes)
    exact, ours = run(reference)[0], run(native)[0]
    assert np.abs(exact - ours).max() < 0.02
    plain = run(backends("llama")[0])[0]
    assert np.abs(exact - plain).max() > 0.1  # the cap does something
    if "logit_cap" in changes:
        assert np.abs(ours).max() <= 0.7


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3"])
def test_received_attention(name):
    probes = [3, 11, 0, 60]
    reference, native = backends(name)
    (_, exact), (_, ours) = run(reference, probes=probes), run(native, probes=probes)
    assert ours.shape == exact.shape == (40, 4)
    assert np.abs(exact - ours).max() < 2e-3
    for received in (exact, ours):
        assert (received[:3, 0] == 0).all()  # tokens before position 3 cannot see it
        assert (received[3:11, 0] > 0).all()
        assert (received[:, 3] == 0).all()  # nobody sees an unused cell


def test_received_attention_adds_up():
    _, native = backends("llama")
    received = run(native, n=20, probes=range(20))[1]
    assert np.allclose(received.sum(axis=1), 1, atol=1e-3)


def test_nothing_is_measured_unless_asked():
    reference, native = backends("llama")
    assert run(reference)[1] is None
    assert run(native)[1] is None


@pytest.mark.parametrize("cells", [[64], [-1], [[1]], [1.5], "x"])
def test_bad_probes(cells):
    _, native = backends("llama")
    with pytest.raises(InvalidRequest, match="prob"):
        run(native, probes=cells)
