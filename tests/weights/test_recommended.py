"""The sampling that a GGUF file recommends (`general.sampling.…`) is that of calls that name none."""

import numpy as np
import pytest

import small_llama
import stretto
import vocabularies
from stretto.weights.writer import write_gguf


def with_sampling(path, **options):
    """A small model that recommends these options."""
    tokenizer = vocabularies.metadata(vocabularies.bpe())
    n_tokens = len(tokenizer["tokenizer.ggml.tokens"])
    rows = np.random.default_rng(1).standard_normal((n_tokens, small_llama.N_EMBD)).astype(np.float16)
    added = {f"general.sampling.{name}": value for name, value in options.items()}
    tensors = {**small_llama.tensors(), "token_embd.weight": rows}
    write_gguf(path, {**small_llama.metadata(), **tokenizer, **added}, tensors)
    return path


def test_they_are_read_under_our_names(tmp_path):
    path = with_sampling(
        tmp_path / "a.gguf",
        temp=np.float32(0.6),
        top_k=1,
        top_p=np.float32(0.95),
        penalty_repeat=np.float32(1.1),
    )
    with stretto.load(path, cells=64, threads=1) as llm:
        assert dict(llm.defaults) == {
            "repetition_penalty": 1.1,
            "temperature": 0.6,
            "top_k": 1,
            "top_p": 0.95,
        }
        first, second = (llm.generate([1, 2, 3], max_tokens=8, seed=seed).tokens for seed in (1, 2))
        assert first == second  # of one token only


def test_a_file_without_them_recommends_nothing(tmp_path):
    with stretto.load(with_sampling(tmp_path / "a.gguf"), cells=64, threads=1) as llm:
        assert dict(llm.defaults) == {}


@pytest.mark.parametrize(("name", "value"), [("temp", "hot"), ("top_k", "all"), ("temp", -1.0)])
def test_what_makes_no_sense_is_named(tmp_path, name, value):
    with pytest.raises(stretto.StrettoError, match=r"temp|top_k"):
        stretto.load(with_sampling(tmp_path / "a.gguf", **{name: value}), cells=64, threads=1)
