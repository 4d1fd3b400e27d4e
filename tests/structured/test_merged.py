"""JSON schemas that apply at once and go round in a circle, and what is known of the values of a `oneOf`."""

import json
import time
from itertools import product

import jsonschema
import pytest

from stretto import Grammar, InvalidGrammar, InvalidRequest
from stretto.structured import Compiler
from stretto.structured.merged import merge_schemas
from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata

TOKENIZER = load_tokenizer(metadata(bpe(specials=["<|im_end|>"])))
COMPILER = Compiler(TOKENIZER, TOKENIZER.n_vocab)
END = TOKENIZER.specials["<|im_end|>"]


def accepts(schema):
    compiled = COMPILER.compile(Grammar.json(schema))

    def accept(value):
        ids = TOKENIZER.encode(json.dumps(value))
        return compiled.guide().n_valid([*ids, END]) == len(ids) + 1

    return accept


def values(names, leaves, depth):
    """Objects with some of the names, in their order, whose values are leaves or such objects."""
    if depth == 0:
        return list(leaves)
    inner = [*values(names, leaves, depth - 1), ...]
    found = [dict(zip(names, chosen, strict=True)) for chosen in product(inner, repeat=len(names))]
    return [*leaves, *({key: item for key, item in one.items() if item is not ...} for one in found)]


REF = {"$ref": "#/$defs/node"}
NODE = {
    "type": "object",
    "properties": {"next": REF, "value": {"type": "integer"}},
    "additionalProperties": False,
}
CIRCLES = {
    "restricted each round": {
        "$defs": {
            "node": {**NODE, "properties": {"next": {"anyOf": [REF, {"$ref": "#/$defs/last"}]}, "value": {}}},
            "last": {
                "allOf": [REF, {"required": ["value"], "properties": {"value": {"type": "string"}}}],
                "properties": {"next": {"properties": {"value": {"type": "null"}}}},
            },
        },
        "$ref": "#/$defs/last",
    },
    "a pattern beside a name": {
        "$defs": {
            "node": {
                "type": "object",
                "patternProperties": {"^[a-z]+$": {"anyOf": [REF, {"type": ["integer", "null"]}]}},
                "additionalProperties": False,
                "allOf": [{"properties": {"next": {"type": ["object", "null"]}}}],
            }
        },
        **REF,
    },
    "a required property that is restricted": {
        "$defs": {
            "node": {
                "anyOf": [
                    {"type": "integer"},
                    {
                        "type": "object",
                        "properties": {"next": REF, "value": REF},
                        "additionalProperties": False,
                        "allOf": [{"required": ["next"], "properties": {"next": {"minimum": 1}}}],
                    },
                ]
            }
        },
        **REF,
    },
    "branches that a part is common to": {
        "$defs": {
            "node": {
                "oneOf": [
                    {"type": "string", "pattern": "^a+$"},
                    {"type": "object", "properties": {"next": {"type": "string"}}, "required": ["next"],
                     "additionalProperties": False},
                    {"type": "object", "properties": {"next": REF, "value": REF},
                     "additionalProperties": False, "minProperties": 1},
                ]
            }
        },
        **REF,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CIRCLES)
def test_circles_that_are_restricted_accept_what_the_schema_says(name):
    schema = CIRCLES[name]
    accept, oracle = accepts(schema), jsonschema.Draft202012Validator(schema)
    found = values(["next", "value"], [1, None, "a", "b"], 2)
    found += [{"next": value} for value in found[::7]] + [{"value": value} for value in found[::11]]
    right = [value for value in found if oracle.is_valid(value)]
    assert [value for value in found if accept(value)] == right
    assert 1 < len(right) < len(found) - 5


def test_merged_schemas_say_the_same():
    for name, schema in CIRCLES.items():
        if "oneOf" in json.dumps(schema):
            continue
        made = merge_schemas(schema)
        left, right = map(jsonschema.Draft202012Validator, (schema, made))
        for value in values(["next", "value"], [1, None, "a"], 2):
            assert left.is_valid(value) == right.is_valid(value), (name, value)


def test_a_circle_without_an_end_is_refused():
    node = {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#/$defs/node"}}}
    schema = {
        "$ref": "#/$defs/node",
        "$defs": {"node": {**node, "allOf": [{"properties": {"next": {"minProperties": 1}}}]}},
    }
    assert merge_schemas(schema) is False
    with pytest.raises(InvalidRequest, match="no text fits"):
        COMPILER.compile(Grammar.json(schema))


def test_what_becomes_too_large_is_given_up_in_time():
    def choice(i, first):
        targets = [{f"p{k}": {"$ref": f"#/$defs/n{(i * 7 + k) % 20}"}} for k in range(first, first + 3)]
        return {"anyOf": [{"properties": target} for target in targets]}

    definitions = {f"n{i}": {"type": "object", "allOf": [choice(i, j) for j in range(12)]} for i in range(20)}
    start = time.process_time()
    assert merge_schemas({"$defs": definitions, "$ref": "#/$defs/n0"}) is None
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("left", "right"),
    [
        # Closed objects without a name in common, of which one has a property.
        ({"patternProperties": {"^x": True}, "minProperties": 1}, {"patternProperties": {"^[a-w]": True}}),
        ({"properties": {"a": True}, "minProperties": 1}, {"patternProperties": {"^[^a]": True}}),
        # One that must not have all of some names, and one that has them.
        (
            {"not": {"required": ["a", "b"]}, "patternProperties": {"^.$": True}},
            {"properties": {"a": True, "b": True, "c": True}, "required": ["b", "a"]},
        ),
    ],
)
def test_branches_that_exclude_each_other_by_names(left, right):
    closed = {"type": "object", "additionalProperties": False}
    schema = {"oneOf": [{**closed, **left}, {**closed, **right}]}
    accept, oracle = accepts(schema), jsonschema.Draft202012Validator(schema)
    for value in values(["a", "b", "c", "x"], [1], 1):
        assert accept(value) == oracle.is_valid(value), value


def test_choices_of_two_branches_are_compared_each_with_each():
    number = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    text = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "multipleOf": 3}}}
    one, two = {"oneOf": [{"type": "string"}, number]}, {"oneOf": [{"type": "null"}, text]}
    schema = {"oneOf": [one, two]}
    accept, oracle = accepts(schema), jsonschema.Draft202012Validator(schema)
    for value in values(["a", "b"], [1, None, "a"], 1):
        assert accept(value) == oracle.is_valid(value), value


def test_what_is_not_exact_is_never_too_much():
    text = {"type": "string", "pattern": "^a+$"}
    one = {"properties": {"next": {"type": "string"}}, "required": ["next"]}
    many = {"patternProperties": {"^(next|value)$": REF}, "minProperties": 1}
    closed = {"type": "object", "additionalProperties": False}
    schema = {"$defs": {"node": {"oneOf": [text, {**closed, **one}, {**closed, **many}]}}, **REF}
    accept, oracle = accepts(schema), jsonschema.Draft202012Validator(schema)
    found = [value for value in values(["next", "value"], [1, "a", "b"], 2) if accept(value)]
    likely = [{"next": "b"}, {"next": {"next": "b"}}, {"value": "a"}]
    assert all(value in found for value in likely)
    assert all(map(oracle.is_valid, found))


def test_a_refusal_still_names_the_place():
    inner = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 7}}}
    with pytest.raises(InvalidGrammar, match="oneOf"):
        Grammar.json({"oneOf": [inner, {"type": "object", "properties": {"a": {"multipleOf": 5}}}]})
