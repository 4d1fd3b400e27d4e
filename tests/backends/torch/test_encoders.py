"""Tiny random encoders on the torch backend: near transformers, a text the same beside others."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.batch import Batch
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from tiny_encoders import N_CELLS, NAMES, TEXTS, answers, file_of, hidden_of, spec_of, text_of
from torch_backends import near, not_interpreted, same, torch_backend

pytestmark = not_interpreted


def encoder(name, n_cells=N_CELLS, **options):
    return torch_backend(name, n_cells, spec=spec_of(name), file=file_of(name), **options)


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_are_those_of_transformers(name):
    for text in TEXTS:
        near(hidden_of(encoder(name), text_of(name, text)), answers(name)[f"hidden.{text}"])


@pytest.mark.parametrize("name", NAMES)
def test_standard_precision_is_near(name):
    found, expected = (
        hidden_of(encoder(name, precision="standard"), text_of(name, 0)),
        answers(name)["hidden.0"],
    )
    assert np.abs(found - expected).mean() < 0.03 * expected.std()


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_the_same_beside_others(name):
    first, second = (text_of(name, text) for text in TEXTS)
    both = hidden_of(encoder(name), second, first, (second[0][:1], [0]))
    same(both[len(second[0]) : -1], hidden_of(encoder(name), first))


@pytest.mark.parametrize("name", [name for name in NAMES if "scores.0" in answers(name)])
def test_class_heads(name):
    backend, head = encoder(name), spec_of(name).classifier
    rows = hidden_of(backend, text_of(name, 0))
    made = (rows.mean(0) if head.pooling == "mean" else rows[0])[None]
    both = np.concatenate([made, 2 * made, -made])
    for projection in head.projections:
        made, both = (backend.project(projection.name, each) for each in (made, both))
    near(made[0], answers(name)["scores.0"], 1e-3)
    same(both[:1], made)


@pytest.mark.parametrize("name", ["gemma-embedding", "jina-bert-v2", "modern-bert", "nomic-bert"])
def test_long_texts(name):
    """Windows on both sides, slopes and whole views, beyond what attention takes at a time."""
    n = 530
    tokens, found = np.random.default_rng(3).integers(1, 96, n).tolist(), []
    spec = replace(spec_of(name), context_length=n)
    ours = torch_backend(name, n, spec=spec, file=file_of(name))
    for backend in (ours, ReferenceBackend(file_of(name), spec, n)):
        batch = Batch()
        batch.add_text(tokens, 0)
        batch.place(Cells(n))
        found.append(backend.hidden(batch))
    near(*found)
