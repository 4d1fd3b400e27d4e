"""Markers of calls: white space is none, and no part of one is streamed as text."""

import vocabularies
from call_families import CHATML, FAMILIES, make
from stretto.llm import LLM
from stretto.server.generation.calls import CallWatcher
from stretto.testing import MockBackend
from stretto.text.bpe import BPETokenizer
from stretto.text.reasoning import find_format
from stretto.text.template import ChatTemplate
from stretto.tools.following import CallReader
from stretto.tools.format import CallFormat, bind

TOOLS = [{"name": "now", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}]
HELLO = [{"role": "user", "content": "Hi"}]
TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    "{{ tools | tojson }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = '{"name": "now", "arguments": {"town": "Oslo"}}'


def model(says, signs, user=()):
    """A model that says a text; the signs in its template show its formats."""
    values = vocabularies.bpe(specials=CHATML, user=user)
    end = values["tokens"].index("<|im_end|>")
    tokenizer = BPETokenizer(vocabularies.metadata({**values, "eos_token_id": end}))
    template = ChatTemplate(TURNS + "{# " + signs + " #}", tokenizer.specials)
    script = [*tokenizer.encode(says, special=True, bos=False), end]
    return LLM(MockBackend(script, tokenizer.n_vocab, 2048, 2048), tokenizer, template)


def streamed(llm, prompt=None):
    """The text, the reasoning and the names of calls of a stream."""
    plan = llm.tool_plan(TOOLS)
    watcher = CallWatcher(plan)
    text, reasoning, names = "", "", []
    stream = llm.stream(prompt or llm.chat_prompt(HELLO, tools=plan.shown), reasoning=True, max_tokens=400)
    for token in stream:
        piece = watcher.push(token)
        text, reasoning = (text, reasoning + piece) if token.is_reasoning else (text + piece, reasoning)
        names += [event.name for event in watcher.take() if event.name]
    rest, result = watcher.end(stream.result)
    names += [event.name for event in watcher.take() if event.name]
    return text + rest, reasoning, names, result


def test_an_opening_of_white_space_is_no_marker():
    llm = model("", "")
    before = '<tool_call>\n{"name": "'
    layout = bind(
        CallFormat("x", before, '", "arguments": ', "}\n</tool_call>", "", " ", "\n"), llm.tokenizer
    )
    reader = CallReader(layout, llm.tokenizer)
    assert reader.read_text("One two <") == ("One two <", ())
    text, calls = reader.read_text(f"So: <tool_call>{CALL}</tool_call>")
    assert (text, [call.name for call in calls]) == ("So:", ["now"])


def test_a_tag_that_begins_as_the_tag_of_reasoning_does_is_not_streamed():
    llm = model(f"<tool_call>\n{CALL}\n</tool_call>", "<think> <tool_call>")
    assert find_format("<think>") is not None
    text, _, names, result = streamed(llm)
    assert (text, names) == ("", ["now"])
    assert result.text == ""


def test_the_white_space_between_the_tags_of_an_argument_may_differ():
    call = "<tool_call>now\n<arg_key>town</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"
    _, _, names, result = streamed(model(call, "<tool_call> <arg_key>k</arg_key><arg_value>"))
    assert (names, result.tool_calls[0].arguments) == (["now"], {"town": "Oslo"})


def test_a_call_that_ends_reasoning_without_closing_it_is_a_call():
    tags = ("<think>", "</think>")
    llm = model(f"<think>Hm. <tool_call>\n{CALL}\n</tool_call>", "<think></think> <tool_call>", tags)
    text, _, names, result = streamed(llm)
    assert (text, names, result.text, result.reasoning) == ("", ["now"], "", "Hm.")


def test_a_call_within_reasoning_is_none():
    tags = ("<think>", "</think>")
    said = f"<think><tool_call>\n{CALL}\n</tool_call> or not"
    for end in ("", "</think>No."):
        llm = model(said + end, "<think></think> <tool_call>", tags)
        assert streamed(llm)[2] == []


def test_calls_in_the_analysis_channel_are_read():
    family = FAMILIES["harmony"]
    for header in ("<|channel|>analysis to=functions.now", " to=functions.now<|channel|>analysis"):
        llm = make(family, header + '<|message|>{"town": "Oslo"}')
        _, _, names, result = streamed(llm)
        assert (names, result.reasoning) == (["now"], "")
