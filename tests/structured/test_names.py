"""JSON schemas: names of properties in conditions, patterns of several schemas, references to any place."""

import json

import pytest

from stretto import Grammar, InvalidGrammar
from stretto.structured import Compiler
from stretto.structured.atoms import split_patterns
from stretto.structured.normalised import gather_strays
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


CLOSED = {"properties": {"id": {}, "size": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        # A property that matches, and does not fit.
        (
            {"properties": {"xa": {}, "b": {}}, "not": {"patternProperties": {"^x[ab]$": False}}},
            [{"xa": 1, "b": 2, "c": 3}, {"xb": 1}],
            [{"b": 1}, {"c": 1}, {}],
        ),
        (
            {**CLOSED, "not": {"patternProperties": {"e$": {"minimum": 3}}}},
            [{"id": 1, "size": 2}, {"size": 0}],
            [{"id": 1}, {"size": 3}],
        ),
        # What is required stands beside it.
        (
            {"required": ["id"], "maxProperties": 2, "not": {"patternProperties": {"^x": {}, "^y": False}}},
            [{"id": 1, "ya": 2}],
            [{"ya": 2}, {"id": 1}, {"id": 1, "xa": 2}],
        ),
        # A name that a closed object lacks.
        ({"type": "object", "not": CLOSED}, [{"a": 1}, {"size": "x"}], [{"id": 1}, {"size": 1}, {}]),
        (
            {"type": "object", "not": {"patternProperties": {"^x?$": {}}, "additionalProperties": False}},
            [{"a": 1}, {"xa": 1}, {"x": 1, "a": 1}],
            [{"x": 1}, {}],
        ),
        # Names that do not fit.
        ({"propertyNames": {"not": {"pattern": "^x"}}}, [{}, {"a": 1}, 3], [{"xa": 1}]),
        ({"propertyNames": {"minLength": 2, "not": {"const": "xa"}}}, [{"xb": 1}], [{"xa": 1}, {"b": 1}]),
        (
            {"propertyNames": {"not": {"minLength": 3, "pattern": "^x"}}},
            [{"xa": 1}, {"abc": 1}],
            [{"xab": 1}],
        ),
        ({"propertyNames": {"not": {}}}, [{}], [{"a": 1}]),
        (
            {"type": "object", "not": {"propertyNames": {"not": {"enum": ["a", "b"]}}}},
            [{"a": 1, "c": 2}, {"b": 1}],
            [{"c": 1}, {}],
        ),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_names_of_properties_can_be_negated(schema, right, wrong):
    assert accepted(schema, right + wrong) == right


def test_branches_are_closed_by_what_they_choose_from():
    one = {"oneOf": [{**CLOSED, "required": ["id"]}]}
    two = {"anyOf": [{"properties": {"id": {}, "kind": {}}, "additionalProperties": False}, CLOSED]}
    schema = {"type": "object", "oneOf": [one, two]}
    right = [{"id": 1, "kind": 2}, {"size": 3}, {}]
    assert accepted(schema, [*right, {"id": 1}, {"id": 1, "size": 2}, {"a": 1}]) == right


def test_patterns_of_properties_keep_branches_apart():
    mail = {
        "required": ["mail"],
        "properties": {"mail": {"pattern": "^[a-z]{50}$", "type": "string"}},
        "patternProperties": {"^(phone|page)$": {"type": "null"}},
    }
    phone = {
        "required": ["phone"],
        "patternProperties": {"^(mail|page)$": {"type": "null"}, "^ph": {"minimum": 1}},
    }
    schema = {"type": "object", "oneOf": [mail, phone]}
    right = [{"mail": "a" * 50}, {"phone": 3}, {"phone": 3, "mail": None}]
    assert accepted(schema, [*right, {"mail": "a" * 50, "phone": 3}, {"phone": 0}, {}]) == right


def test_patterns_of_schemas_that_apply_at_once_may_overlap():
    schema = {
        "allOf": [
            {"patternProperties": {"^x": {"type": "integer"}}},
            {"anyOf": [{"patternProperties": {"y$": {"minimum": 3}}}, {"required": ["z"]}]},
        ],
        "type": "object",
    }
    right = [{"xy": 3}, {"y": 4.5, "x": 1}, {"z": 1, "xy": 2}]
    assert accepted(schema, [*right, {"xy": 2}, {"xy": 3.5}, {"z": 1, "xy": "a"}]) == right


def test_patterns_that_do_not_overlap_are_left_alone():
    assert split_patterns({"patternProperties": {"^a": {}, "^b": {}}}) is None
    assert (
        split_patterns({"allOf": [{"patternProperties": {r"\ba": {}}}, {"patternProperties": {"a": {}}}]})
        is None
    )


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


def test_a_reference_may_lead_to_any_place():
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/kinds/name"}, "b": {"$ref": "#/kinds/list"}},
        "kinds": {
            "name": {"type": "string", "not": {"const": "x"}},
            "list": {"items": {"$ref": "#/kinds/name"}, "uniqueItems": True, "type": "array"},
        },
    }
    right = [{"a": "y"}, {"b": ["y", "z"]}]
    assert accepted(schema, [*right, {"a": "x"}, {"b": ["x"]}, {"b": ["y", "y"]}]) == right


def test_a_place_may_have_characters_that_references_escape():
    schema = {"$ref": "#/my%20kinds/a<b>", "my kinds": {"a<b>": {"not": {"type": "string"}}}}
    assert accepted(schema, [1, "x"]) == [1]


def test_values_that_look_like_references_stay():
    value = {"$ref": "#/kinds/a"}
    schema = {"const": value, "anyOf": [{"$ref": "#/kinds/a"}, True], "kinds": {"a": {"not": {}}}}
    assert gather_strays(schema)["const"] == value
    assert gather_strays(schema)["anyOf"][0] == {"$ref": "#/$defs/kinds~1a"}
    assert accepted(schema, [value, {}]) == [value]


def test_a_refusal_at_another_place_names_it():
    schema = {"$ref": "#/kinds/a", "kinds": {"a": {"not": {"multipleOf": 2}}}}
    with pytest.raises(InvalidGrammar, match=r"#/\$defs/kinds~1a/not/multipleOf"):
        Grammar.json(schema)
