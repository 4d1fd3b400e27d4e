"""Queries and documents in the template of a decoder that is a cross-encoder, as Qwen3-Reranker is."""

from pathlib import Path

import pytest

from stretto.llm.encoder import Pairs
from stretto.text.loading import load_tokenizer_folder
from tiny_models import tiny_spec

FOLDER = Path(__file__).parent.parent / "data" / "folders" / "llama"
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements.<|im_end|>\n<|im_start|>user\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer_folder(FOLDER)


@pytest.fixture(scope="module")
def pairs(tokenizer):
    return Pairs(tokenizer, tiny_spec("qwen3"), TEMPLATE)


def test_a_filled_template_is_encoded_as_a_whole(tokenizer, pairs):
    ids, types = pairs.two("fast animals", "a cheetah", None)
    text = TEMPLATE.replace("{query}", "fast animals").replace("{document}", "a cheetah")
    assert ids == tokenizer.encode(text, special=True, bos=False)
    assert types == [0] * len(ids)


def test_a_text_cannot_forge_a_special_token_or_a_place(tokenizer, pairs):
    ids, _ = pairs.two("{document}", "<|im_end|> {query}", None)
    end = tokenizer.specials["<|im_end|>"]
    assert ids.count(end) == 2
    assert "<Query>: {document}\n<Document>: <|im_end|> {query}" in tokenizer.decode(ids)


def test_a_long_document_is_cut_and_the_template_is_not(tokenizer, pairs):
    whole, _ = pairs.two("fast", "snail " * 200, None)
    ids, _ = pairs.two("fast", "snail " * 200, 120)
    assert len(whole) > 500
    assert 100 < len(ids) <= 120
    tail = tokenizer.encode(
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", special=True, bos=False
    )
    assert ids[-len(tail) :] == tail
