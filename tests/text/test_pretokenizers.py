"""Every pre-tokenizer against llama.cpp (tests/data/pretokenizers.json) or its maker (maker_cuts.json)."""

import json
from pathlib import Path

import numpy as np
import pytest

from stretto.errors import InvalidRequest, ModelError
from stretto.text.loading import load_tokenizer
from stretto.text.pretokenizers import FOLLOW_MAKERS, PRETOKENIZERS, pretokenizer
from stretto.text.tokenizer import chunks
from vocabularies import BYTE, CONTROL, NORMAL, bpe, metadata

DATA = Path(__file__).parent.parent / "data"
GOLDEN = json.loads((DATA / "pretokenizers.json").read_text("utf-8"))
MAKERS = json.loads((DATA / "maker_cuts.json").read_text("utf-8"))
REQUIRED = "default smollm gpt-2 llama3 llama-bpe qwen2 deepseek-llm deepseek-coder falcon starcoder tekken"


def tokenizer(name):
    values = bpe(name, GOLDEN["merges"], token_type=None, bos_token_id=0, eos_token_id=0)
    values["tokens"] = list(dict.fromkeys(values["tokens"]))  # several merges may give one token
    return load_tokenizer(metadata(values))


@pytest.fixture(scope="module")
def tokenizers():
    """Names with the same definition share a tokenizer: making one takes longer than the test."""
    names = {definition: name for name, definition in PRETOKENIZERS.items()}
    made = {definition: tokenizer(name) for definition, name in names.items()}
    return {name: made[definition] for name, definition in PRETOKENIZERS.items()}


@pytest.mark.golden
@pytest.mark.parametrize("name", sorted(PRETOKENIZERS.keys() - FOLLOW_MAKERS))
def test_ids_are_those_of_llama_cpp(tokenizers, name):
    for text, ids in zip(GOLDEN["texts"], GOLDEN["ids"][GOLDEN["names"][name]], strict=True):
        assert tokenizers[name].encode(text) == ids, text


@pytest.mark.golden
@pytest.mark.parametrize("name", sorted(FOLLOW_MAKERS))
def test_texts_are_cut_as_the_makers_cut(tokenizers, name):
    family = name if name in MAKERS["cuts"] else "gpt-4o"
    cut = tokenizers[name]._engine.pre_tokenizer.pre_tokenize_str
    texts = [*GOLDEN["texts"], *MAKERS["texts"]]
    for text, lengths in zip(texts, MAKERS["cuts"][family], strict=True):
        assert [end - begin for _, (begin, end) in cut(text)] == lengths, text


@pytest.mark.parametrize("name", sorted(FOLLOW_MAKERS))
def test_llama_cpp_differs_from_the_makers_only_in_marks_and_case(tokenizers, name):
    found = [
        text
        for text, ids in zip(GOLDEN["texts"], GOLDEN["ids"][GOLDEN["names"][name]], strict=True)
        if tokenizers[name].encode(text) != ids
    ]
    assert 5 <= len(found) <= 7
    assert "नमस्ते दुनिया। कैसे हो?" in found


@pytest.mark.parametrize("name", sorted(PRETOKENIZERS))
def test_bos_is_added_where_llama_cpp_does(tokenizers, name):
    assert tokenizers[name].add_bos is (name in GOLDEN["add_bos"])


def test_families_are_told_apart():
    """The texts and the vocabulary are sharp enough to tell the families that must be known."""
    families = {GOLDEN["names"][name] for name in REQUIRED.split()}
    assert len(families) == len(REQUIRED.split()) - 2  # llama3 is llama-bpe, starcoder is smollm


@pytest.mark.parametrize("name", sorted(name for name, pre in PRETOKENIZERS.items() if pre.words))
def test_long_texts_may_be_cut_at_seams(tokenizers, name):
    text = " and so\non ".join(GOLDEN["texts"])
    whole = tokenizers[name].encode(text)
    assert len(text) < 8192  # so that it is encoded in one piece
    cuts = list(chunks(text, 20))
    assert len(cuts) > 40
    assert [token for cut in cuts for token in tokenizers[name].encode(cut)] == whole


def test_long_texts_stay_whole_where_tokens_span_words():
    values = bpe("superbpe", ["d Ġ", "dĠ a"])
    spanning = load_tokenizer(metadata(values))
    ids = spanning.encode("d a" * 9000)
    assert ids == [spanning.vocabulary.ids["dĠa"]] * 9000


CHARACTERS = GOLDEN["gemma4"]


def character_values(**changes):
    """The vocabulary over characters: three control tokens, all bytes, then the rest."""
    types = np.full(len(CHARACTERS["tokens"]), NORMAL, np.int32)
    types[:3], types[3:259] = CONTROL, BYTE
    values = {"model": "gemma4", "tokens": CHARACTERS["tokens"], "merges": CHARACTERS["merges"]}
    return {**values, "token_type": types, "bos_token_id": 1, "eos_token_id": 2, **changes}


@pytest.mark.golden
def test_bpe_over_characters_gives_the_ids_of_llama_cpp():
    characters = load_tokenizer(metadata(character_values()))
    for text, ids in zip(GOLDEN["texts"], CHARACTERS["ids"], strict=True):
        assert characters.encode(text) == ids, text
        assert characters.decode(ids) == text


def test_gemma_4_has_bos_whatever_its_file_says():
    characters = load_tokenizer(metadata(character_values(add_bos_token=False)))
    assert characters.add_bos is CHARACTERS["add_bos"] is True
    assert characters.encode("one", special=True)[0] == 1


def test_a_character_without_token_and_bytes_is_unknown_or_refused():
    kept = [0, 1, 2, *range(259, len(CHARACTERS["tokens"]))]
    values = character_values(
        tokens=[CHARACTERS["tokens"][i] for i in kept],
        token_type=np.array([CONTROL] * 3 + [NORMAL] * (len(kept) - 3), np.int32),
    )
    assert load_tokenizer(metadata({**values, "unknown_token_id": 0})).encode("\u0416") == [0]
    with pytest.raises(InvalidRequest, match="no token for '\u0416'"):
        load_tokenizer(metadata(values)).encode("a\u0416")


def test_an_unknown_name_is_refused_and_named():
    with pytest.raises(ModelError, match=r"tokenizer.ggml.pre.*'brand-new'.*known are.*qwen2"):
        pretokenizer("brand-new")
    with pytest.raises(ModelError, match="brand-new"):
        load_tokenizer(metadata(bpe("brand-new")))
