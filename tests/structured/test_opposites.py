"""Opposites of JSON schemas, compared with the jsonschema package over many small values."""

import json
import random
import time
from collections import Counter
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


FORMATTED = {
    "date": ["2024-02-29", "2023-02-28", "1999-12-31", "2000-02-29"],
    "time": ["10:20:30Z", "23:59:59.25+02:30"],
    "date-time": ["2024-02-29T10:20:30Z", "1999-11-30t00:00:00.5-01:00"],
    "duration": ["P1Y2M3DT4H5M6S", "PT5M", "P3W", "P10D"],
    "email": ["joe.b@example.org", "a+b@c"],
    "idn-email": ["joé@exämple.org"],
    "hostname": ["www.example-1.org", "localhost"],
    "ipv4": ["127.0.0.1", "255.249.19.100"],
    "uuid": ["123e4567-e89b-12d3-a456-42661417400F"],
    "uri": ["http://joe@example.org:80/a/%20?q=1#f", "urn:a:b", "http://[::1]/"],
    "uri-reference": ["//example.org/a", "../a?b#c", ""],
    "iri": ["http://exämple.org/ü"],
    "iri-reference": ["/ü/a", "#é"],
    "uri-template": ["http://a/{b}{?c,d*}"],
    "json-pointer": ["/a/~0b", ""],
    "relative-json-pointer": ["0#", "12/a"],
}


def edited(rng, text):
    """A text with up to three characters replaced, left out or added."""
    for _ in range(rng.randint(0, 3)):
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice(["", *"09aZ:/.-@ %[é~{TP\n"]) + text[at + rng.randint(0, 1) :]
    return text


@pytest.mark.parametrize("name", FORMATTED)
def test_a_text_has_a_format_or_has_it_not(name):
    rng = random.Random(name)
    has = COMPILER.compile(Grammar.json({"type": "string", "format": name})).guide()
    lacks = COMPILER.compile(Grammar.json({"type": "string", "not": {"format": name}})).guide()
    texts = [edited(rng, text) for text in FORMATTED[name] for _ in range(100)] + [
        "",
        "a b",
        ".",
        "invalid url",
    ]
    counts = Counter()
    for text in [*FORMATTED[name], *dict.fromkeys(texts)]:
        shown = json.dumps(text, ensure_ascii=False)
        found = (accepts(has, shown), accepts(lacks, shown))
        assert sum(found) == 1 or (found == (False, False) and "[" in text), (text, found)
        counts[found] += 1
    assert min(counts[True, False], counts[False, True]) > 2, counts


def test_what_looks_like_a_format_in_part_has_no_opposite():
    lacks = COMPILER.compile(Grammar.json({"type": "string", "not": {"format": "email"}})).guide()
    assert not accepts(lacks, json.dumps('"a b"@c'))
    lacks = COMPILER.compile(Grammar.json({"type": "string", "not": {"format": "time"}})).guide()
    assert not accepts(lacks, '"10:20:60Z"')
    with pytest.raises(InvalidGrammar, match="#/not/format"):
        Grammar.json({"not": {"format": "ipv6"}})


def test_a_format_that_is_an_annotation_holds_for_every_text():
    guide = COMPILER.compile(Grammar.json({"not": {"type": "string", "format": "colour"}})).guide()
    assert [text for text in ('"a"', "1", "null") if accepts(guide, text)] == ["1", "null"]


def test_formats_and_patterns_keep_branches_apart():
    schema = {"oneOf": [{"type": "string", "format": "uri"}, {"type": "string", "pattern": r"^\./.+$"}]}
    assert json.loads(Grammar.json(schema).text)["allOf"][0]["anyOf"] == schema["oneOf"]
    guide = COMPILER.compile(Grammar.json(schema)).guide()
    texts = ["http://a", "./a", "./http://a", "./", "a b"]
    assert [text for text in texts if accepts(guide, json.dumps(text))] == ["http://a", "./a", "./http://a"]
    schema = {"type": "string", "oneOf": [{"format": "hostname"}, {"format": "ipv4"}]}
    guide = COMPILER.compile(Grammar.json(schema)).guide()
    texts = ["a.org", "1.2.3.4", "1.2.3.400", "1.2.3", "a_b"]
    assert [text for text in texts if accepts(guide, json.dumps(text))] == ["a.org", "1.2.3.400", "1.2.3"]


def nested(depth, leaf=1):
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


@pytest.mark.parametrize("depth", [3, 12, 24, 30])
def test_a_deep_value_has_an_opposite(depth):
    schema = {"type": "object", "not": {"const": nested(depth)}}
    values = [nested(n, leaf) for n in range(1, depth + 2) for leaf in (1, 2, {}, {"b": 1}, {"a": 1, "b": 1})]
    check(schema, values)


def test_values_of_arrays_and_objects_have_opposites():
    schema = {"not": {"enum": [[], [1, "x"], {}, {"a": [1]}, {"a": 1, "b": 2}, 1, "x"]}}
    values = [
        [],
        [1],
        [1, "x"],
        [1, "x", 2],
        ["x", 1],
        {},
        {"a": 1},
        {"a": [1]},
        {"a": [1, 1]},
        1,
        2,
        "x",
        "y",
    ]
    check(schema, [*values, {"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": 2, "c": 3}, None, 1.5])


def test_opposites_that_are_large_or_circular_are_refused_in_time():
    doubling = {
        f"d{i}": {"properties": {key: {"$ref": f"#/$defs/d{i + 1}"} for key in "ab"}} for i in range(40)
    }
    start = time.process_time()
    with pytest.raises(InvalidGrammar, match="this large is not supported"):
        Grammar.json({"not": {"$ref": "#/$defs/d0"}, "$defs": {**doubling, "d40": {"type": "null"}}})
    tree = {"type": "object", "properties": {"a": {"$ref": "#/$defs/tree"}}}
    with pytest.raises(InvalidGrammar, match="refers to itself"):
        Grammar.json({"not": {"$ref": "#/$defs/tree"}, "$defs": {"tree": tree}})
    with pytest.raises(InvalidGrammar, match="this large is not supported"):
        Grammar.json({"not": {"const": nested(60)}})
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -7, "maximum": 20, "not": {"multipleOf": 3}},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 12, "not": {"multipleOf": 4}},
        {"type": "number", "minimum": 1, "maximum": 9, "not": {"multipleOf": 1}},
        {"multipleOf": 2, "minimum": 0, "maximum": 30, "not": {"multipleOf": 4}},
        {"minimum": 0, "maximum": 20, "not": {"type": "integer", "multipleOf": 5, "minimum": 10}},
        {"minimum": 0, "maximum": 9, "if": {"multipleOf": 2}, "then": {"maximum": 4}, "else": {"minimum": 3}},
        {"allOf": [{"minimum": 0}, {"maximum": 20}], "oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]},
    ],
    ids=lambda schema: json.dumps(schema)[:80],
)
def test_numbers_that_are_no_multiples(schema):
    numbers = [*range(-10, 33), 0.5, 1.5, 2.25, 9.25, 11.75]
    if "type" in schema.get("not", {}):  # numbers that are no integers are left out there
        numbers = [number for number in numbers if isinstance(number, int)]
    check({"type": "number", **schema}, numbers)


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"multipleOf": 2}},
        {"type": ["integer", "null"], "minimum": 0, "not": {"multipleOf": 2}},
        {"minimum": 0, "maximum": 9, "not": {"multipleOf": 2.5}},
        {"minimum": 0, "maximum": 9.5, "not": {"multipleOf": 2}},
        {"minimum": 0, "maximum": 1e9, "not": {"multipleOf": 2}},
    ],
)
def test_multiples_without_bounds_have_no_opposite(schema):
    with pytest.raises(InvalidGrammar, match="#/not/multipleOf"):
        Grammar.json(schema)


KINDS = "abcdefghijkl"
BY_KIND = {
    "type": "object",
    "properties": {"kind": {"type": "string"}, "v": {}},
    "allOf": [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": {"properties": {"v": {"anyOf": [{"const": 1}, {"const": kind}]}}, "required": ["v"]},
            **({"else": {"properties": {"v": {"not": {"const": f"not {kind}"}}}}} if kind in "ab" else {}),
        }
        for kind in KINDS
    ],
}
BY_OPTIONAL_KIND = {
    "type": "object",
    "properties": {"kind": {}, "v": {}},
    "oneOf": [
        {"properties": {"kind": {"enum": [kind]}}, "required": ["v"][: index % 2]}
        for index, kind in enumerate(KINDS[:6])
    ],
}
OF_KINDS = [
    {"kind": kind, **value}
    for kind in ("a", "b", "l", "m", 1)
    for value in ({}, {"v": 1}, {"v": "a"}, {"v": "not a"}, {"v": "not b"})
] + [{}, {"v": 1}, {"v": "not a"}, "a", 1]


@pytest.mark.parametrize("schema", [BY_KIND, BY_OPTIONAL_KIND], ids=["if", "oneOf"])
def test_many_conditions_on_one_property_are_one_choice(schema):
    check(schema, OF_KINDS)


def test_conditions_on_one_property_of_other_forms():
    for condition in (
        {"properties": {"kind": {"enum": ["a", "b"]}}},
        {"properties": {"kind": {"const": "a"}}},
    ):
        given = [{"if": condition, "then": {"required": ["v"]}}, *BY_KIND["allOf"][:5]]
        rest = {**BY_KIND, "allOf": given}
        check(rest, OF_KINDS)
        check({key: value for key, value in rest.items() if key != "type"}, OF_KINDS)


COUNTED = [
    {"minProperties": 2},
    {"minProperties": 2, "additionalProperties": {"const": "x"}},
    {"minProperties": 3, "required": ["a"]},
    {"minProperties": 1, "maxProperties": 2, "required": ["x"]},
    {"maxProperties": 1, "patternProperties": {"^aa": {"type": "integer"}}},
]


@pytest.mark.parametrize("schema", COUNTED, ids=json.dumps)
def test_properties_of_open_objects_are_counted(schema):
    named = {"a": {"type": "integer"}, "id": {}}
    check({"type": "object", "properties": named, **schema}, OBJECTS)


MULTIPLES = [
    {
        "type": "integer",
        "minimum": -4,
        "maximum": 30,
        "not": {"anyOf": [{"multipleOf": 2}, {"multipleOf": 3}]},
    },
    {"type": "integer", "oneOf": [{"multipleOf": 4}, {"multipleOf": 6}, {"enum": [7, 12, "x"]}]},
    {"type": "number", "minimum": 1, "allOf": [{"multipleOf": 6}, {"not": {"multipleOf": 4}}]},
    {"enum": [3, 4, 15], "not": {"allOf": [{"multipleOf": 5}], "minimum": 0}},
    {"type": "number", "exclusiveMinimum": 0, "not": {"multipleOf": 5}},
]


@pytest.mark.parametrize("schema", MULTIPLES, ids=json.dumps)
def test_numbers_of_all_conditions_on_multiples(schema):
    check(schema, [*range(-40, 41), 2.5, 7.25, 0, 1200 * 6, "x"])


def test_of_endlessly_many_multiples_the_nearest_are_left_out():
    guide = COMPILER.compile(Grammar.json({"type": "integer", "not": {"multipleOf": 3}})).guide()
    assert [n for n in range(-300, 301) if accepts(guide, str(n))] == [n for n in range(-300, 301) if n % 3]
    assert not accepts(guide, "3000000")


def test_branches_whose_opposite_is_not_known_are_told_apart_by_the_rest():
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/a"}, "v": {"type": "integer"}}}
    schema = {"oneOf": [{"$ref": "#/$defs/a"}, {"required": ["w"], "type": "object"}], "$defs": {"a": tree}}
    guide = COMPILER.compile(Grammar.json(schema)).guide()
    validator = jsonschema.Draft202012Validator(schema)
    values = [{}, {"v": 1}, {"v": 1, "w": 1}, {"v": "x", "w": 1}, {"next": {"v": 1}}, {"w": 1}, 3]
    found = [accepts(guide, json.dumps(value)) for value in values]
    assert found == [validator.is_valid(value) for value in values]


def test_what_a_reference_leads_to_is_negated_for_the_values_beside_it():
    named = {"not": {"propertyNames": {"not": {"pattern": "a"}}}}
    schema = {"allOf": [{"$ref": "#/$defs/named"}, {"maxProperties": 1}], "$defs": {"named": named}}
    check({"type": "object", **schema}, OBJECTS)
