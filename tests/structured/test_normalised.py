"""References by `$id` and by anchors, counts that are written as floats, white space in patterns."""

import json

import jsonschema
import pytest
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

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


LIST = {
    "$id": "https://x.org/list",
    "type": "array",
    "items": {"$dynamicRef": "#kind"},
    "$defs": {"any": {"$dynamicAnchor": "kind"}},
}


def typed(name, kind):
    """A list of one kind, by a dynamic reference that leads out of the general list."""
    return {
        "$id": f"https://x.org/{name}",
        "$ref": "list",
        "$defs": {"kind": {"$dynamicAnchor": "kind", "type": kind}},
    }


DYNAMIC = [
    {**typed("numbers", "integer"), "$defs": {**typed("numbers", "integer")["$defs"], "list": LIST}},
    {  # the same list means two things
        **DRAFT,
        "properties": {"a": {"$ref": "https://x.org/numbers"}, "b": {"$ref": "https://x.org/texts"}},
        "$defs": {"n": typed("numbers", "integer"), "t": typed("texts", "string"), "list": LIST},
        "type": "object",
    },
    {  # a tree whose nodes are closed by a schema around it
        "$id": "https://x.org/closed",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {
            "tree": {
                "$id": "tree",
                "$dynamicAnchor": "node",
                "type": "object",
                "properties": {"a": True, "next": {"$dynamicRef": "#node"}},
            }
        },
    },
    {"contains": {"type": "string"}, "prefixItems": [NUMBER], "unevaluatedItems": False, "type": "array"},
    {"contains": {"type": "string"}, "minContains": 0, "unevaluatedItems": NUMBER, "type": "array"},
    {
        "type": "object",
        "unevaluatedProperties": False,
        "oneOf": [
            {
                "oneOf": [
                    {"required": ["a"], "properties": {"a": True}},
                    {"required": ["c"], "unevaluatedProperties": True},
                ]
            },
            {"required": ["b"], "properties": {"b": True}},
        ],
    },
]
DEEP = [
    *VALUES,
    {"a": [1], "b": ["x"]},
    {"a": ["x"], "b": ["x"]},
    {"a": 1, "next": {"a": 1}},
    {"a": 1, "next": {"b": 1}},
    {"next": {"next": {"c": 1}}},
    [1, "x", "y"],
    [1, "x", 2],
    ["x", 2],
    [None],
    {"a": 1, "c": 2},
    {"c": 1, "d": 2},
    {"b": 1, "x": 2},
    {"b": 1},
]


@pytest.mark.parametrize("schema", DYNAMIC)
def test_dynamic_references_and_what_is_not_evaluated(accepts, schema):
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert [accepts(schema, value) for value in DEEP] == [valid(value) for value in DEEP]


DOCUMENTS = {
    "https://x.org/number": NUMBER,
    "https://x.org/folder/pair": {
        "properties": {"a": {"$ref": "../number"}, "b": {"$ref": "#/$defs/c"}},
        "$defs": {"c": NUMBER},
    },
    "https://x.org/renamed": {"$id": "https://y.org/name", "$anchor": "here", **NUMBER},
    "https://x.org/round": {"properties": {"a": {"$ref": "round"}}, "type": "object"},
    "https://x.org/text": {"$anchor": "t", "type": "string"},
}
BESIDE = [
    {"$ref": "https://x.org/number"},
    {"$ref": "https://x.org/folder/pair", "required": ["a"]},
    {"$id": "https://x.org/folder/own", "properties": {"a": {"$ref": "pair#/$defs/c"}}},
    {"$ref": "https://y.org/name#here"},
    {"$ref": "https://x.org/round"},
    {"anyOf": [{"$ref": "https://x.org/text#t"}, {"$ref": "https://x.org/number"}]},
]


@pytest.mark.parametrize("schema", BESIDE)
def test_documents_beside_a_schema_are_referred_to(schema):
    resources = [(uri, Resource.from_contents(document, DRAFT202012)) for uri, document in DOCUMENTS.items()]
    registry = Registry().with_resources(resources).crawl()
    valid = jsonschema.Draft202012Validator(schema, registry=registry).is_valid
    with mock_llm("x") as llm:
        guide = llm.guide(Grammar.json(schema, documents=DOCUMENTS))
        end = min(llm.tokenizer.end_ids)

        def accepts(value):
            ids = llm.tokenizer.encode(json.dumps(value))
            return guide.n_valid([*ids, end]) == len(ids) + 1

        assert [accepts(value) for value in DEEP] == [valid(value) for value in DEEP]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ({}, "nothing is fetched"),
        ({"https://x.org/other": NUMBER}, "nothing is fetched"),
        ({"https://x.org/number": 5}, "must be a dict"),
        ([NUMBER], "must be a dict of schemas"),
        ({"https://x.org/number": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "another draft"),
        ({"https://x.org/number": {"items": {3: True}}}, "keys are texts"),
        ({"https://x.org/number": {"const": "x" * 300_000}}, "may have"),
    ],
)
def test_documents_are_checked_and_never_fetched(documents, message):
    with pytest.raises(InvalidGrammar, match=message):
        Grammar.json({**DRAFT, "$ref": "https://x.org/number"}, documents=documents)
