"""`stretto.load` of a Hugging Face folder: a decoder with its vocabulary, template and end tokens."""

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
