"""Fill-in-the-middle prompts."""

import pytest

from stretto.errors import ModelError, Unsupported
from stretto.text.infill import can_infill, infill_prompt
from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata, spm

QWEN = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|repo_name|>", "<|file_sep|>"]


def load(values):
    return load_tokenizer(metadata(values))


def spelled(tokenizer, ids):
    return "".join(tokenizer.spelled(token) for token in ids)


def test_the_parts_stand_between_the_markers_known_by_their_texts():
    tokenizer = load(bpe(specials=QWEN))
    ids = infill_prompt(tokenizer, "hello(", ")")
    assert spelled(tokenizer, ids) == "<|fim_prefix|>hello(<|fim_suffix|>)<|fim_middle|>"
    assert can_infill(tokenizer)


def test_the_keys_of_a_file_count_more_than_texts():
    plain = bpe(specials=["<A>", "<B>", "<C>", *QWEN])
    at = {text: plain["tokens"].index(text) for text in ("<A>", "<B>", "<C>")}
    keys = {
        "fim_pre_token_id": at["<A>"],
        "suffix_token_id": at["<B>"],
        "fim_mid_token_id": at["<C>"],
    }
    tokenizer = load({**plain, **keys})
    assert infill_prompt(tokenizer, "", "") == [at["<A>"], at["<B>"], at["<C>"]]


def test_nothing_in_the_texts_is_special():
    tokenizer = load(bpe(specials=QWEN))
    ids = infill_prompt(tokenizer, "<|fim_middle|>", "<|fim_suffix|>")
    assert sum(token in tokenizer.specials.values() for token in ids) == 3


def test_a_space_is_put_before_the_prefix_but_not_before_the_suffix():
    tokenizer = load(spm(specials=("▁<PRE>", "▁<SUF>", "▁<MID>")))
    ids = infill_prompt(tokenizer, "hello", "world")
    pieces = [tokenizer.piece(token) for token in ids]
    assert pieces == ["<s>", "▁<PRE>", "▁hello", "▁<SUF>", "world", "▁<MID>"]


def test_without_a_marker_for_the_middle_the_suffix_comes_first():
    tokenizer = load(bpe(specials=["[PREFIX]", "[SUFFIX]"]))
    assert spelled(tokenizer, infill_prompt(tokenizer, "he", "lo")) == "[SUFFIX]lo[PREFIX]he"


def test_the_suffix_comes_first_on_request():
    tokenizer = load(bpe(specials=QWEN))
    ids = infill_prompt(tokenizer, "he", "lo", suffix_first=True)
    assert spelled(tokenizer, ids) == "<|fim_suffix|>lo<|fim_prefix|>he<|fim_middle|>"


def test_other_files_come_first_under_their_names():
    tokenizer = load(bpe(specials=QWEN))
    ids = infill_prompt(tokenizer, "a", "b", files=[("x.py", "hello\n")])
    assert spelled(tokenizer, ids) == (
        "<|repo_name|>myproject\n<|file_sep|>x.py\nhello\n<|file_sep|>filename\n"
        "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    )


def test_other_files_without_the_tokens_are_marked_by_text():
    tokenizer = load(bpe(specials=QWEN[:3]))
    ids = infill_prompt(tokenizer, "a", "b", files=[("x.py", "hello")])
    assert spelled(tokenizer, ids).startswith("\n\n--- snippet ---\n\nhello<|fim_prefix|>")


def test_a_vocabulary_without_the_markers_is_refused():
    tokenizer = load(bpe(specials=["<|fim_prefix|>", "<|fim_suffix|>"]))
    with pytest.raises(Unsupported, match="suffix"):
        infill_prompt(tokenizer, "a", "b")
    assert not can_infill(tokenizer)


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ModelError, match="fim_pre_token_id"):
        load(bpe(specials=QWEN, fim_pre_token_id=10**6))
