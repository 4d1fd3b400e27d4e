"""`stretto.load` of a Hugging Face folder: a decoder with its vocabulary, template and end tokens."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import stretto
from stretto.errors import ModelError

DATA = Path(__file__).parent.parent / "data" / "folders"


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_folder_is_loaded_as_a_whole(backend):
    expected = dict(np.load(DATA / "llama" / "answers.npz"))
    with stretto.load(DATA / "llama", backend=backend, cells=64, threads=2) as llm:
        assert llm.tokenizer.end_ids >= {602}
        tokens = expected["tokens"].tolist()
        with llm.sequence(tokens) as sequence:
            assert np.abs(sequence.logits - expected["logits"][-1]).max() < 2e-2
        prompt = llm.chat_prompt([{"role": "user", "content": "Is <|im_end|> a token?"}])
        assert prompt.count(llm.tokenizer.specials["<|im_end|>"]) == 1
        assert llm.generate("The quick", max_tokens=4, temperature=0).usage.completion_tokens <= 4


def test_a_folder_without_a_tokenizer_says_so():
    with pytest.raises(ModelError, match="has no tokenizer"):
        stretto.load(DATA / "mistral", cells=64)


def test_a_path_may_be_text():
    with stretto.load(str(DATA / "llama"), cells=64, threads=1) as llm:
        assert llm.spec.architecture == "llama"


def test_options_that_a_folder_recommends_are_those_of_calls_that_name_none(tmp_path):
    folder = tmp_path / "llama"
    shutil.copytree(DATA / "llama", folder)
    config = {"do_sample": True, "temperature": 0.6, "top_k": 1, "eos_token_id": 602}
    (folder / "generation_config.json").write_text(json.dumps(config))
    with stretto.load(folder, cells=64, threads=1) as llm:
        assert dict(llm.defaults) == {"temperature": 0.6, "top_k": 1}
        greedy = llm.generate("The quick", max_tokens=8, temperature=0).tokens
        assert all(llm.generate("The quick", max_tokens=8, seed=seed).tokens == greedy for seed in range(3))
        hot = [llm.generate("The quick", max_tokens=8, seed=seed, top_k=0).tokens for seed in range(5)]
        assert any(tokens != greedy for tokens in hot)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 602}))
    with stretto.load(folder, cells=64, threads=1) as llm:
        assert dict(llm.defaults) == {}


def test_a_recommendation_that_makes_no_sense_is_named(tmp_path):
    folder = tmp_path / "llama"
    shutil.copytree(DATA / "llama", folder)
    (folder / "generation_config.json").write_text('{"temperature": -2.0}')
    with pytest.raises(stretto.StrettoError, match="temperature"):
        stretto.load(folder, cells=64, threads=1)
