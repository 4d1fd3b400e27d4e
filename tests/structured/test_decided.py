"""JSON schemas with several patterns and lengths that apply at once."""

import json
import random
import time
from itertools import product

import jsonschema
import pytest

from stretto import Grammar, InvalidRequest
from stretto.structured import Compiler
from stretto.structured.decided import decide_cases
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


LETTERS = {"anyOf": [{"pattern": f"^{letter}"} for letter in "abcde"]}
ENDS = {"anyOf": [{"not": {"pattern": "^[a-e]"}}, *({"pattern": f"{letter}$"} for letter in "xyz")]}
RUNS = {"anyOf": [{"pattern": "1" * 19}, {"pattern": "2" * 18}, {"pattern": "3" * 18}]}
LONG = {
    "type": "string",
    "allOf": [LETTERS, ENDS, RUNS, {"pattern": "[aA][12].*[zZ]"}, {"minLength": 10}, {"maxLength": 20}],
}


def test_cases_that_no_text_fits_are_left_out():
    accept, oracle = accepts(LONG), jsonschema.Draft202012Validator(LONG)
    right = f"a{'2' * 18}z"
    wrong = [f"b{'2' * 18}z", f"a{'1' * 19}z", f"a{'3' * 18}z", f"a{'2' * 17}z", f"a{'2' * 18}x", right + "z"]
    for text in [right, *wrong]:
        assert accept(text) == oracle.is_valid(text) == (text == right)


def test_beside_other_types_and_under_properties():
    text = {key: value for key, value in LONG.items() if key != "type"}
    schema = {"type": "object", "properties": {"a": text, "b": LONG}, "additionalProperties": False}
    accept, oracle = accepts(schema), jsonschema.Draft202012Validator(schema)
    leaves = [f"a{'2' * 18}z", "a", 3, 2.5, None, [1], True]
    for left, right in product(leaves, leaves):
        value = {"a": left, "b": right}
        assert accept(value) == oracle.is_valid(value), value


def test_properties_of_several_schemas():
    parts = [{"properties": {"a": {"type": "string", **part}}} for part in (LETTERS, ENDS, RUNS)]
    rest = {"properties": {"a": {"pattern": "[aA][12].*[zZ]", "minLength": 10, "maxLength": 20}}}
    schema = {"type": "object", "required": ["a"], "allOf": [*parts, rest], "maxProperties": 1}
    accept = accepts(schema)
    assert accept({"a": f"a{'2' * 18}z"})
    assert not accept({"a": f"b{'2' * 18}z"})


PATTERNS = ["^a", "b$", "^....$", "ab1", "b12", r"^\w*$", r"\d\d", "[ab]", "1.*2", "^[^b]*$", "^(ab|1)*$"]


def random_schema(rng, depth=2):
    if depth == 0:
        return rng.choice(
            [
                {"pattern": rng.choice(PATTERNS)},
                {"minLength": rng.randint(0, 5)},
                {"maxLength": rng.randint(2, 6)},
            ]
        )
    made = {rng.choice(["allOf", "anyOf"]): [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    made |= (
        {"type": rng.choice(["string", ["string", "null"], ["string", "number"]])}
        if rng.random() < 0.4
        else {}
    )
    made |= {"minLength": rng.randint(1, 4)} if rng.random() < 0.3 else {}
    return made | ({"pattern": rng.choice(PATTERNS)} if rng.random() < 0.3 else {})


def test_the_same_values_fit():
    texts = ["".join(made) for size in range(6) for made in product("ab1", repeat=size)]
    n_changed = 0
    for seed in range(150):
        rng = random.Random(seed)
        schema = random_schema(rng)
        if (made := decide_cases(schema)) is None:
            continue
        n_changed += 1
        left = jsonschema.Draft202012Validator(schema)
        # Patterns that are written here have classes that Python does not read.
        plain = json.loads(json.dumps(made).replace("[\\\\s\\\\S]", "[^\\\\u0000]"))
        right = jsonschema.Draft202012Validator(_python(plain))
        others = [None, 1, 1.5, True, [], {}, "ab12", "abab1b", "a 12", "1ab2"]
        for value in [*rng.sample(texts, 80), *others]:
            assert left.is_valid(value) == right.is_valid(value), (schema, made, value)
    assert n_changed > 100


def _python(schema):
    """Escapes of characters as Python reads them."""
    if isinstance(schema, dict):
        return {key: _python(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_python(part) for part in schema]
    if isinstance(schema, str):
        for code in range(0x80):
            schema = schema.replace(f"\\x{{{code:X}}}", f"\\x{code:02x}")
        return schema.replace("\\x{10FFFF}", "\\U0010ffff")
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["a"], "pattern": "^b", "maxLength": 3},
        {"type": "object", "properties": {"a": {"const": 1}}, "allOf": [{"required": ["a"]}]},
        {"pattern": r"(a)\1", "anyOf": [{"const": "aa"}]},
        {"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"$ref": "#/$defs/a", "pattern": "x"}}},
    ],
)
def test_other_schemas_stay_as_they_are(schema):
    assert decide_cases(schema) is None


def test_no_text_at_all_is_said():
    schema = {"type": "string", "allOf": [LONG, {"maxLength": 19}]}
    with pytest.raises(InvalidRequest, match="no text fits"):
        COMPILER.compile(Grammar.json(schema))


def test_many_cases_end_in_time():
    rng = random.Random(0)
    runs = [
        {
            "anyOf": [
                {"pattern": f"({a}|.){{40}}{b}.*"} for a, b in rng.sample([*product("abcdefg", "xyz")], 15)
            ]
        }
    ] * 2
    choices = [
        {"anyOf": [{"pattern": f"{a}.*{b * 30}.*{a * 9}"} for a in "abcdef" for b in "uvwxyz"]}
        for _ in range(6)
    ]
    start = time.process_time()
    decide_cases({"type": "string", "allOf": [*runs, *choices], "maxLength": 400})
    decide_cases({"type": "string", "allOf": choices[:2], "maxLength": 40})
    assert time.process_time() - start < 10
