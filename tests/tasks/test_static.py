"""Static embeddings: means of vectors of tokens, and WordLlama's own vectors."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from real_tasks import open_real
from stretto.errors import InvalidRequest, ModelError
from stretto.tasks.model import Source
from stretto.tasks.static import TABLE, TOKENIZER, open_task

DATA = Path(__file__).parent.parent / "data" / "tasks"
WORDS = {"cat": 0, "dog": 1, "car": 2, "?": 3}


@pytest.fixture
def source(tmp_path):
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / TOKENIZER))
    table = np.asarray([(3, 4), (4, 3), (-5, 0), (0, 0)], np.float16)
    save_file({"embedding.weight": table}, tmp_path / TABLE)
    return Source("words", "MIT", {name: tmp_path / name for name in (TABLE, TOKENIZER)})


def test_a_text_is_the_mean_of_its_tokens(source):
    with open_task(source, "auto", None) as model:
        vectors = model.embed(["cat dog", "cat", ""], normalize=False)
        assert vectors.dtype == np.float32
        assert vectors.tolist() == [[3.5, 3.5], [3, 4], [0, 0]]
        np.testing.assert_allclose(model.embed(["cat", ""]), [[0.6, 0.8], [0, 0]], rtol=1e-6)
        assert model.embed("car", dimensions=1).tolist() == [[-1.0]]


def test_documents_are_sorted_by_cosine(source):
    with open_task(source, "cpu", 1) as model:
        ranking = model.rerank("cat", ["car", "dog", "cat"])
        assert [(item.index, item.text) for item in ranking] == [(2, "cat"), (1, "dog"), (0, "car")]
        assert [item.score for item in ranking] == pytest.approx([1.0, 0.96, -0.6])
        assert [item.text for item in model.rerank("cat", ["car", "dog", "cat"], top=1)] == ["cat"]


def test_wrong_inputs_are_refused(source):
    with pytest.raises(InvalidRequest, match="on the CPU"):
        open_task(source, "cuda", None)
    with open_task(source, "auto", None) as model:
        for call in (lambda: model.embed([7]), lambda: model.rerank("cat", [1])):
            with pytest.raises(InvalidRequest, match="must be a list of texts"):
                call()
        with pytest.raises(InvalidRequest, match="top must be at least 1"):
            model.rerank("cat", ["dog"], top=0)
        with pytest.raises(InvalidRequest, match="dimensions must be from 1 to 2, not 3"):
            model.embed("cat", dimensions=3)


def test_a_table_that_is_too_small_is_refused(source):
    save_file({"embedding.weight": np.zeros((2, 4), np.float16)}, source.files[TABLE])
    with pytest.raises(ModelError, match="2 vectors for 4 tokens"):
        open_task(source, "auto", None)


def test_a_file_without_a_table_is_refused(source):
    source.files[TABLE].write_bytes(b"nothing")
    with pytest.raises(ModelError, match="no table of embeddings"):
        open_task(source, "auto", None)


@pytest.mark.slow
def test_vectors_are_those_of_the_package():
    golden = json.loads((DATA / "texts.json").read_text())["static"]
    with open_real("wordllama") as model:
        vectors = model.embed(list(golden), normalize=False)
        first = model.rerank("animals at home", ["stock markets fell", "my dog"])[0]
    assert vectors.shape == (len(golden), 256)
    np.testing.assert_allclose(vectors[:, :16], list(golden.values()), atol=2e-6)
    assert first.text == "my dog"
