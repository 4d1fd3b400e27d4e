"""JSON schemas: names of properties in conditions."""

import json

import pytest

from stretto import Grammar
from stretto.structured import Compiler
from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata

TOKENIZER = load_tokenizer(metadata(bpe(specials=["<|im_end|>"])))
COMPILER = Compiler(TOKENIZER, TOKENIZER.n_vocab)
END = TOKENIZER.specials["<|im_end|>"]


def accepted(schema, values):
    """The values whose whole text, as `json.dumps` writes it, fits a schema."""
    compiled = COMPILER.compile(Grammar.json(schema))
    found = []
    for value in values:
        ids = TOKENIZER.encode(json.dumps(value))
        if compiled.guide().n_valid([*ids, END]) == len(ids) + 1:
            found.append(value)
    return found


NUMBERED = {"properties": {"a": {}, "kind": {"type": "integer"}, "b": {}}}


@pytest.mark.parametrize(
    "condition",
    [
        {"not": {"properties": {"kind": {"const": 3}}}},
        {"if": {"properties": {"kind": {"const": 1}}, "required": ["kind"]}, "then": {"required": ["a"]}},
        {"oneOf": [{"properties": {"kind": {"maximum": 3}}, "required": ["kind"]}, {"type": "null"}]},
        {"dependentSchemas": {"b": {"properties": {"b": {"type": "string"}, "kind": {"const": 1}}}}},
        {"minProperties": 2, "additionalProperties": False},
    ],
)
def test_a_condition_leaves_properties_in_their_order(condition):
    value = {"a": 0, "kind": 1, "b": "x"}
    moved = {"kind": 1, "a": 0, "b": "x"}
    assert accepted({**NUMBERED, **condition}, [value, moved]) == [value]
