"""Tools of models that think: calls are read from the answer, and required ones come after the reasoning."""

import pytest

import stretto
from thinking import GREEDY, KINDS, make

TOOLS = [{"name": "now", "description": "x"}, {"name": "run_analysis", "description": "y"}]
HELLO = [{"role": "user", "content": "What time is it?"}]
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
FALSE_CALL = '<tool_call>\n{"name": "wrong", "arguments": {}}\n</tool_call>'
HARMONY_CALL = '<|channel|>commentary to=functions.run_analysis <|constrain|>json<|message|>{"n": 3}<|call|>'


def test_a_call_in_the_reasoning_is_none():
    llm = make("qwen3", f"<think>\nSo {FALSE_CALL}.\n</think>\n\nLet me see. {CALL}")
    result = llm.chat(HELLO, tools=TOOLS, **GREEDY)
    assert [call.name for call in result.tool_calls] == ["now"]
    assert (result.text, result.reasoning) == ("Let me see.", f"So {FALSE_CALL}.")
    only = make("qwen3", f"<think>\nSo {FALSE_CALL}.\n</think>\n\nNo call.").chat(
        HELLO, tools=TOOLS, **GREEDY
    )
    assert (only.text, only.tool_calls) == ("No call.", ())


@pytest.mark.parametrize("name", ["qwen3", "exaone"])
def test_a_required_call_comes_after_the_reasoning(name):
    kind = KINDS["qwen3"]._replace(specials=KINDS[name].specials, user=KINDS[name].user)
    llm = make(kind, f"<think>\nHm.\n</think>{CALL}")
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        result = llm.chat(HELLO, tools=TOOLS, tool_choice=choice, **GREEDY)
        assert ([call.name for call in result.tool_calls], result.reasoning) == (["now"], "Hm.")
        assert result.text == ""


def test_a_required_call_without_tokens_for_the_markers():
    llm = make(KINDS["qwen3"]._replace(user=()), f"<think>\n\n</think>\n\n{CALL}")
    result = llm.chat(HELLO, tools=TOOLS, tool_choice="required", **GREEDY)
    assert ([call.name for call in result.tool_calls], result.text) == (["now"], "")


def test_a_prompt_that_opens_the_reasoning_changes_nothing_about_calls():
    source = KINDS["qwen3"].template.replace(
        "{{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}",
        "{{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- else %}{{- '<think>\\n' }}{%- endif %}",
    )
    llm = make(KINDS["qwen3"]._replace(template=source), f"Hm.\n</think>\n\n{CALL}")
    assert llm.tokenizer.decode(llm.chat_prompt(HELLO)).endswith("<think>\n")
    result = llm.chat(HELLO, tools=TOOLS, **GREEDY)
    assert ([call.name for call in result.tool_calls], result.reasoning) == (["now"], "Hm.")


def test_calls_in_channels():
    says = f"<|channel|>analysis<|message|>I run_analysis.<|end|><|start|>assistant{HARMONY_CALL}"
    llm = make("gpt-oss", says)
    result = llm.chat(HELLO, tools=TOOLS, **GREEDY)
    (call,) = result.tool_calls
    assert (call.name, call.arguments) == ("run_analysis", {"n": 3})
    assert (result.text, result.reasoning) == ("", "I run_analysis.")
    before = "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
    llm = make("gpt-oss", before + HARMONY_CALL)
    result = llm.chat(HELLO, tools=TOOLS, **GREEDY)
    assert (result.text, len(result.tool_calls)) == ("I will look.", 1)
    message = result.message
    again = llm.chat_prompt([*HELLO, message, result.tool_calls[0].answer("42")])
    assert "functions.run_analysis" in llm.tokenizer.decode(again)


@pytest.mark.parametrize("thought", ["", "It is late < now."])
def test_a_required_call_in_channels_may_come_after_reasoning(thought):
    before = f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant" if thought else ""
    llm = make(
        "gpt-oss", before + "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"
    )
    result = llm.chat(HELLO, tools=TOOLS, tool_choice="required", **GREEDY)
    assert [(call.name, call.arguments) for call in result.tool_calls] == [("now", {})]
    assert (result.reasoning, result.text) == (thought, "")
    stream = llm.chat(HELLO, tools=TOOLS, tool_choice="required", stream=True, **GREEDY)
    assert "".join(token.text for token in stream if token.is_reasoning) == thought
    assert [call.name for call in stream.result.tool_calls] == ["now"]


def test_streams_tell_calls_and_reasoning_apart():
    llm = make("qwen3", f"<think>\nSo {FALSE_CALL}.\n</think>\n\n{CALL}")
    stream = llm.chat(HELLO, tools=TOOLS, stream=True, **GREEDY)
    thoughts = "".join(token.text for token in stream if token.is_reasoning)
    assert thoughts == f"So {FALSE_CALL}."
    assert isinstance(stream.result.tool_calls[0], stretto.ToolCall)


def test_an_answer_with_a_schema_beside_calls_in_channels_is_final():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 1}}}
    schema |= {"required": ["n"], "additionalProperties": False}
    before = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    llm = make("gpt-oss", before + '<|channel|>final<|message|>{"n": 3}')
    result = llm.chat(HELLO, tools=TOOLS, grammar=schema, **GREEDY)
    assert (result.text, result.reasoning, result.tool_calls) == ('{"n": 3}', "Hm.", ())
    called = make("gpt-oss", before + HARMONY_CALL.replace('{"n": 3}', "{}"))
    result = called.chat(HELLO, tools=TOOLS, grammar=schema, **GREEDY)
    assert [(call.name, call.arguments) for call in result.tool_calls] == [("run_analysis", {})]
