"""Tiny random encoders on the torch backend: near transformers, a text the same beside others."""

from dataclasses import replace

import numpy as np
import pytest

import stretto
from stretto.backends.batch import Batch
from stretto.backends.reference import ReferenceBackend
from stretto.cache.cells import Cells
from tiny_encoders import (
    N_CELLS,
    NAMES,
    TEXTS,
    answers,
    file_of,
    hidden_of,
    spec_of,
    text_of,
    with_words,
)
from torch_backends import DEVICE, near, not_interpreted, same, torch_backend

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


# -- by the public interface --

CATS = ["the cat runs", "a dog", "the bird sleeps fast"]


def loaded(path, **options):
    return stretto.load(path, backend="torch", device=DEVICE, cells=N_CELLS, **options)


@pytest.fixture(scope="module", params=["bert", "nomic-bert", "modern-bert"])
def words(request, tmp_path_factory):
    """A tiny encoder with a vocabulary of a few words."""
    return with_words(request.param, tmp_path_factory.mktemp("words") / f"{request.param}.gguf")


@pytest.mark.parametrize(("precision", "tolerance"), [("high", 1e-4), ("standard", 3e-2)])
def test_embed_makes_the_vectors_of_the_cpu(words, precision, tolerance):
    with loaded(words, precision=precision) as encoder, stretto.load(words, backend="reference") as other:
        found = encoder.embed(CATS)
        assert np.abs(found - other.embed(CATS)).max() < tolerance
        same(np.concatenate([encoder.embed([text]) for text in CATS]), found)


def test_rerank_gives_the_scores_of_the_cpu(words):
    with loaded(words, precision="high") as encoder, stretto.load(words, backend="reference") as other:
        found, expected = (each.rerank("the cat", CATS) for each in (encoder, other))
        assert [item.index for item in found] == [item.index for item in expected]
        near([item.score for item in found], [item.score for item in expected])
        assert len(encoder.rerank("the cat", CATS, top=1)) == 1


def test_classify_gives_the_labels_of_the_cpu(tmp_path):
    path = with_words("bert", tmp_path / "bert.gguf")
    with loaded(path, precision="high") as encoder, stretto.load(path, backend="reference") as other:
        for found, expected in zip(encoder.classify(CATS), other.classify(CATS), strict=True):
            assert [label.name for label in found] == [label.name for label in expected]
            near([label.score for label in found], [label.score for label in expected])


def test_cells_of_one_pass_are_halves_in_standard_precision(tmp_path):
    """Products of attention are then as fast as others."""
    path = with_words("bert", tmp_path / "bert.gguf")
    for precision, kv in (("standard", "f16"), ("high", "f32")):
        with loaded(path, precision=precision) as encoder:
            assert f" {kv}," in encoder.backend.cell_layout


def test_a_language_model_embeds_too():
    from stretto.llm import LLM
    from tiny_models import tiny_file, tiny_spec
    from tiny_vision import small_tokenizer

    found = []
    for backend in (torch_backend("llama"), ReferenceBackend(tiny_file("llama"), tiny_spec("llama"), 64)):
        with LLM(backend, small_tokenizer(), None, fingerprint=lambda: "tiny") as llm:
            found.append(llm.embed([[1, 2, 3], [4, 5]]))
    near(*found)
