"""JSON schemas: every value that is accepted fits, and those that cannot be followed are refused by place."""

import json
import random
from collections import Counter

import jsonschema
import pytest
from jsonschema.validators import validator_for

from random_schemas import WORDS
from schema_cases import SCHEMAS, VALUES
from stretto import Grammar, InvalidGrammar
from stretto.structured import Compiler
from stretto.structured.checks import check_schema
from stretto.structured.rewrite import SPECIAL
from stretto.text.loading import load_tokenizer
from vocabularies import bpe, metadata

TOKENIZER = load_tokenizer(metadata(bpe(specials=["<|im_end|>"])))
COMPILER = Compiler(TOKENIZER, TOKENIZER.n_vocab)
END = TOKENIZER.specials["<|im_end|>"]


def accepts(grammar, value):
    """Whether the whole text of a value, as `json.dumps` writes it, fits a grammar."""
    ids = TOKENIZER.encode(json.dumps(value))
    return COMPILER.compile(grammar).guide().n_valid([*ids, END]) == len(ids) + 1


def validator(schema):
    return validator_for(schema, default=jsonschema.Draft202012Validator)(schema)


def outcomes(schema, values):
    """For each value: "right", "permissive" or "strict"; for all of them "refused" where the schema is."""
    try:
        grammar = Grammar.json(schema)
        COMPILER.compile(grammar)
    except InvalidGrammar:
        return ["refused"] * len(values)
    found = []
    for value in values:
        accepted, fits = accepts(grammar, value), validator(schema).is_valid(value)
        found.append("right" if accepted == fits else "permissive" if accepted else "strict")
    return found


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_no_value_is_accepted_that_does_not_fit(schema):
    assert "permissive" not in outcomes(schema, VALUES)


def test_nearly_all_values_that_fit_are_accepted_and_no_schema_is_refused():
    counts = Counter(outcome for schema in SCHEMAS for outcome in outcomes(schema, VALUES))
    # Too strict: keys in another order than the schema's, and numbers where "integer" is excluded.
    assert counts["strict"] <= 10
    assert counts["refused"] == 0
    assert counts["permissive"] == 0


REFUSED = [
    ({"properties": {"a": {"not": {"pattern": r"(x)\1"}}}}, "#/properties/a/not/pattern"),
    ({"not": {"pattern": "(a|b).{9}c"}}, "#/not/pattern"),
    ({"not": {"pattern": "^(a|b|c){200}d"}}, "#/not/pattern"),
    ({"oneOf": [{"pattern": r"\ba"}, {"pattern": "b"}]}, "#/oneOf/0/pattern"),
    ({"not": {"patternProperties": {r"\bx": False}}}, "#/not/patternProperties"),
    ({"not": {"dependencies": {"a": ["b"]}}}, "#/not/dependencies"),
    ({"$dynamicRef": "#node"}, "#/$dynamicRef"),
    ({"items": {"propertyNames": {"not": {"oneOf": [True]}}}}, "#/items/propertyNames/not"),
    ({"if": {"multipleOf": 2}, "then": {"minimum": 2}}, "#/if/multipleOf"),
    ({"properties": {name: {} for name in "abcdefghij"}, "minProperties": 5}, "#/minProperties"),
    ({"properties": {"a": {"$id": "http://x.org/a", "not": {"$ref": "#/x"}}}}, "#/properties/a/not"),
    ({"properties": {"a": {"oneOf": {}, "not": 5}}}, "#/properties/a"),
    ({"properties": {"a": {"required": 3, "minProperties": 1, "properties": {"b": {}}}}}, "#/properties/a"),
    ({"patternProperties": {"^a": {}, r"\bb": {}}}, "#/patternProperties"),
    ({"patternProperties": {f"{letter}$|x": {} for letter in "abcde"}}, "#/patternProperties"),
    ({"properties": {"a": {"pattern": "(a(?!b))*"}}}, "#/properties/a/pattern"),
    ({"properties": {"a": {"pattern": "(?=x)y"}}}, "#/properties/a/pattern"),
    ({"properties": {"a": {"$ref": "#/nowhere"}, "b": {"not": {}}}}, "#/properties/a/$ref"),
]


@pytest.mark.parametrize(("schema", "place"), REFUSED, ids=lambda value: str(value)[:50])
def test_a_refusal_names_the_place(schema, place):
    with pytest.raises(InvalidGrammar) as caught:
        COMPILER.compile(Grammar.json(schema))
    assert place in str(caught.value)


@pytest.mark.parametrize(
    "schema", [{"not": {}}, {"not": True}, {"not": {"pattern": ""}}, {"oneOf": [True, True]}]
)
def test_a_schema_that_nothing_fits_is_refused(schema):
    with pytest.raises(InvalidGrammar):
        COMPILER.compile(Grammar.json(schema))


def test_an_id_that_nothing_refers_to_is_no_obstacle():
    schema = {"properties": {"a": {"$id": "/properties/a", "type": "string", "format": "color"}}}
    assert accepts(Grammar.json(schema), {"a": "x"})
    assert not accepts(Grammar.json(schema), {"a": 1})


def test_formats_that_no_text_shares_keep_branches_apart():
    grammar = Grammar.json({"oneOf": [{"format": "date"}, {"format": "date-time"}], "type": "string"})
    assert accepts(grammar, "2024-02-29")
    assert accepts(grammar, "2024-02-29T12:00:00Z")
    assert not accepts(grammar, "x")
    # A date is a host name too.
    grammar = Grammar.json({"oneOf": [{"format": "date"}, {"format": "hostname"}], "type": "string"})
    assert accepts(grammar, "example.org")
    assert not accepts(grammar, "2024-02-29")


NODE = {
    "type": "object",
    "required": ["kind"],
    "oneOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/list"}],
    "$defs": {
        "leaf": {"properties": {"kind": {"const": "leaf"}}},
        "list": {"properties": {"kind": {"const": "list"}, "nodes": {"items": {"$ref": "#"}}}},
    },
}


@pytest.mark.parametrize(
    "schema",
    [
        NODE,
        {
            "allOf": [{"$ref": "#/$defs/a"}],
            "required": ["foo"],
            "$defs": {"a": {"properties": {"foo": {"$ref": "#"}}}},
        },
    ],
)
def test_references_in_a_circle_may_have_keywords_beside_them(schema):
    nodes = [{"kind": "leaf"}, {"kind": "list", "nodes": [{"kind": "leaf"}, {"kind": "list"}]}, {"kind": "x"}]
    nodes += [{"kind": "list", "nodes": [{"kind": "x"}]}, {"foo": 1}, {"foo": {}}, {"foo": {"foo": 2}}, {}, 1]
    assert set(outcomes(schema, nodes)) == {"right"}


def test_a_circle_may_go_through_what_is_merged():
    both = {"allOf": [{"$ref": "#/$defs/node"}, {"$ref": "#/$defs/named"}]}
    named = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
    schema = {**both, "$defs": {"node": {"type": "object", "properties": {"next": both}}, "named": named}}
    nodes = [{"name": "a"}, {"next": {"name": "b"}, "name": "a"}, {"next": {}, "name": "a"}, {"next": 1}, {}]
    assert set(outcomes(schema, nodes)) == {"right"}


def test_a_schema_that_is_only_itself_is_refused():
    with pytest.raises(InvalidGrammar):
        COMPILER.compile(Grammar.json({"$ref": "#", "type": "object"}))


def test_a_reference_into_a_member_sees_it_as_it_stands():
    branches = [{"properties": {"foo": {"const": 1}}}, {"properties": {"foo": {"const": 2}}}]
    schema = {"allOf": [{"type": "object", "oneOf": branches}], "required": ["foo"]}
    values = [{"foo": 1, "bar": {}}, {"foo": 1, "bar": {"foo": 2}}, {"foo": 2}, {"foo": 3}, {}]
    assert set(outcomes({**schema, "properties": {"bar": {"$ref": "#/allOf/0"}}}, values)) == {"right"}


def test_an_optional_property_of_another_branch_has_to_fit_there():
    branches = [{"required": [name], "properties": {name: {}}} for name in ("foo", "bar")]
    branches[1]["properties"]["quux"] = {"multipleOf": 2}
    values = [
        {"foo": 1},
        {"bar": 1},
        {"foo": 1, "bar": 1},
        {"foo": 1, "quux": 3},
        {"bar": 1, "quux": 3},
        {},
    ]
    schema = {"type": "object", "oneOf": branches}
    assert set(outcomes(schema, values)) == {"right"}
    assert outcomes(schema, [{"foo": 1, "bar": 2, "quux": 3}]) == ["strict"]
    branches[0]["properties"]["quux"] = {"multipleOf": 3}
    found = outcomes(schema, values)
    assert found[:3] == ["right"] * 3
    assert set(found) <= {"right", "strict"}


def test_a_property_of_another_branch_may_be_left_out():
    reference = {"type": "object", "required": ["$ref"], "properties": {"$ref": {"format": "uri-reference"}}}
    schema = {"oneOf": [reference, {"type": "object"}]}
    assert accepts(Grammar.json(schema), {"a": 1})
    assert not accepts(Grammar.json(schema), {"$ref": "#/a"})


def test_tools_keep_schemas_that_only_a_grammar_would_refuse():
    odd = {"type": "array", "items": {"type": "string", "pattern": "(?=a)"}, "uniqueItems": True}
    assert json.loads(check_schema(odd)) == odd


def test_objects_are_closed_on_request():
    schema = {
        "properties": {"a": {"properties": {"b": {}}}, "c": {"additionalProperties": True, "properties": {}}},
        "anyOf": [{"required": ["a"]}, {"required": ["c"]}],
    }
    grammar = Grammar.json(schema, closed=True)
    assert accepts(grammar, {"a": {"b": 1}, "c": {"x": 1}})
    assert not accepts(grammar, {"a": {"x": 1}})
    assert not accepts(grammar, {"a": {}, "x": 1})
    assert accepts(Grammar.json(schema), {"a": {"x": 1}, "x": 1})


def test_a_schema_with_many_conditions_is_refused_in_time():
    branches = [{"required": [f"k{i}"], "properties": {f"k{i}": {"minimum": i}}} for i in range(400)]
    with pytest.raises(InvalidGrammar, match="oneOf"):
        Grammar.json({"oneOf": branches})


@pytest.mark.parametrize("seed", range(4))
def test_keywords_with_wrong_values_are_refused_and_nothing_else(seed):
    rng = random.Random(seed)
    wrong = [5, "x", None, [], {}, [1], {"a": 1}, True, -1, 1.5, [{}], {"a": {}}, {"$ref": "#/not"}]
    keywords = sorted(SPECIAL | {"properties", "items", "required", "type", "enum", "allOf", "$ref", "$id"})
    refused = 0
    for _ in range(300):
        part = {key: rng.choice(wrong) for key in rng.sample(keywords, 3)}
        try:
            Grammar.json({"properties": {"a": part, "b": {"not": part}}}, closed=rng.random() < 0.5)
        except InvalidGrammar:
            refused += 1
    assert refused > 50


# -- random schemas --


def random_part(rng, depth):
    """A schema of conditions; most of them can be followed."""
    simple = [
        lambda: {"type": rng.choice(["string", "number", "object", "array", "null", ["string", "boolean"]])},
        lambda: {"const": rng.choice(VALUES)},
        lambda: {"enum": rng.sample(VALUES, 3)},
        lambda: {"required": rng.sample(["foo", "bar", "a"], rng.randint(1, 2))},
        lambda: {"minimum": rng.randint(-3, 4)},
        lambda: {"maxLength": rng.randint(0, 4)},
        lambda: {"pattern": rng.choice(["^f", "o|r$", "^[a-z]*$", "^(?!foo)"])},
        lambda: {"minItems": rng.randint(0, 3)},
        lambda: {"uniqueItems": True},
        lambda: {"propertyNames": {"enum": rng.sample(["foo", "bar", "a"], 2)}},
        lambda: {"propertyNames": {"not": {"pattern": rng.choice(["^f", "a", "[aq]$"])}}},
        lambda: {"propertyNames": {"not": {"enum": rng.sample(["foo", "bar", "a"], 2)}}},
        lambda: {"dependentRequired": {"foo": ["bar"]}},
        lambda: {"format": rng.choice(WORDS)},
    ]
    if depth == 0:
        return rng.choice(simple)()
    part = lambda: random_part(rng, depth - 1)  # noqa: E731
    closed = lambda: {  # noqa: E731
        "type": "object",
        "properties": {"foo": part(), rng.choice(["bar", "a", "quux"]): part()},
        "additionalProperties": False,
    }
    nested = [
        lambda: {"not": part()},
        lambda: {"if": part(), "then": part(), "else": part()},
        lambda: {"oneOf": [part(), part()]},
        lambda: {"anyOf": [part(), part()]},
        lambda: {"allOf": [part(), part()]},
        lambda: {"properties": {"foo": part(), "bar": part()}},
        lambda: {"items": part()},
        lambda: {"prefixItems": [part()], "items": part()},
        lambda: {"contains": part(), "maxContains": rng.randint(1, 2)},
        lambda: {"contains": part()},
        lambda: {"dependentSchemas": {"foo": part()}},
        lambda: {"properties": {"foo": part()}, "additionalProperties": part()},
        lambda: {"properties": {"foo": part(), "a": part()}, "additionalProperties": False},
        lambda: {"patternProperties": {rng.choice(["^f", "a", "o$"]): part()}},
        lambda: {"patternProperties": {"^f": part(), "[ro]": part()}, "additionalProperties": part()},
        lambda: {"oneOf": [{"patternProperties": {"a|o": part()}, "additionalProperties": False}, closed()]},
        lambda: {"oneOf": [{"oneOf": [closed()]}, {"anyOf": [closed(), closed()]}, part()]},
        lambda: {"oneOf": [closed(), closed(), part()], "required": ["foo"]},
        lambda: {"allOf": [{"oneOf": [part(), part()]}, part(), {"oneOf": [part(), part()]}]},
        lambda: {"anyOf": [{"oneOf": [part(), part()]}, part()], "allOf": [{"oneOf": [part(), part()]}]},
    ]
    schema = rng.choice(nested)()
    return {**schema, **rng.choice(simple)()} if rng.random() < 0.3 else schema


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(6))
def test_random_conditions_never_accept_what_does_not_fit(seed):
    rng = random.Random(seed)
    counts = Counter()
    for _ in range(25):
        schema = random_part(rng, rng.randint(1, 3))
        found = outcomes(schema, VALUES)
        assert "permissive" not in found, schema
        counts.update(found)
    assert counts["right"] > counts["refused"] / 3


OPEN = {"type": "object", "properties": {"foo": {"type": "integer"}}}


def accepts_text(schema, text):
    ids = TOKENIZER.encode(text)
    return COMPILER.compile(Grammar.json(schema)).guide().n_valid([*ids, END]) == len(ids) + 1


@pytest.mark.parametrize("others", [True, {"type": "string"}])
def test_an_escaped_key_does_not_escape_its_schema(others):
    schema = {**OPEN, "additionalProperties": others}
    assert not accepts_text(schema, '{"\\u0066oo": "x"}')
    assert accepts_text(schema, '{"foo": 1, "a\\n\\"b": "x"}')


def test_a_forbidden_key_stays_forbidden_when_it_is_escaped():
    schema = {"properties": {"foo": False}, "allOf": [OPEN]}
    assert not accepts_text(schema, '{"\\u0066oo": 1}')
    assert accepts_text(schema, '{"fo": 1}')


def test_a_list_of_items_counts_as_evaluated_items():
    schema = {"items": [{"type": "string"}], "allOf": [{"items": [True, {"type": "number"}]}]}
    grammar = Grammar.json({**schema, "unevaluatedItems": False})
    assert accepts(grammar, ["x", 1])
    assert not accepts(grammar, ["x", 1, True])


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("date", "2024-02-29", "2023-02-29"),
        ("date", "0001-01-31", "0000-01-31"),  # no calendar of programs has a year 0
        ("date", "0400-02-29", "0000-02-29"),
        ("date-time", "0004-02-29T12:00:00Z", "0000-12-01T12:00:00Z"),
        ("time", "23:59:59Z", "22:59:60Z"),
        ("date-time", "2000-02-29T12:00:00Z", "1900-02-29T12:00:00Z"),
    ],
)
def test_dates_and_times_exist(name, right, wrong):
    grammar = Grammar.json({"type": "string", "format": name})
    assert accepts(grammar, right)
    assert not accepts(grammar, wrong)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        (
            "uri-reference",
            ["", "/a/b?c#d", "a/b:c", "../x", "http://me@x.org:80/%41"],
            ["a b", "1:2", "%4", "#a#b"],
        ),
        ("iri", ["http://ünï.org/é", "urn:a"], ["/é", "http://a b", "é"]),
        ("iri-reference", ["", "/é", "é/b"], ["\\\\WINDOWS", "#ƒräg#"]),
        ("uri-template", ["", "/a/{b}", "{?x,y*}{/z:3}"], ["{", "/a/{b", "{x:0}", "<"]),
        ("json-pointer", ["", "/", "/a/0/~0~1"], ["a", "/~", "/~2", "#/a"]),
        ("relative-json-pointer", ["0", "1/a/b", "10#"], ["", "01", "/a", "-1/a", "0##"]),
        ("idn-email", ["실례@실례.테스트", "a.b@c.org"], ["a", "a@", "@b", "a..b@c", "a b@c"]),
    ],
)
def test_formats_that_are_patterns_here(name, right, wrong):
    schema = {"type": ["string", "null"], "format": name}
    for text in (*right, None):
        assert accepts_text(schema, json.dumps(text, ensure_ascii=False)), text
    for text in wrong:
        assert not accepts_text(schema, json.dumps(text, ensure_ascii=False)), text
    schema = {"type": ["string", "null"], "not": {"format": name, "type": "string"}}
    for text in (*wrong, None):
        assert accepts_text(schema, json.dumps(text, ensure_ascii=False)), text
    for text in right:
        assert not accepts_text(schema, json.dumps(text, ensure_ascii=False)), text
