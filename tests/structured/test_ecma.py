"""Patterns of JSON schemas are read as ECMA 262 says, not as Rust's `regex` does."""

import json

import pytest

from stretto import Grammar, InvalidGrammar
from stretto.structured import Compiler
from stretto.structured.checks import check_schema
from stretto.structured.ecma import ecma_pattern
from stretto.structured.regular import matches
from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata

TOKENIZER = load_tokenizer(metadata(bpe(specials=["<|im_end|>"])))
COMPILER = Compiler(TOKENIZER, TOKENIZER.n_vocab)
END = TOKENIZER.specials["<|im_end|>"]
PUNCTUATION = [chr(code) for code in range(32, 127) if not chr(code).isalnum()]


def accepts(pattern, text):
    guide = COMPILER.compile(Grammar.json({"type": "string", "pattern": pattern})).guide()
    ids = TOKENIZER.encode(json.dumps(text, ensure_ascii=False))
    return guide.n_valid([*ids, END]) == len(ids) + 1


@pytest.mark.parametrize("character", [*PUNCTUATION, "é", "\n"])
def test_an_escaped_character_without_a_meaning_stands_for_itself(character):
    for pattern in (f"^\\{character}$", f"^[\\{character}]$", f"^(?!a)\\{character}$"):
        assert accepts(pattern, character)
        assert not any(
            accepts(pattern, other) for other in ("", "a", "b\\", f"\\{character}b", character * 2)
        )


@pytest.mark.parametrize("character", PUNCTUATION)
def test_a_class_has_the_characters_that_it_names(character):
    if character in "\\]^-":
        return  # with a meaning of their own
    texts = ["a", "b", "c", "~", "&", "[", ":", "-", "<"]
    assert [one for one in texts if accepts(f"^[a{character}{character}b]$", one)] == [
        one for one in texts if one in ("a", "b", character)
    ]


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^.+\<.+@.+\..+\>$", ["A B <a@b.c>"], ["A B a@b.c"]),
        (r"^[[]$", ["["], ["]", ""]),
        (r"^[[:alpha:]]$", ["a]", ":]"], ["a", "b"]),
        (r"^[^]$", ["a", "\n", "é"], ["", "ab"]),
        (r"^[--/]$", ["-", ".", "/"], [",", "0"]),
        (r"^[+--]$", ["+", ",", "-"], ["*", "."]),
        (r"^[\d-x]$", ["5", "-", "x"], ["a", "d"]),
        (r"^[\d--x]$", ["5", "-", "x"], ["a", "."]),
        (r"^[\s-x]$", [" ", "-", "x", "\ufeff"], ["a", "\x85"]),
        (r"^[\Sa]$", ["é", "\x85", "a"], [" ", "\ufeff"]),
        (r"^\cA\x01\u0001[\b]\0$", ["\x01\x01\x01\x08\x00"], ["cA\x01\x01b0"]),
        (r"^\uD83D\uDE00\u{1F600}$", ["\U0001f600\U0001f600"], ["\U0001f600"]),
    ],
)
def test_patterns_are_those_of_ecma(pattern, right, wrong):
    assert [one for one in [*right, *wrong] if accepts(pattern, one)] == right
    assert ecma_pattern(ecma_pattern(pattern)) == ecma_pattern(pattern)
    # The same where they are taken apart.
    assert [one for one in [*right, *wrong] if matches(ecma_pattern(pattern), one, "#")] == right


@pytest.mark.parametrize("escape", [*"AzZaGhHQEeKRXUNgijlmoqyCFIJLMOTVY19kcux", "p", "x{61}", "pL", "01"])
def test_escapes_of_other_dialects_are_refused(escape):
    for schema in (
        {"pattern": f"^\\{escape}$"},
        {"patternProperties": {f"^\\{escape}$": {}}},
        {"$ref": "#/kinds/a", "kinds": {"a": {"pattern": f"[\\{escape}]"}}},
    ):
        with pytest.raises(InvalidGrammar, match=r"#/.*attern.*ECMA"):
            Grammar.json(schema)


def test_values_and_properties_may_be_called_patterns():
    schema = {"properties": {"pattern": {"const": {"pattern": r"\A"}}, "enum": {"pattern": r"^\<$"}}}
    made = json.loads(check_schema(schema))
    assert made["properties"]["pattern"] == schema["properties"]["pattern"]
    assert made["properties"]["enum"] == {"pattern": "^<$"}
