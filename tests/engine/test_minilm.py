"""all-MiniLM-L6-v2 with its real weights, from its folder, against the vectors of sentence-transformers."""

from pathlib import Path

import numpy as np
import pytest

import stretto
from conftest import fetched
from stretto.weights.folder import open_weights

pytestmark = pytest.mark.golden

GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "minilm.npz"


@pytest.fixture(scope="module")
def minilm_path():
    """The folder of all-MiniLM-L6-v2."""
    path = fetched("minilm")
    return path if path.is_dir() else path.parent


@pytest.fixture(scope="module")
def minilm(minilm_path):
    with stretto.load(minilm_path, threads=2) as encoder:
        yield encoder


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN, allow_pickle=False) as stored:
        return stored["texts"].tolist(), stored["vectors"]


def cosines(found, expected):
    return (found.astype(np.float64) * expected).sum(axis=1)


def test_vectors_are_those_of_sentence_transformers(minilm, golden):
    texts, vectors = golden
    found = minilm.embed(texts)
    assert found.shape == vectors.shape
    assert cosines(found, vectors).min() >= 0.9999
    assert np.abs(found - vectors).max() < 1e-5


def test_stretto_load_opens_it_as_an_encoder(minilm, minilm_path, golden):
    texts, _ = golden
    with stretto.load(minilm_path, threads=1) as encoder:
        assert (encoder.embed(texts[:3]) == minilm.embed(texts[:3])).all()


def test_a_text_has_the_same_bits_alone_and_in_a_batch(minilm, golden):
    texts, _ = golden
    together = minilm.embed(texts)
    assert all((minilm.embed([text])[0] == row).all() for text, row in zip(texts, together, strict=True))


def test_similar_texts_rank_first(minilm):
    documents = ["The stock market fell", "Repairing a punctured bike wheel", "A happy dog"]
    assert minilm.rerank("How do I fix a flat tyre on my bicycle?", documents)[0].index == 1


def test_the_folder_says_how_to_pool(minilm_path):
    with open_weights(minilm_path) as file:
        assert file.metadata["bert.pooling_type"] == 1
