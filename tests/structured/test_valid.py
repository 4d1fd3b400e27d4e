"""Whatever the model says, the text fits its grammar, and ends by itself."""

import json
import random
import re
import zlib

import jsonschema
import numpy as np
import pytest

import stretto
from random_schemas import random_schema
from stretto import Grammar
from stretto.llm import LLM
from stretto.testing import MockBackend, mock_llm

WILD = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
N_SCHEMAS = 200
FORMATS = jsonschema.FormatChecker(("date", "ipv4", "uuid"))  # those it checks without further packages


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    with stretto.load(smollm2_path, cells=8192) as llm:
        yield llm


def noise(n_vocab):
    """A script that says anything: logits that depend on the last tokens alone."""

    def script(seen):
        seed = zlib.crc32(np.array(seen[-8:], np.int32).tobytes())
        return np.random.Generator(np.random.SFC64(seed)).standard_normal(n_vocab, np.float32)

    return script


@pytest.fixture(scope="module")
def babble(smollm2):
    """SmolLM2's vocabulary and no idea of language: every token is about as probable as any other."""
    n_vocab = smollm2.spec.n_vocab
    backend = MockBackend(noise(n_vocab), n_vocab, 1 << 15, 2048)
    with LLM(backend, smollm2.tokenizer, None, prefix_cache=False) as llm:
        yield llm


def check(schema, result):
    assert result.finish_reason == "stop", (schema, result)
    jsonschema.validate(json.loads(result.text), schema, format_checker=FORMATS)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("part", range(10))
def test_random_schemas(babble, part):
    schemas = [random_schema(seed) for seed in range(part, N_SCHEMAS, 10)]
    streams = [
        babble.stream("Hi", grammar=Grammar.json(schema, whitespace=whitespace), seed=i, **WILD)
        for i, (schema, whitespace) in enumerate(zip(schemas, ["spaced", "compact"] * 10, strict=True))
    ]
    for schema, stream in zip(schemas, streams, strict=True):
        check(schema, stream.result)


def test_random_schemas_with_a_real_model(smollm2):
    schemas = [random_schema(seed, decimals=False) for seed in range(24)]
    streams = [smollm2.stream("JSON: ", grammar=schema, seed=7, **WILD) for schema in schemas]
    for schema, stream in zip(schemas, streams, strict=True):
        check(schema, stream.result)


def test_flexible_white_space_is_still_json(babble):
    for seed in range(6):
        schema = random_schema(seed)
        grammar = Grammar.json(schema, whitespace="flexible")
        check(schema, babble.generate("Hi", grammar=grammar, seed=seed, **WILD))


REGEXES = [
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    r"[A-Z][a-z]{1,10}( [A-Z][a-z]{1,10}){0,2}",
    r"(red|green|blue)(, (red|green|blue)){0,3}",
    r"[a-z0-9._]{1,12}@[a-z]{1,10}\.(com|org|net)",
    r"(\+\d{1,3} )?\d{3} \d{4}",
    r"-?(0|[1-9]\d{0,5})(\.\d{1,4})?",
    r"#[0-9a-fA-F]{6}|rgb\(\d{1,3}, \d{1,3}, \d{1,3}\)",
    r"«[^»\n]{1,20}»",
    r"a{1,30}b?",
    r"(a|ab)(c|bcd)(d*)e",
    r"[\u00e0-\u00ff]{2,6}",
    r" leading and trailing ?",
]


@pytest.mark.parametrize("pattern", REGEXES)
def test_regular_expressions(babble, pattern):
    for result in babble.generate("Hi", grammar=Grammar.regex(pattern), n=8, seed=1, **WILD):
        assert result.finish_reason == "stop"
        assert re.fullmatch(pattern, result.text), result.text


def test_choices(babble):
    choices = ["yes", "no", "yes indeed", 'a "quote" \\ /', "naïve ☃", "tab\there", "(.*)", "-", "new\nline"]
    found = babble.generate("Hi", grammar=Grammar.choices(choices), n=64, seed=1, **WILD)
    assert {result.text for result in found} <= set(choices)
    assert len({result.text for result in found}) >= 4
    assert all(result.finish_reason == "stop" for result in found)


def test_lark(babble):
    grammar = Grammar.lark(
        """
        start: sum
        sum: product (("+" | "-") product){0,3}
        product: atom (("*" | "/") atom){0,2}
        atom: NUMBER | "(" product ")"
        NUMBER: /[1-9][0-9]{0,3}/
        """
    )
    for result in babble.generate("Hi", grammar=grammar, n=12, seed=3, **WILD):
        assert result.finish_reason == "stop"
        assert re.fullmatch(r"[-+*/()0-9]+", result.text)
        eval(result.text)  # it parses: numbers, operators and brackets in their places


def test_special_tokens_cannot_slip_through(babble):
    """Strings may hold anything, and all of it is text: no control token, whatever its logit."""
    controls = set(babble.tokenizer.specials.values())
    ends = babble.tokenizer.end_ids

    def loud(logits, tokens):
        logits[list(controls)] += 50

    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 30, "maxLength": 40}}}
    schema |= {"required": ["a"], "additionalProperties": False}
    for seed in range(5):
        result = babble.generate("Hi", grammar=schema, seed=seed, hooks=[loud], **WILD)
        check(schema, result)
        assert controls.isdisjoint(result.tokens)
    # Where the grammar is complete and could go on, an end token may come, and only there.
    for seed in range(5):
        result = babble.generate("Hi", grammar=Grammar.regex("[a-z]{3}( [a-z]{3})*"), seed=seed, hooks=[loud])
        assert re.fullmatch("[a-z]{3}", result.text)
        assert result.stop_reason in ends


def test_names_of_special_tokens_are_text(babble):
    text = "<|im_end|><|endoftext|>"
    result = babble.generate("Hi", grammar=Grammar.choices([text]), temperature=0)
    assert result.text == text
    assert set(babble.tokenizer.specials.values()).isdisjoint(result.tokens)


def test_every_byte_can_be_part_of_a_text():
    """A vocabulary of single bytes: characters of several bytes come out whole."""
    rng = random.Random(0)
    llm = mock_llm(lambda seen: np.array([rng.random() for _ in range(258)], np.float32))
    for seed in range(20):
        result = llm.generate("Hi", grammar=Grammar.regex("[é☃🙂\u0000-\u001f]{5}"), seed=seed, **WILD)
        assert result.finish_reason == "stop"
        assert re.fullmatch("[é☃🙂\u0000-\u001f]{5}", result.text)
