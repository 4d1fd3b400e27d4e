"""Rows of the torch backend that are no tokens: vectors, and images with rows and columns as positions."""

import numpy as np
import pytest

from stretto.backends.batch import Batch
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from stretto.models import read_spec
from tiny_models import answer, text_logits, tiny_file, tiny_spec
from tiny_vision import vision_answer, vision_file
from torch_backends import MODELS, near, not_interpreted, run, same, torch_backend

pytestmark = not_interpreted

N_CELLS = 192
START, END, COLUMNS = 93, 94, 10


def random_vectors(n, width, seed=1):
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


def some(*names):
    return [name for name in names if name in MODELS]


@pytest.mark.parametrize("name", some("llama", "gemma3", "gemma4-e", "deepseek3", "gemma3n"))
def test_vectors_between_tokens(name):
    spec, tokens = tiny_spec(name), answer(name, "tokens.0").tolist()
    found = []
    for backend in (torch_backend(name), ReferenceBackend(tiny_file(name), spec, 64)):
        batch = Batch()
        for i, token in enumerate(tokens[:20]):
            if 5 <= i < 11:
                batch.add_vector(random_vectors(20, spec.n_embd)[i], i, [0], logits=True)
            else:
                batch.add(token, i, [0], logits=True)
        found.append(run(backend, Cells(64), batch))
    near(*found)


@pytest.mark.parametrize("name", some("llama", "gemma3", "gemma4", "phi3-window"))
def test_rows_that_attend_to_each_other(name):
    """Vectors of an image attend ahead to its last one; in some models only in layers with a window."""
    spec, tokens = tiny_spec(name), answer(name, "tokens.0").tolist()
    found = []
    for backend in (torch_backend(name), ReferenceBackend(tiny_file(name), spec, 64)):
        cells, first, second = Cells(64), Batch(), Batch()
        for i, token in enumerate(tokens[:24]):
            row = first.add(token, i, [0], logits=True)
            if 4 <= i < 18:
                first.set_vector(row, random_vectors(24, spec.n_embd)[i], ahead=17 - i)
        second.extend(tokens[24:30], 24, [0], logits=True)
        found.append(np.concatenate([run(backend, cells, batch) for batch in (first, second)]))
    near(*found)
    causal = text_logits(torch_backend(name), tokens[:24])
    assert np.abs(found[0][:24] - causal).max() > 0.1


def image_logits(backend, pieces, vectors):
    """float32[n, n_vocab] of the prompt with an image of tests/data/vision, so many rows at a time."""
    before, after = (vision_answer("qwen3vl", key).tolist() for key in ("before", "after"))
    waiting = [*before, START, *[(vector, (i, COLUMNS)) for i, vector in enumerate(vectors)], END, *after]
    cells, at, parts = Cells(N_CELLS), 0, []
    while waiting:
        batch, n = Batch(), pieces[min(len(parts), len(pieces) - 1)]
        for item in waiting[:n]:
            if isinstance(item, tuple):
                batch.add_vector(item[0], at, [0], token=95, place=item[1], logits=True)
            else:
                batch.add(item, at, [0], logits=True)
            at += 1
        waiting = waiting[n:]
        parts.append(run(backend, cells, batch))
    return np.concatenate(parts)


@pytest.fixture
def seeing():
    file = vision_file("qwen3vl-text")
    return torch_backend("", N_CELLS, spec=read_spec(file, N_CELLS), file=file)


def test_rows_and_columns_of_an_image_as_positions(seeing):
    vectors, expected = vision_answer("qwen3vl", "vectors.1")[0], vision_answer("qwen3vl", "logits")
    whole = image_logits(seeing, [1000], vectors)
    near(whole, expected)
    same(image_logits(seeing, [3, 30, 50], vectors), whole)
    same(image_logits(seeing, [40, 1], vectors), whole)


def test_features_of_early_layers_count(seeing):
    vectors = vision_answer("qwen3vl", "vectors.1")[0].copy()
    assert vectors.shape[1] == 3 * seeing.spec.n_embd
    vectors[:, 2 * seeing.spec.n_embd :] = 0
    assert np.abs(image_logits(seeing, [1000], vectors) - vision_answer("qwen3vl", "logits")).max() > 0.1
