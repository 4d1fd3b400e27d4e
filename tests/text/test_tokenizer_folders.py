"""Tokenizers of Hugging Face folders: transformers' ids, special tokens, templates, hostile files."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import InvalidRequest, ModelError
from stretto.loading.describe import read_generation_config
from stretto.text.loading import load_template_folder, load_tokenizer_folder

DATA = Path(__file__).parent.parent / "data" / "tokenizers"
TEXTS = json.loads((DATA / "texts.json").read_text("utf-8"))
NAMES = sorted(path.parent.name for path in DATA.glob("*/tokenizer.json"))
PIECES = sorted(path.parent.name for path in DATA.glob("*/tokenizer.model"))


@pytest.fixture(scope="module")
def loaded():
    return {name: load_tokenizer_folder(DATA / name) for name in (*NAMES, *PIECES)}


def golden(name):
    return json.loads((DATA / name / "golden.json").read_text("utf-8"))


def changed(tmp_path, name, change=None, **files):
    """A copy of a folder with its tokenizer.json changed, and other JSON files written."""
    folder = tmp_path / name
    shutil.copytree(DATA / name, folder)
    if change is not None:
        described = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        change(described)
        (folder / "tokenizer.json").write_text(json.dumps(described), "utf-8")
    for stem, value in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(value), "utf-8")
    return folder


@pytest.mark.golden
@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_transformers(loaded, name):
    tokenizer, expected = loaded[name], golden(name)
    for text, special, parsed in zip(TEXTS, expected["special"], expected["parsed"], strict=True):
        assert tokenizer.encode(text, special=True) == special, text
        assert tokenizer.encode(text, special=True, bos=False) == parsed, text


@pytest.mark.golden
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("wordpiece")])
def test_texts_are_decoded_as_transformers_does(loaded, name):
    expected = golden(name)
    for text, ids, decoded in zip(TEXTS, expected["special"], expected["decoded"], strict=True):
        if not any(special in text for special in loaded[name].specials):  # we undo the space after these
            assert loaded[name].decode(ids) == decoded


@pytest.mark.golden
@pytest.mark.parametrize("name", PIECES)
def test_ids_of_sentencepiece_files_are_those_of_its_library(loaded, name):
    for text, ids in zip(TEXTS, golden(name)["plain"], strict=True):
        if "\x85" in text or "\u2581" in text:  # transformers and SentencePiece differ on these characters
            continue
        found = loaded[name].encode(text)
        assert found == ids or sorted(found) == sorted(ids), text  # cuts of equal scores


@pytest.mark.parametrize("name", [*NAMES, *PIECES])
def test_no_text_forges_a_special_token(loaded, name):
    tokenizer = loaded[name]
    forbidden = set(tokenizer.specials.values()) - {tokenizer.vocabulary.unknown_id}

    @settings(max_examples=50)
    @given(st.text() | st.text("[CLSEP]<s>/mask|im_end\U0010ffff▁é", max_size=30))
    def check(text):
        assert not forbidden & set(tokenizer.encode(text))

    check()
    for text in tokenizer.specials:
        assert not forbidden & set(tokenizer.encode(f"a{text} b"))
        assert tokenizer.specials[text] in tokenizer.encode(f"a{text} b", special=True)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_one_by_one_give_the_same_text(loaded, name):
    tokenizer = loaded[name]
    for text in TEXTS:
        ids = tokenizer.encode(text, special=True)
        detokenizer = tokenizer.detokenizer()
        assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == tokenizer.decode(ids)


def test_special_tokens_have_their_roles(loaded):
    wordpiece, unigram, qwen, llama = (
        loaded[name] for name in ("wordpiece", "unigram", "bytelevel", "llama")
    )
    assert (wordpiece.bos_id, wordpiece.eos_id) == (2, 3)
    assert (unigram.bos_id, unigram.eos_id, unigram.add_bos, unigram.add_eos) == (0, 2, True, True)
    assert (qwen.add_bos, qwen.add_eos, qwen.bos_id) == (False, False, None)
    assert qwen.eos_id == qwen.specials["<|im_end|>"]
    assert qwen.end_ids == {qwen.specials["<|im_end|>"], qwen.specials["<|endoftext|>"]}
    assert (llama.bos_id, llama.add_bos, llama.add_eos) == (1, True, False)
    assert "<tool>" not in llama.specials


def test_a_text_in_the_middle_has_no_space_in_front(loaded):
    for name in ("llama", "llama-first", "unigram"):
        tokenizer = loaded[name]
        assert tokenizer.encode_inside(" the fox") == tokenizer.encode("the fox")
        assert tokenizer.decode(tokenizer.encode("the") + tokenizer.encode_inside("se")) == "these"


def test_bos_comes_from_the_configuration_where_no_processor_adds_it(tmp_path):
    def without(described):
        described["post_processor"] = None

    folder = changed(
        tmp_path, "bytelevel", without, tokenizer_config={"bos_token": "<|im_start|>", "add_bos_token": True}
    )
    tokenizer = load_tokenizer_folder(folder)
    assert tokenizer.encode("a", special=True)[0] == tokenizer.specials["<|im_start|>"]


def test_several_tokens_may_stand_before_a_text(tmp_path):
    def sop(described):
        pieces = [{"SpecialToken": {"id": text, "type_id": 0}} for text in ("<|im_start|>", "<|im_end|>")]
        single = [*pieces, {"Sequence": {"id": "A", "type_id": 0}}]
        described["post_processor"] = {"type": "TemplateProcessing", "single": single}

    tokenizer = load_tokenizer_folder(changed(tmp_path, "bytelevel", sop))
    expected = [tokenizer.specials[text] for text in ("<|im_start|>", "<|im_end|>")]
    assert tokenizer.encode("a", special=True) == [*expected, *tokenizer.encode("a")]


def test_tokens_that_only_the_configuration_calls_special_are_special(tmp_path):
    def plain(described):
        for token in described["added_tokens"]:
            token["special"] = False

    config = {"eos_token": {"content": "<|im_end|>"}, "additional_special_tokens": ["<tool>"]}
    tokenizer = load_tokenizer_folder(changed(tmp_path, "bytelevel", plain, tokenizer_config=config))
    assert {"<|im_end|>", "<tool>"} <= set(tokenizer.specials)
    assert tokenizer.encode("<tool>") != [tokenizer.specials["<tool>"]]


def test_tokens_that_are_found_in_the_normalised_text(tmp_path):
    def shout(described):
        described["added_tokens"].append(
            {"id": 900, "content": "newword", "special": False, "normalized": True}
        )

    tokenizer = load_tokenizer_folder(changed(tmp_path, "wordpiece", shout))
    assert tokenizer.n_vocab == 901
    assert 900 in tokenizer.encode("a NewWord b")
    assert tokenizer.decode([900]) == "newword"


def test_templates_and_sampling_defaults_are_read(tmp_path):
    source = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    folder = changed(
        tmp_path,
        "bytelevel",
        tokenizer_config={"chat_template": source, "eos_token": "<|im_end|>"},
        generation_config={"eos_token_id": [256, 257], "temperature": 0.6, "top_k": 20, "do_sample": True},
    )
    tokenizer = load_tokenizer_folder(folder)
    message = [{"role": "user", "content": "Is <|im_end|> a token?"}]
    start, end = tokenizer.specials["<|im_start|>"], tokenizer.specials["<|im_end|>"]
    expected = [start, "Is <|im_end|> a token?", end]
    assert load_template_folder(folder, tokenizer).parts(message) == expected
    assert {256, 257} <= tokenizer.end_ids
    assert read_generation_config(folder) == {"temperature": 0.6, "top_k": 20}
    (folder / "chat_template.jinja").write_text("<|im_end|>{{ messages[0].content }}")
    assert load_template_folder(folder, tokenizer).parts(message)[0] == end
    assert load_template_folder(DATA / "llama", tokenizer) is None
    assert read_generation_config(DATA / "llama") == {}


def regex(described):
    described["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }


def test_a_pattern_that_never_ends_is_an_error(tmp_path):
    tokenizer = load_tokenizer_folder(changed(tmp_path, "bytelevel", regex))
    with pytest.raises(ModelError, match="library failed"):
        tokenizer.encode("a" * 60 + "b")


def put(*path, value):
    def change(described):
        for key in path[:-1]:
            described = described[key]
        described[path[-1]] = value

    return change


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("bytelevel", put("model", "type", value="Magic"), "type 'Magic' are not supported"),
        ("bytelevel", put("model", "vocab", value={}), "0 tokens"),
        ("bytelevel", put("model", "vocab", "!", value=-1), "has id -1"),
        ("bytelevel", put("model", "vocab", "!", value=1 << 40), "ids are integers"),
        ("bytelevel", put("model", "vocab", "!", value=1), "have the same id, 1"),
        ("bytelevel", put("model", "merges", value=[["a"]]), "not two tokens"),
        ("bytelevel", put("model", "merges", value=["qq zz"]), "is not of tokens"),
        ("bytelevel", put("model", "merges", value=7), "must be an array"),
        ("bytelevel", put("added_tokens", 0, "id", value=True), "is no id"),
        ("bytelevel", put("added_tokens", 0, "content", value=""), "is empty"),
        ("bytelevel", put("added_tokens", value=[7]), "must be objects"),
        ("bytelevel", put("added_tokens", 0, "single_word", value=True), "whole words"),
        ("bytelevel", put("normalizer", value={"type": "Evil"}), "'Evil' are not supported"),
        ("bytelevel", put("normalizer", value={"type": "Sequence", "normalizers": [DOUBLE] * 40}), "times"),
        ("bytelevel", put("pre_tokenizer", value={"type": "Split", "pattern": {"Regex": "((("}}), "accept"),
        ("bytelevel", put("pre_tokenizer", value=[]), "must be an object"),
        ("unigram", put("normalizer", value={"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "trie"),
        ("unigram", put("normalizer", value={"type": "Precompiled", "precompiled_charsmap": "é"}), "base64"),
        ("unigram", put("model", "unk_id", value=10**9), "is possible"),
        ("unigram", put("model", "vocab", 5, value=["x"]), "not a text with its score"),
        ("unigram", put("model", "vocab", 5, value=["▁", 1e99]), "not a text with its score"),
        ("wordpiece", put("model", "unk_token", value="[none]"), "is no token"),
        ("wordpiece", put("post_processor", "single", value=[{"SpecialToken": {"id": "??"}}]), "is no token"),
    ],
)
def test_hostile_files_are_refused(tmp_path, name, change, message):
    with pytest.raises(ModelError, match=message):
        load_tokenizer_folder(changed(tmp_path, name, change))


def test_files_that_are_no_tokenizers_are_refused(tmp_path):
    folder = tmp_path / "model"
    with pytest.raises(ModelError, match="no such folder"):
        load_tokenizer_folder(folder)
    folder.mkdir()
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer_folder(folder)
    file = folder / "tokenizer.json"
    for text, message in (("[]", "must hold an object"), ("{", "no JSON"), ("[" * 100_000, "no JSON")):
        file.write_text(text)
        with pytest.raises(ModelError, match=message):
            load_tokenizer_folder(folder)
    file.unlink()
    model = folder / "tokenizer.model"
    whole = (DATA / "sentencepiece-bpe" / "tokenizer.model").read_bytes()
    for data in (b"", b"\x0a", b"\x0a\xff\xff\xff\xff\x0f", b"\x08\x01", whole[:1000], b"\xff" * 20):
        model.write_bytes(data)
        with pytest.raises(ModelError):
            load_tokenizer_folder(folder)


def test_text_without_a_token_raises_if_there_is_no_unknown_token(tmp_path):
    def lacking(described):
        vocabulary = described["model"]["vocab"]
        vocabulary["lost"] = vocabulary.pop("Ġ")
        described["model"]["merges"] = []

    tokenizer = load_tokenizer_folder(changed(tmp_path, "bytelevel", lacking))
    with pytest.raises(InvalidRequest, match="cannot express"):
        tokenizer.encode("a b")
