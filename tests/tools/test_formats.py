"""Formats of calls: recognised by templates, written under a grammar, read whole and in a stream."""

import json
import re
import zlib
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from call_families import FAMILIES, make
from stretto import ToolCall
from stretto.server.generation.calls import CallWatcher
from stretto.tools.check import check_tools
from stretto.tools.finding import call_format

PARAMETERS = {
    "type": "object",
    "properties": {
        "town": {"type": "string", "maxLength": 9},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"enum": ["a", "</b>"]}, "maxItems": 2},
    },
    "required": ["days"],
}
TOOLS = [
    {"name": "weather", "description": "x", "parameters": PARAMETERS},
    {
        "name": "now",
        "description": "y",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
]
SHOWN = [tool.description for tool in check_tools(TOOLS)]
HELLO = [{"role": "user", "content": "Is it cold in Oslo?"}]
GREEDY = {"temperature": 0, "max_tokens": 400}
WILD = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 1500}
NOW = [("now", {"town": "Oslo"}), ("now", {})]


def noise(tokenizer):
    def script(seen):
        seed = zlib.crc32(np.array(seen[-8:], np.int32).tobytes())
        return np.random.Generator(np.random.SFC64(seed)).standard_normal(tokenizer.n_vocab, np.float32)

    return script


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_shows_its_format(name):
    llm = make(FAMILIES[name])
    layout = call_format(llm.template, llm.tokenizer)
    assert layout.name in (name, "learned")


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_are_read(name):
    family = FAMILIES[name]
    result = make(family).chat(HELLO, tools=TOOLS, **GREEDY)
    assert [(call.name, call.arguments) for call in result.tool_calls] == NOW[: family.n]
    assert result.text in ("", "Well.")
    assert len({call.id for call in result.tool_calls}) == family.n


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_are_followed_as_they_come(name):
    family = FAMILIES[name]
    llm = make(family)
    plan = llm.tool_plan(TOOLS)
    watcher = CallWatcher(plan)
    prompt = llm.chat_prompt(HELLO, tools=plan.shown)
    pieces, calls = [], {}
    stream = llm.stream(prompt, reasoning=True, **GREEDY)
    for token in stream:
        watcher.push(token)
        pieces.append(watcher.take())
    _, result = watcher.end(stream.result)
    for event in [one for some in [*pieces, watcher.take()] for one in some]:
        given, text = calls.get(event.index, ((event.name, event.id), ""))
        calls[event.index] = (given, text + event.arguments)
    assert [(*given, json.loads(text)) for given, text in calls.values()] == [
        (call.name, call.id, call.arguments) for call in result.tool_calls
    ]
    assert [call.arguments for call in result.tool_calls] == [arguments for _, arguments in NOW[: family.n]]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("is_eager", [True, False])
def test_cut_calls_come_once(name, is_eager):
    llm = make(FAMILIES[name])
    plan = llm.tool_plan(TOOLS)
    prompt = llm.chat_prompt(HELLO, tools=plan.shown)
    tokens = list(llm.stream(prompt, reasoning=True, **GREEDY))
    result = llm.generate(prompt, reasoning=True, **GREEDY)
    whole = plan.read(result)
    for most in range(1, len(result.tokens)):
        watcher = CallWatcher(plan, eager=lambda name: is_eager)
        text = "".join(watcher.push(token) for token in tokens[:most])
        rest, ended = watcher.end(replace(result, tokens=result.tokens[:most], finish_reason="length"))
        pieces = {}
        for event in watcher.take():
            told, arguments = pieces.get(event.index, (event.name, ""))
            pieces[event.index] = told, arguments + event.arguments
        everything = text + rest + "".join(told + arguments for told, arguments in pieces.values())
        assert everything.count("Oslo") <= 1, (most, everything)
        assert everything.count("now") <= len(whole.tool_calls), (most, everything)
        arguments = [arguments for _, arguments in pieces.values()]
        whole_calls = arguments[: len(ended.tool_calls)]
        assert [json.loads(one) for one in whole_calls] == [call.arguments for call in ended.tool_calls]
        assert len(arguments) - len(whole_calls) <= is_eager, (most, arguments)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FAMILIES)
def test_required_calls_are_read_back(name):
    llm = make(FAMILIES[name], noise)
    schemas = {tool.name: json.loads(tool.schema) for tool in check_tools(TOOLS)}
    named = {"type": "function", "function": {"name": "weather"}}
    for seed, choice in enumerate(["required", "required", named]):
        options = {**WILD, "reasoning": False} if FAMILIES[name].thinks[0] else WILD
        result = llm.chat(HELLO, tools=TOOLS, tool_choice=choice, seed=seed, **options)
        if result.finish_reason == "length":
            continue  # a string without a bound
        assert result.tool_calls, llm.tokenizer.decode(result.tokens, special=True)
        assert result.text == ""
        for call in result.tool_calls:
            jsonschema.validate(call.arguments, schemas[call.name])
            assert choice == "required" or call.name == "weather"


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.thinks[0]])
def test_calls_in_the_reasoning_are_none(name):
    family = FAMILIES[name]
    opening, closing = family.thinks
    inside = family.says if name != "harmony" else '{"name": "now"} to=functions.now'
    llm = make(family, f"{opening}Hm. {inside} So.{closing}{family.says}")
    result = llm.chat(HELLO, tools=TOOLS, **GREEDY)
    assert [(call.name, call.arguments) for call in result.tool_calls] == NOW[: family.n]
    assert result.reasoning.startswith("Hm.")
    assert result.text == ""


@pytest.mark.parametrize("name", FAMILIES)
def test_conversations_hold_calls_and_their_answers(name):
    llm = make(FAMILIES[name])
    result = llm.chat(HELLO, tools=TOOLS, **GREEDY)
    messages = [{"role": "system", "content": "Be brief."}, *HELLO, result.message]
    messages += [call.answer("minus four") for call in result.tool_calls]
    text = llm.tokenizer.decode(llm.chat_prompt(messages, tools=SHOWN), special=True)
    assert "Be brief." in text
    assert "minus four" in text
    said = text.split("Is it cold")[1].split("minus four")[0]
    assert "now" in said
    assert "Oslo" in said.split("in Oslo?")[1]
    assert '\\"town' not in said


def test_several_calls_are_turns_of_their_own_where_a_template_takes_one():
    llm = make(FAMILIES["harmony"])
    calls = [ToolCall("now", {"town": town}, town).message for town in ("Oslo", "Bergen")]
    messages = [*HELLO, {"role": "assistant", "content": "", "tool_calls": calls}]
    messages += [
        {"role": "tool", "tool_call_id": town, "content": f"{town}: 4"} for town in ("Bergen", "Oslo")
    ]
    text = llm.tokenizer.decode(llm.chat_prompt(messages, tools=SHOWN), special=True)
    places = [
        text.index(part, text.index("commentary")) for part in ('"Bergen"', "Bergen: 4", '"Oslo"', "Oslo: 4")
    ]
    assert places == sorted(places)


def test_ids_are_shortened_for_a_template_that_takes_no_long_ones():
    family = FAMILIES["mistral, ids before arguments"]
    check = "{% if m.tool_calls[0].id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    strict = family._replace(
        template=family.template.replace("{% if m.tool_calls %}", "{% if m.tool_calls %}" + check)
    )
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [ToolCall("now", {}, "call_1").message]},
    ]
    llm = make(strict)
    text = llm.tokenizer.decode(llm.chat_prompt(messages, tools=SHOWN), special=True)
    assert re.search(r"now\[CALL_ID\][0-9a-f]{9}\[ARGS\]\{\}", text)


def test_answers_are_part_of_the_turn_where_a_template_reads_them_there():
    family = FAMILIES["gemma 4"]
    said = (
        "{% for r in m.tool_responses or [] %}<response:{{ r.name }}>{{ r.response.n }}{% endfor %}<|im_end|>"
    )
    llm = make(
        family._replace(template=family.template.replace("<|im_end|>\n{% endfor %}", said + "\n{% endfor %}"))
    )
    call = ToolCall("now", {}, "call_1")
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call.message]},
        call.answer({"n": 4}),
    ]
    text = llm.tokenizer.decode(llm.chat_prompt(messages, tools=SHOWN), special=True)
    assert "<|tool_call>call:now{}<tool_call|><response:now>4<|im_end|>" in text
