"""Opposites of JSON schemas, compared with the jsonschema package over many small values."""

import json
from itertools import combinations, permutations, product

import jsonschema
import pytest

from stretto import Grammar, InvalidGrammar
from stretto.structured import Compiler
from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata

TOKENIZER = load_tokenizer(metadata(bpe(specials=["<|im_end|>"])))
COMPILER = Compiler(TOKENIZER, TOKENIZER.n_vocab)
END = TOKENIZER.specials["<|im_end|>"]


def accepts(guide, text):
    ids = TOKENIZER.encode(text)
    return guide.fork().n_valid([*ids, END]) == len(ids) + 1


def orders(value):
    """The value, an object with its properties in any order."""
    return [dict(pairs) for pairs in permutations(value.items())] if isinstance(value, dict) else [value]


def check(schema, values):
    """Nothing is accepted that does not fit, and what fits is accepted in one of its orders."""
    guide = COMPILER.compile(Grammar.json(schema)).guide()
    validator = jsonschema.Draft202012Validator(schema)
    n_fitting = 0
    for value in values:
        fits = validator.is_valid(value)
        found = [accepts(guide, json.dumps(one)) for one in orders(value)]
        assert any(found) == fits, (schema, value)
        n_fitting += fits
    assert 0 < n_fitting < len(values), schema


NAMES = ["a", "aa", "aaa", "b", "id", "x"]
OBJECTS = [
    dict(zip(names, values, strict=True))
    for n in range(4)
    for names in combinations(NAMES, n)
    for values in product([1, "x"], repeat=n)
]


@pytest.mark.parametrize(
    "schema",
    [
        # Few names match, or a property is required that does, or all names are known.
        {"not": {"patternProperties": {"^a{1,2}$": {"type": "integer"}}}},
        {"properties": {"a": {}, "x": {}}, "not": {"patternProperties": {"^[abx]$": {"type": "integer"}}}},
        {"required": ["aa"], "not": {"patternProperties": {"^a": False}}},
        {
            "properties": {"a": {}, "b": {}, "x": {}},
            "additionalProperties": False,
            "not": {"patternProperties": {"a*": {"type": "integer"}, "x": {"minimum": 2}}},
        },
        {
            "enum": [{"a": "x", "aa": 1}, {"b": 1}, {"id": "x", "x": 1}, {"a": 1}],
            "not": {"patternProperties": {"a*": {"type": "integer"}}},
        },
        # Any value is wrong: few names do not match, or there is one other name.
        {"not": {"patternProperties": {"a*": False}}},
        {"not": {"patternProperties": {"a": False}, "additionalProperties": False}},
        {"not": {"patternProperties": {"^a$": {}, "^b$": {}}, "additionalProperties": False}},
        {"not": {"properties": {"a": {"type": "integer"}, "id": {}}, "additionalProperties": False}},
        {"required": ["id"], "not": {"properties": {"a": {}, "id": {}}, "additionalProperties": False}},
        {
            "required": ["id"],
            "properties": {"id": {}},
            "maxProperties": 2,
            "not": {"patternProperties": {"^a": {"type": "integer"}}},
        },
        {"maxProperties": 1, "not": {"propertyNames": {"pattern": "^a"}}},
        {"not": {"propertyNames": {"enum": ["a", "b", "x"]}}},
        {"if": {"patternProperties": {"^[ab]$": {"type": "integer"}}}, "then": {"required": ["a"]}},
    ],
    ids=lambda schema: json.dumps(schema)[:80],
)
def test_an_object_with_a_property_that_does_not_fit(schema):
    check({"type": "object", **schema}, OBJECTS)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"not": {"patternProperties": {"a*": {"type": "integer"}}}}, "#/not/patternProperties"),
        ({"not": {"patternProperties": {"^x": False}}}, "#/not/patternProperties"),
        ({"not": {"propertyNames": {"pattern": "^x"}}}, "#/not/propertyNames"),
        ({"not": {"additionalProperties": {"type": "integer"}}}, "#/not/additionalProperties"),
        (
            {"not": {"properties": {name: {} for name in "abcdefg"}, "additionalProperties": False}},
            "#/not/additionalProperties",
        ),
    ],
)
def test_one_of_endlessly_many_names_cannot_be_asked_for(schema, place):
    with pytest.raises(InvalidGrammar, match="matches a pattern") as caught:
        COMPILER.compile(Grammar.json({"type": "object", **schema}))
    assert place in str(caught.value)
