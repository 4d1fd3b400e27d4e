"""A tour of larger models that can write: Qwen2.5-Coder 1.5B, and 0.5B as its draft model."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import stretto
from stretto import Grammar

GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
    },
}
LISBON = [{"role": "user", "content": "What is the weather in Lisbon right now?"}]
GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "qwen2.5-coder-1.5b-instruct-q4_k_m.json"
FIBONACCI = "def fibonacci(n):\n    "


@pytest.fixture(scope="module")
def coder(coder_path):
    with stretto.load(coder_path, threads=2) as llm:
        yield llm


@pytest.mark.golden
@pytest.mark.parametrize(("precision", "most"), [("standard", 0.05), ("high", 0.002)])
def test_its_log_probabilities_are_near_to_exact_ones(coder_path, precision, most):
    """Of transformers in float32 (scripts/make_coder_golden.py)."""
    texts = json.loads(GOLDEN.read_text("utf-8"))["score"].values()
    with stretto.load(coder_path, threads=2, cells=256, precision=precision) as llm:
        for text in texts:
            assert llm.tokenizer.encode(text["text"], special=True) == text["ids"]
        far = np.concatenate([np.abs(llm.score(text["ids"]) - text["logprobs"]) for text in texts])
    assert far.mean() <= most


def test_it_writes_programs(coder):
    text = coder.generate(FIBONACCI, max_tokens=48, **GREEDY).text
    assert "fibonacci(n-1) + fibonacci(n-2)" in text.replace(" - ", "-")
    said = coder.chat("What is the capital of France? One word.", max_tokens=8, **GREEDY).text
    assert said.strip(" .") == "Paris"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_it_calls_tools(coder, choice):
    result = coder.chat(LISBON, tools=[WEATHER], tool_choice=choice, max_tokens=80, **GREEDY)
    (call,) = result.tool_calls
    assert (call.name, call.arguments["city"]) == ("get_weather", "Lisbon")
    jsonschema.validate(call.arguments, WEATHER["parameters"])
    assert result.text == ""
    stream = coder.chat(LISBON, tools=[WEATHER], tool_choice=choice, max_tokens=80, stream=True, **GREEDY)
    assert list(stream)
    assert stream.result.tool_calls == result.tool_calls


def test_its_answers_follow_a_schema(coder):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    asked = "Ann is 30 years old. Give her name and age."
    result = coder.chat(asked, grammar=Grammar.json(schema), max_tokens=40, **GREEDY)
    assert json.loads(result.text) == {"name": "Ann", "age": 30}


def test_a_saved_sequence_goes_on_as_it_would_have(coder, tmp_path):
    seq = coder.sequence(FIBONACCI)
    coder.generate(seq, max_tokens=8, **GREEDY)
    seq.save(tmp_path / "code.safetensors")
    wanted = coder.generate(seq, max_tokens=12, **GREEDY).tokens
    again = coder.restore(tmp_path / "code.safetensors")
    assert coder.generate(again, max_tokens=12, **GREEDY).tokens == wanted


@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_drafts_do_not_change_the_text(coder, kind, request):
    draft = "lookup"
    if kind == "model":
        path = request.getfixturevalue("small_coder_path")
        small = stretto.load(path, threads=2)
        request.addfinalizer(small.close)
        draft = stretto.DraftModel(small)
    alone = coder.generate(FIBONACCI, max_tokens=40, ignore_eos=True, **GREEDY)
    drafted = coder.generate(FIBONACCI, max_tokens=40, ignore_eos=True, draft=draft, **GREEDY)
    assert drafted.tokens == alone.tokens
