"""The order of properties that several schemas name, and that the values that fit stay the same."""

import json
import random
from itertools import permutations

import jsonschema
import pytest

from stretto import Grammar
from stretto.structured import Compiler
from stretto.structured.checks import check_schema, parser_schema
from stretto.structured.quoting import with_surely_plain_keys
from stretto.text.loading import load_tokenizer
from stretto.tools.grammar import json_value
from vocabularies import bpe, metadata

TOKENIZER = load_tokenizer(metadata(bpe(specials=["<|im_end|>"])))
COMPILER = Compiler(TOKENIZER, TOKENIZER.n_vocab)
END = TOKENIZER.specials["<|im_end|>"]


def accepts(schema):
    compiled = COMPILER.compile(Grammar.json(schema))

    def accept(value):
        ids = TOKENIZER.encode(value if isinstance(value, str) else json.dumps(value))
        return compiled.guide().n_valid([*ids, END]) == len(ids) + 1

    return accept


def named(names, **rest):
    return {"properties": {name: {"type": "integer"} for name in names}, **rest}


DEFS = {"$defs": {"x": named("ba"), "y": {"$ref": "#/$defs/x", **named("c")}}}
KINDS = {name: {"properties": {"b": {"const": i}}, "required": ["b"]} for i, name in enumerate("xy")}


@pytest.mark.parametrize(
    ("schema", "order"),
    [
        (named("cba"), "cba"),
        ({"allOf": [named("b"), named("a")], **named("c")}, "bac"),
        ({**named("c"), "allOf": [named("b"), named("a")]}, "cba"),
        ({"$ref": "#/$defs/x", **named("c"), **DEFS}, "bac"),
        ({**named("c"), "$ref": "#/$defs/x", **DEFS}, "cba"),
        ({"allOf": [named("c"), {"$ref": "#/$defs/x"}], **DEFS}, "cba"),
        ({"$ref": "#/$defs/y", **DEFS}, "bac"),
        # What one branch names is unknown in the other, and comes last there.
        ({**named("c"), "anyOf": [named("b"), named("a", required=["a"])]}, "cab cba"),
        ({"anyOf": [named("b"), named("a", required=["a"])], **named("c")}, "acb bca"),
        # Choices that name no others than an object's own properties keep their order.
        ({"anyOf": [named("ba"), named("b", required=["a"])], **named("ab")}, "ab"),
        ({"anyOf": [named("b"), named("a", required=["a"])], "allOf": [named("c")]}, "acb bca"),
        ({"allOf": [named("c")], "anyOf": [named("b"), named("a", required=["a"])]}, "cab cba"),
        ({**named("ca"), "oneOf": list(KINDS.values())}, "cab"),
        # Conditions: what `properties` names keeps its place.
        ({"oneOf": list(KINDS.values()), **named("ca")}, "cab"),
        ({"if": KINDS["x"], "then": named("c"), **named("ca")}, "cab"),
        # The first that names a property gives its place.
        ({**named("ac"), "allOf": [named("cba")]}, "acb"),
        ({"allOf": [named("cba")], **named("ac")}, "cba"),
        ({"additionalProperties": False, "allOf": [named("b")], **named("cab")}, "bca"),
        # One closed object decides what there is, another one where.
        ({**named("cb", additionalProperties=False), "allOf": [named("bca")]}, "cb"),
    ],
    ids=lambda value: json.dumps(value)[:70],
)
def test_properties_come_as_they_are_read(schema, order):
    accept = accepts(schema)
    names = sorted(order.split()[0])
    made = ["".join(one) for one in permutations(names) if accept(dict.fromkeys(one, 1))]
    assert made == order.split()


def test_the_order_holds_in_definitions_and_tools():
    inner = {"type": "object", "allOf": [named("b"), named("a")], **named("c")}
    accept = accepts({"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}}, "$defs": {"y": inner}})
    assert accept({"x": {"b": 1, "a": 1, "c": 1}})
    assert not accept({"x": {"c": 1, "b": 1, "a": 1}})
    text = json_value(check_schema(inner))
    assert text.index('"allOf"') < text.index('"c"') < text.index('"x-guidance"')


def test_branches_that_disagree_keep_their_own_order():
    one, two = named("ab", required=["a"]), named("ba", required=["b"])
    accept = accepts({**named("c"), "anyOf": [one, two]})
    assert accept('{"c": 1, "a": 1, "b": 1}')
    assert accept('{"c": 1, "b": 1, "a": 1}')
    assert not accept('{"a": 1, "b": 1, "c": 1}')


def random_object(rng, depth):
    names = rng.sample("abc", rng.randint(1, 2))
    parts = {"properties": {name: {"type": rng.choice(["integer", "null"])} for name in names}}
    if rng.random() < 0.3:
        parts["required"] = rng.sample(names, 1)
    if rng.random() < 0.2:
        parts["additionalProperties"] = False
    if depth and rng.random() < 0.8:
        key = rng.choice(["allOf", "anyOf"])
        parts[key] = [random_object(rng, depth - 1) for _ in range(rng.randint(1, 2))]
    pairs = list(parts.items())
    rng.shuffle(pairs)
    return dict(pairs)


def test_the_order_allows_no_other_values():
    objects = [{}]
    for name in "abcd":
        objects += [{**one, name: value} for one in objects for value in (1, None)]
    n_right = 0
    for seed in range(40):
        rng = random.Random(seed)
        schema = {"type": "object", **random_object(rng, 2)}
        oracle = jsonschema.Draft202012Validator(schema)
        valid = [value for value in objects if oracle.is_valid(value)]
        if not valid:
            continue
        accept = accepts(schema)
        for value in rng.sample(objects, 24):
            found = any(accept(dict(pairs)) for pairs in permutations(value.items()))
            assert found == oracle.is_valid(value), (schema, value)
            n_right += found
    assert n_right > 100


def test_names_cannot_be_hidden_by_escapes():
    schema = {**named("c"), "allOf": [named("ba")]}
    accept = accepts(schema)
    assert accept('{"c": 1, "b": 2, "x": "y"}')
    assert not accept('{"\\u0062": "y"}')
    assert not accept('{"c": 1, "\\u0061": "y"}')
    # Calls of tools have these keys too.
    assert "[\\\\s\\\\S]*" in with_surely_plain_keys(parser_schema(check_schema(schema)))
