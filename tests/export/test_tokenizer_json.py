"""Tokenizers as tokenizer.json: the library that reads it gives the same ids, and the same text of them."""

import json

import pytest
import tokenizers

pytest.importorskip("onnx")

import vocabularies
from stretto.errors import Unsupported
from stretto.export.folder import tokenizer_config, tokenizer_json
from stretto.text.loading import load_tokenizer
from stretto.weights.gguf import GGUF

TEXTS = [
    "hello world",
    "  hello   hello\n\n\thello ",
    "he<|end|>hello<|end|> world",
    "<tool>hello<tool>",
    "Ünïcödé 你好 😀 1234567, it's",
    "",
    " ",
    "a\r\nb",
]


def written(metadata):
    """Our tokenizer, and the library's."""
    tokenizer = load_tokenizer(metadata)
    document = json.dumps(tokenizer_json(metadata, tokenizer), ensure_ascii=False)
    return tokenizer, tokenizers.Tokenizer.from_str(document)


BPE = {"specials": ("<|end|>",), "user": ("<tool>",)}
MADE = {
    "gpt-2": vocabularies.bpe(**BPE),
    "llama-bpe with BOS": vocabularies.bpe("llama-bpe", bos_token_id=260, eos_token_id=260, **BPE),
    "with BOS and EOS": vocabularies.bpe(
        bos_token_id=260, eos_token_id=260, add_bos_token=True, add_eos_token=True, **BPE
    ),
    "sentencepiece": vocabularies.spm(),
    "sentencepiece without a space in front": vocabularies.spm(add_space_prefix=False),
    "sentencepiece without BOS": vocabularies.spm(add_bos_token=False),
}


@pytest.mark.parametrize("values", MADE.values(), ids=list(MADE))
@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_texts_are_the_same(values, text):
    ours, theirs = written(vocabularies.metadata(values))
    ids = ours.encode(text, special=True)
    assert theirs.encode(text).ids == ids
    if "<" not in text and not text.startswith(" "):
        assert theirs.decode(ids) == ours.decode(ids)


def test_the_configuration_names_special_tokens():
    tokenizer = load_tokenizer(vocabularies.metadata(vocabularies.spm()))
    config = tokenizer_config(tokenizer, 128, "{{ messages }}")
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")
    assert config["model_max_length"] == 128
    assert config["chat_template"] == "{{ messages }}"


def test_a_kind_that_cannot_be_written_is_named():
    values = vocabularies.bpe(model="gemma4", specials=("<bos>",), bos_token_id=260)
    metadata = vocabularies.metadata(values)
    with pytest.raises(Unsupported, match="gemma4"):
        tokenizer_json(metadata, load_tokenizer(metadata))


@pytest.mark.golden
@pytest.mark.parametrize("model", ["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_real_vocabularies_give_the_golden_ids(model, request, golden_answers):
    with GGUF(request.getfixturevalue(f"{model}_path")) as file:
        _, theirs = written(file.metadata)
    answers = golden_answers(model)["tokenize"]
    assert [theirs.encode(case["text"]).ids for case in answers] == [case["ids_special"] for case in answers]
