"""Ranges of numbers that llguidance does not keep are refused, and all others are exact."""

import json
from itertools import product

import pytest

from stretto import Grammar, InvalidGrammar
from stretto.structured import Compiler
from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata

TOKENIZER = load_tokenizer(metadata(bpe(specials=["<|im_end|>"])))
COMPILER = Compiler(TOKENIZER, TOKENIZER.n_vocab)
END = TOKENIZER.specials["<|im_end|>"]
BOUNDS = [-1.5, -1, -0.5, 0, 0.5, 1, 1.5]
VALUES = [-2, -1.5, -1.25, -1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2]
LOWS = {"minimum": float.__ge__, "exclusiveMinimum": float.__gt__}
HIGHS = {"maximum": float.__le__, "exclusiveMaximum": float.__lt__}


def accepted(grammar):
    """The values that fit."""
    guide = COMPILER.compile(grammar).guide()
    texts = {value: TOKENIZER.encode(json.dumps(value)) for value in VALUES}
    return [value for value, ids in texts.items() if guide.fork().n_valid([*ids, END]) == len(ids) + 1]


@pytest.mark.parametrize(("low", "high"), list(product(LOWS, HIGHS)))
def test_a_range_is_kept_or_refused(low, high):
    n_refused = 0
    for least, most in product(BOUNDS, BOUNDS):
        if least >= most:
            continue
        try:
            grammar = Grammar.json({"type": "number", low: least, high: most})
        except InvalidGrammar:
            n_refused += 1
            continue
        fits = [
            value for value in VALUES if LOWS[low](float(value), least) and HIGHS[high](float(value), most)
        ]
        assert accepted(grammar) == fits, (least, most)
    assert n_refused == 2 * (low == "exclusiveMinimum") + (high == "exclusiveMaximum")


@pytest.mark.parametrize(
    "schema",
    [
        {"exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "number", "allOf": [{"exclusiveMinimum": 0}, {"exclusiveMaximum": 0.5}]},
        {"allOf": [{"$ref": "#/$defs/a"}], "maximum": 0.5, "$defs": {"a": {"exclusiveMinimum": 0}}},
        {"properties": {"p": {"type": ["null", "number"], "exclusiveMaximum": -1, "minimum": -1.5}}},
        {"type": "number", "not": {"enum": [0, 0.5]}},
    ],
)
def test_the_refusal_names_the_place(schema):
    with pytest.raises(InvalidGrammar, match=r"at #.*cannot be kept exactly; use an integer"):
        Grammar.json(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"properties": {"a": {"exclusiveMinimum": 0}, "b": {"maximum": 0.5}}},
        {"const": {"exclusiveMinimum": 0, "maximum": 0.5}},
    ],
)
def test_others_are_not_refused(schema):
    assert Grammar.json(schema)


@pytest.mark.parametrize(
    "wrong", [{"allOf": 5}, {"allOf": [{"allOf": {"a": 1}}]}, {"type": 5}, {"minimum": "a"}]
)
def test_keywords_of_a_wrong_kind_are_refused_by_the_parser(wrong):
    with pytest.raises(InvalidGrammar):
        COMPILER.compile(Grammar.json({"exclusiveMinimum": 0, "maximum": 3, **wrong}))
