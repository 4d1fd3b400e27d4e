"""`uniqueItems`: the items of an array differ, however they are written and in whatever tokens."""

import json
import random

import jsonschema
import pytest

from stretto import Grammar, InvalidGrammar, InvalidRequest
from stretto.structured import Compiler
from stretto.text.loading import load_tokenizer
from stretto.weights.gguf import GGUF

SHORT = {"type": "string", "maxLength": 1, "pattern": "^[ab]*$"}
COLOURS = {"enum": ["red", "green", "blue", "re", "r", 1, 12, None, True, False]}
SCHEMAS = {
    "texts": {"items": SHORT, "maxItems": 3},
    "colours": {"items": COLOURS, "maxItems": 10, "minItems": 8},
    "integers": {"items": {"type": "integer", "minimum": 0, "maximum": 12}, "maxItems": 6},
    "lists": {"items": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 40}, "maxItems": 5},
    "objects": {
        "items": {
            "type": "object",
            "properties": {"n": {"enum": [1, 2]}, "k": {"type": "string", "pattern": "^[ab]{0,40}$"}},
            "required": ["n", "k"],
            "additionalProperties": False,
        },
        "maxItems": 6,
    },
    "within": {
        "items": {"type": "array", "uniqueItems": True, "items": COLOURS, "minItems": 2, "maxItems": 6},
        "maxItems": 3,
    },
}


@pytest.fixture(scope="module")
def compiler(smollm2_path):
    tokenizer = load_tokenizer(GGUF(smollm2_path).metadata)
    return Compiler(tokenizer, tokenizer.n_vocab)


def walk(compiler, grammar, rng, most=400):
    """A text of allowed tokens, each as probable as any other; None where it had to be given up."""
    guide = compiler.compile(grammar).guide()
    data = b"".join(map(compiler.tokenizer.token_bytes, guide.begin()))
    for _ in range(most):
        if guide.done:
            break
        allowed = guide.allowed()
        ends = [token for token in allowed.tolist() if token in guide.ends]
        if ends and rng.random() < 0.2:
            break
        token = rng.choice([token for token in allowed.tolist() if token not in guide.ends])
        data += b"".join(map(compiler.tokenizer.token_bytes, [token, *guide.push(token)]))
    assert guide.done or guide.accepting
    return json.loads(data)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("whitespace", ["spaced", "compact"])
def test_items_differ_in_random_texts(compiler, name, whitespace):
    schema = {"type": "array", "uniqueItems": True, **SCHEMAS[name]}
    grammar = Grammar.json(schema, whitespace=whitespace)
    rng = random.Random(name)
    lengths = set()
    for _ in range(12):
        value = walk(compiler, grammar, rng)
        jsonschema.validate(value, schema)
        lengths.add(len(value))
    assert max(lengths) >= 2


def test_a_draft_that_repeats_an_item_is_cut(compiler):
    tokenizer = compiler.tokenizer
    guide = compiler.compile(Grammar.json({"type": "array", "uniqueItems": True})).guide()
    ids = tokenizer.encode('["a", "b", "a"]')
    n_valid = guide.n_valid(ids)
    assert tokenizer.decode(ids[:n_valid]).startswith('["a", "b", "a'[:12])
    assert n_valid < len(ids)


def test_escapes_do_not_hide_a_repetition(compiler):
    tokenizer = compiler.tokenizer
    guide = compiler.compile(Grammar.json({"type": "array", "uniqueItems": True})).guide()
    ids = tokenizer.encode('["a", "\\u0061"]')
    assert guide.n_valid(ids) < len(ids)


def test_a_token_that_would_repeat_an_item_is_refused(compiler):
    tokenizer = compiler.tokenizer
    guide = compiler.compile(Grammar.json({"type": "array", "uniqueItems": True})).guide()
    for token in tokenizer.encode('["a", "a'):
        guide.push(token)
    (quote,) = tokenizer.encode('"')
    assert quote not in guide.allowed()
    with pytest.raises(InvalidRequest):
        guide.push(quote)


def test_a_fork_keeps_its_own_items(compiler):
    tokenizer = compiler.tokenizer
    guide = compiler.compile(Grammar.json({"type": "array", "uniqueItems": True})).guide()
    for token in tokenizer.encode("[1, "):
        guide.push(token)
    twin = guide.fork()
    for token in tokenizer.encode("2, 3"):
        guide.push(token)
    assert twin.n_valid(tokenizer.encode("2, 3")) == len(tokenizer.encode("2, 3"))


def test_more_items_than_values_are_refused(compiler):
    many = {"enum": [f"v{i}" for i in range(12)]}
    schema = {"type": "array", "uniqueItems": True, "items": many, "minItems": 13}
    with pytest.raises(InvalidGrammar, match="uniqueItems"):
        Grammar.json(schema)
