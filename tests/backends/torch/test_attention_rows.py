"""Attention that is asked for on the torch backend: what cells receive, and all weights of a row."""

import numpy as np
import pytest

from stretto.backends.base import host_rows
from stretto.backends.batch import Batch
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from tiny_models import answer, tiny_file, tiny_spec
from torch_backends import MODELS, near, not_interpreted, same, torch_backend

pytestmark = not_interpreted

ATTENDING = [name for name in MODELS if not tiny_spec(name).recurrent]
PROBES = [3, 11, 0, 60]
WATCHED = [0, 7, 29]
N = 30


def looked_at(backend, tokens, probes=PROBES, watched=WATCHED):
    """The batch with what was asked for, and its logits."""
    batch = Batch()
    for position, token in enumerate(tokens):
        batch.add(token, position, [0], logits=True)
    batch.probe(probes)
    for row in watched:
        batch.watch(row)
    batch.place(Cells(64))
    return batch, host_rows(backend.forward(batch))


@pytest.fixture(params=ATTENDING)
def both(request):
    """What was asked for, and the logits, by this backend and by the reference."""
    name = request.param
    tokens = answer(name, "tokens.0").tolist()[:N]
    backends = torch_backend(name), ReferenceBackend(tiny_file(name), tiny_spec(name), 64)
    return [looked_at(backend, tokens) for backend in backends]


def test_received_attention_is_that_of_the_reference(both):
    (ours, logits), (exact, expected) = both
    assert ours.received.shape == (N, len(PROBES))
    np.testing.assert_allclose(ours.received, exact.received, rtol=0, atol=1e-4)
    assert (ours.received[:3, 0] == 0).all()  # tokens before position 3 cannot see it
    assert (ours.received[:, 3] == 0).all()  # nobody sees an unused cell
    near(logits, expected)


def test_watched_rows_are_those_of_the_reference(both):
    (ours, _), (exact, _) = both
    assert len(ours.attention) == len(WATCHED)
    for found, expected in zip(ours.attention, exact.attention, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_looking_changes_no_bits():
    tokens = answer("llama", "tokens.0").tolist()[:N]
    batch, logits = looked_at(torch_backend("llama"), tokens)
    plain, expected = looked_at(torch_backend("llama"), tokens, [], [])
    same(logits, expected)
    assert plain.received is None
    assert plain.attention == []
    np.testing.assert_allclose(batch.attention[1].sum(axis=-1), 1, atol=1e-5)
