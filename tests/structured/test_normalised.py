"""References by `$id` and by anchors, counts that are written as floats, white space in patterns."""

import json

import jsonschema
import pytest

from stretto import Grammar, InvalidGrammar, InvalidRequest
from stretto.testing import mock_llm

DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
NUMBER = {"type": "integer"}
ROOT = {"$id": "https://x.org/root"}
NAMED = {"b": {"$anchor": "n", **NUMBER}}
ITEMS = {"items": {"$dynamicRef": "#kind"}, "$defs": {"kind": {"$dynamicAnchor": "kind", **NUMBER}}}
SCHEMAS = [
    {"$ref": "#here", "$defs": {"a": {"$anchor": "here", **NUMBER}}},
    {**ROOT, "$ref": "/part", "$defs": {"a": {"$id": "part", **NUMBER}}},
    {
        "$id": "https://x.org/root",
        "properties": {"a": {"$ref": "https://x.org/root#/$defs/b"}},
        "$defs": {"b": NUMBER},
    },
    {
        "$id": "https://x.org/a/",
        "$defs": {"b": {"$id": "b/", "$defs": {"c": NUMBER}, "$ref": "#/$defs/c"}},
        "$ref": "b/",
    },
    {
        "$id": "urn:x:1",
        "properties": {"a": {"$ref": "urn:x:1#n"}},
        "$defs": {"b": {"$anchor": "n", **NUMBER}},
    },
    {"$ref": "one#n", "$defs": {"b": {"$id": "one", "$defs": {"c": {"$anchor": "n", **NUMBER}}}}},
    {"type": "array", **ITEMS},
    {"$ref": "#/then", "if": False, "then": NUMBER},
    {"allOf": [{"$ref": "#/not/$defs/a"}], "not": {"$defs": {"a": NUMBER}, "const": 7}},
    {"$ref": "#/$defs/Partial<A|B, 1>", "$defs": {"Partial<A|B, 1>": NUMBER}},
    {"oneOf": [{"$ref": "#/$defs/a b"}, {"type": "string"}], "$defs": {"a b": NUMBER}},
    {"properties": {"a": {"$id": "x", **NUMBER}, "b": {"$id": "x", "type": "string"}}},
    {"type": "string", "maxLength": 2.0},
    {"type": "array", "minItems": 1.0, "maxItems": 2.0},
    {"type": "string", "pattern": r"^\S$"},
    {"type": "string", "pattern": r"^[\s]$"},
    {"type": "string", "pattern": r"^[^\s]$"},
    {"type": "object", "patternProperties": {r"^\s": NUMBER}, "additionalProperties": False},
]
VALUES = [1, "a", "ab", "abc", [], [1], ["a"], [1, 2, 3], {}, {"a": 1}, {"a": "x"}, {" a": 1}, None, 7, " "]


@pytest.fixture(scope="module")
def accepts():
    with mock_llm("x") as llm:

        def accepts(schema, value):
            ids = llm.tokenizer.encode(json.dumps(value, ensure_ascii=False))
            end = min(llm.tokenizer.end_ids)
            return llm.guide(Grammar.json(schema)).n_valid([*ids, end]) == len(ids) + 1

        yield accepts


@pytest.mark.parametrize("schema", [{**DRAFT, **schema} for schema in SCHEMAS], ids=str)
def test_schemas_mean_what_the_draft_says(accepts, schema):
    checker = jsonschema.Draft202012Validator(schema)
    for value in VALUES:
        assert accepts(schema, value) == checker.is_valid(value), value


@pytest.mark.parametrize(
    ("dialect", "fitting"),
    [
        ("http://json-schema.org/draft-07/schema#", [[1], [1, 2]]),
        ("https://json-schema.org/draft/2019-09/schema", [[1], [1, 2]]),
        ("https://json-schema.org/draft/2020-12/schema", [["a"], ["a", 1]]),
    ],
)
def test_older_drafts_do_not_know_prefix_items(accepts, dialect, fitting):
    schema = {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}
    schema["$schema"] = dialect
    checker = jsonschema.validators.validator_for(schema)(schema)
    for value in ([1], [1, 2], ["a"], ["a", 1]):
        assert checker.is_valid(value) is (value in fitting)
        assert accepts(schema, value) is (value in fitting), value


def test_white_space_is_that_of_ecma_262(accepts):
    for pattern, allowed, other in ((r"^\s$", "\ufeff", "\x85"), (r"^\S$", "\x85", "\ufeff")):
        schema = {"type": "string", "pattern": pattern}
        assert accepts(schema, allowed)
        assert not accepts(schema, other)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "elsewhere.json"}, "#/$ref"),
        (
            {"$ref": "a", "$defs": {"a": {"$id": "a", **ITEMS}, "b": {"$id": "b", **ITEMS}}},
            "#/$defs/a/items/$dynamicRef",
        ),
        ({"allOf": [{"$id": "a", "$ref": "b"}]}, "#/allOf/0/$ref"),
        ({"$ref": "x", "$defs": {"a": {"$id": "x", **NUMBER}, "b": {"$id": "x"}}}, "#/$ref"),
        ({"$defs": {"a": {"$id": "a", "other": {"$ref": "#"}}}}, "#/$defs/a/other"),
    ],
)
def test_refusals_name_the_place(accepts, schema, place):
    with pytest.raises(InvalidRequest, match=place.replace("$", r"\$")):
        accepts(schema, 1)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$id": "http://[", "properties": {"a": {"$ref": "x"}}}, "is no address: Invalid IPv6 URL"),
        ({"$id": "http://a/", "properties": {"a": {"$ref": "http://["}}}, "is no address: Invalid IPv6 URL"),
        ({"$dynamicRef": "http://["}, "is no address: Invalid IPv6 URL"),
        ({"$defs": 5, "$ref": "#/not", "not": {}}, "at #/\\$defs: it has to be an object"),
    ],
)
def test_what_is_no_address_and_no_object_is_refused_by_name(schema, reason):
    with pytest.raises(InvalidGrammar, match=reason):
        Grammar.json(schema)
