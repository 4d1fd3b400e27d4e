"""Patterns of JSON schemas are read as ECMA 262 says, not as Rust's `regex` does."""

import json
import re
from itertools import product

import pytest

from stretto import Grammar, InvalidGrammar
from stretto.structured import Compiler
from stretto.structured.checks import check_schema
from stretto.structured.patterns import ecma_pattern
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


@pytest.mark.parametrize(
    "pattern",
    [
        r'^[^"]*$',
        r"^[^\\]*$",
        r'^[^\\/:*?"<>|]+$',
        r"^[\x00-\x1f!#a]*$",
        r"^(?:[\x00-\x1e!#-~]|\x1f|\u001F)*$",
        r'^[^\n"]*$',
        r'^(?:[^"\\]|\\.)*$',
        r'^[^\p{L}"]*$',
        r"^\p{Cc}*$",
        r'^(?!a)[^"]*$',
    ],
)
def test_a_quote_or_a_backslash_that_is_excluded_is_not_let_through(pattern):
    text = pattern.replace("$", r"\Z").replace(r"\p{L}", "a-zA-Z").replace(r"\p{Cc}", r"[\x00-\x1f\x7f]")
    python = re.compile(text)
    texts = ["".join(found) for n in range(4) for found in product('"\\a!\n\x01', repeat=n)]
    assert [one for one in texts if accepts(pattern, one)] == [one for one in texts if python.search(one)]
    # The same as a name of properties.
    schema = {"patternProperties": {pattern: {}}, "additionalProperties": False}
    guide = COMPILER.compile(Grammar.json(schema)).guide()
    for one in texts:
        ids = [*TOKENIZER.encode(json.dumps({one: 1})), END]
        assert (guide.fork().n_valid(ids) == len(ids)) == (python.search(one) is not None), one


def test_other_names_and_values_have_no_excluded_quotes():
    schema = {"not": {"enum": ['a"b', "\\"]}, "type": "string"}
    guide = COMPILER.compile(Grammar.json(schema)).guide()
    for text in ['a"b', "\\", "a", 'a"', "a\\b", '"']:
        ids = [*TOKENIZER.encode(json.dumps(text)), END]
        assert (guide.fork().n_valid(ids) == len(ids)) == (text not in schema["not"]["enum"]), text
    schema = {"properties": {'"': {"type": "null"}}, "additionalProperties": {"type": "integer"}}
    guide = COMPILER.compile(Grammar.json(schema)).guide()
    for value, fits in [({'"': None}, True), ({'"': 1}, False), ({'""': 1}, True), ({"a": None}, False)]:
        ids = [*TOKENIZER.encode(json.dumps(value)), END]
        assert (guide.fork().n_valid(ids) == len(ids)) == fits, value
