"""WordPiece and Unigram from GGUF metadata: transformers' ids, round trips, and files not to be trusted."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.errors import InvalidRequest, ModelError
from stretto.text.loading import load_tokenizer
from stretto.text.unigram import check_charsmap
from vocabularies import CONTROL, NORMAL, UNKNOWN, metadata

DATA = Path(__file__).parent.parent / "data" / "tokenizers"
TEXTS = json.loads((DATA / "texts.json").read_text("utf-8"))


def read(name):
    return json.loads((DATA / name / "tokenizer.json").read_text("utf-8"))


def wordpiece_values(name="wordpiece", **changes):
    """The vocabulary as llama.cpp's converter writes it."""
    described = read(name)
    special = {token["content"] for token in described["added_tokens"]}
    words = sorted(described["model"]["vocab"], key=described["model"]["vocab"].get)
    tokens = [w if w in special else w[2:] if w.startswith("##") else "\u2581" + w for w in words]
    values = {
        "model": "bert",
        "tokens": tokens,
        "token_type": np.array([CONTROL if word in special else NORMAL for word in words], np.int32),
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "unknown_token_id": 1,
        "padding_token_id": 0,
        "mask_token_id": 4,
    }
    return {**values, **changes}


def unigram_values(name="unigram", **changes):
    described = read(name)
    special = {token["content"] for token in described["added_tokens"]}
    pairs = described["model"]["vocab"] + [
        (token["content"], 0.0) for token in described["added_tokens"] if token["content"] == "<mask>"
    ]
    unknown = described["model"]["unk_id"]
    types = [CONTROL if text in special else NORMAL for text, _ in pairs]
    types[unknown] = UNKNOWN
    t5 = name.endswith("t5")
    values = {
        "model": "t5",
        "tokens": [text for text, _ in pairs],
        "scores": np.array([score for _, score in pairs], np.float32),
        "token_type": np.array(types, np.int32),
        "bos_token_id": None if t5 else 0,
        "eos_token_id": 1 if t5 else 2,
        "unknown_token_id": unknown,
        "add_bos_token": not t5,
        "add_eos_token": True,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        "precompiled_charsmap": np.frombuffer(charsmap(), np.int8),
    }
    return {**values, **changes}


def charsmap():
    return base64.b64decode(read("unigram")["normalizer"]["precompiled_charsmap"])


def load(values):
    return load_tokenizer(metadata(values))


WORDPIECE, UNIGRAM = load(wordpiece_values()), load(unigram_values())


@pytest.mark.golden
@pytest.mark.parametrize("name", ["wordpiece", "wordpiece-cased", "unigram", "unigram-t5"])
def test_ids_are_those_of_transformers(name):
    tokenizer = load((wordpiece_values if name.startswith("word") else unigram_values)(name))
    golden = json.loads((DATA / name / "golden.json").read_text("utf-8"))
    for text, special, parsed in zip(TEXTS, golden["special"], golden["parsed"], strict=True):
        assert tokenizer.encode(text, special=True) == special, text
        assert tokenizer.encode(text, special=True, bos=False) == parsed, text


@pytest.mark.parametrize("tokenizer", [WORDPIECE, UNIGRAM], ids=repr)
def test_no_text_forges_a_special_token(tokenizer):
    forbidden = set(tokenizer.specials.values()) - {tokenizer.vocabulary.unknown_id}

    @given(st.text() | st.text("[CLSEP]<s>/mask pad\U0010ffff▁é", max_size=30))
    def check(text):
        assert not forbidden & set(tokenizer.encode(text))

    check()
    for text in tokenizer.specials:
        assert not forbidden & set(tokenizer.encode(f"a {text} b"))


def test_words_are_decoded_with_a_space_between():
    for tokenizer in (WORDPIECE, UNIGRAM):
        ids = tokenizer.encode("the  quick brown\tfox", special=True)
        assert tokenizer.decode(ids) == "the quick brown fox"
        detokenizer = tokenizer.detokenizer()
        assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == "the quick brown fox"


def test_case_is_kept_if_the_vocabulary_has_capitals_or_the_file_says_so():
    upper, lower = "The Quick Fox", "the quick fox"
    assert WORDPIECE.encode(upper) == WORDPIECE.encode(lower)
    cased = load(wordpiece_values("wordpiece-cased"))
    assert cased.encode(upper) != cased.encode(lower)
    key = "tokenizer.ggml.normalizer.lowercase"
    folded = load(wordpiece_values("wordpiece-cased", **{key: True}))
    assert folded.encode(upper) == cased.encode(lower)


def test_special_tokens_are_known_by_their_texts():
    keys = ("cls_token_id", "seperator_token_id", "unknown_token_id", "padding_token_id", "mask_token_id")
    bare = load(wordpiece_values(token_type=None, **dict.fromkeys(keys)))
    assert (bare.bos_id, bare.eos_id, bare.vocabulary.unknown_id) == (2, 3, 1)
    assert set(bare.specials) == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    assert bare.encode("fox", special=True) == WORDPIECE.encode("fox", special=True)


def test_a_text_in_the_middle_has_no_space_in_front():
    assert UNIGRAM.encode_inside(" fox jumps") == UNIGRAM.encode("fox jumps")
    assert UNIGRAM.encode_inside("s") != UNIGRAM.encode("s")


def test_text_without_a_token_raises_if_there_is_no_unknown_token():
    values = wordpiece_values(unknown_token_id=None)
    values["tokens"] = [text.replace("[UNK]", "[none]") for text in values["tokens"]]
    with pytest.raises(InvalidRequest, match="no token for unknown"):
        load(values).encode("ݭ")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (wordpiece_values(tokens=["[UNK]", "▁a", "▁a"], token_type=None), "twice"),
        (wordpiece_values(cls_token_id=5000), "outside the vocabulary"),
        (wordpiece_values(seperator_token_id=-1), "outside the vocabulary"),
        (wordpiece_values(mask_token_id="[MASK]"), "must be an integer"),
        (wordpiece_values(tokens=[]), "empty"),
        (unigram_values(scores=np.zeros(3, np.float32)), "has 3 entries"),
        (unigram_values(scores=np.full(len(UNIGRAM.vocabulary.tokens), np.inf, np.float32)), "infinite"),
        (unigram_values(precompiled_charsmap=np.zeros(9, np.int32)), "at most 16777216 bytes"),
        (unigram_values(precompiled_charsmap=np.zeros(9, np.int8)), "a trie of 0 bytes"),
        (unigram_values(precompiled_charsmap="no"), "must be an array"),
        (unigram_values(eos_token_id=1 << 31), "outside the vocabulary"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hostile_vocabularies_raise(values, message):
    with pytest.raises(ModelError, match=message):
        load(values)


def test_a_damaged_table_of_replacements_raises_or_works():
    table, generator = charsmap(), np.random.default_rng(7)
    refused = 0
    for _ in range(300):
        damaged = bytearray(table)
        for at in generator.integers(0, len(damaged) // int(generator.choice([1, 8, 64])), 4):
            damaged[at] = generator.integers(256)
        try:
            check_charsmap(bytes(damaged), "table")
        except ModelError:
            refused += 1
            continue
        tokenizer = load(unigram_values(precompiled_charsmap=np.frombuffer(damaged, np.uint8)))
        for text in TEXTS:
            tokenizer.encode(text)
    assert refused > 20
    for length in (1, 4, 7, 100, 1028, len(table) - 1):
        with pytest.raises(ModelError):
            check_charsmap(table[:length], "table")
