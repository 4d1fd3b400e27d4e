"""Tools: shown by the model's own template, called in its own format, valid by construction."""

import json
import zlib
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import stretto
import vocabularies
from stretto import Grammar, InvalidRequest, ToolCall
from stretto.llm import LLM
from stretto.testing import MockBackend
from stretto.text.bpe import BPETokenizer
from stretto.text.template import ChatTemplate
from stretto.tools import call_grammar, read_call
from stretto.tools.check import check_tools
from stretto.tools.finding import call_format
from stretto.tools.following import CallReader

TEMPLATES = Path(__file__).parent.parent / "data" / "templates"
CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
LLAMA = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"]
MISTRAL = ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
MISTRAL += ["[TOOL_RESULTS]", "[/TOOL_RESULTS]"]

# Formats as Llama 3.1 has them, in templates of our own.
BARE = (
    "{{ bos_token }}{% if tools %}Tools: {{ tools | tojson }}{% endif %}"
    "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{% if message.tool_calls %}{% if message.tool_calls | length != 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set call = message.tool_calls[0].function %}"
    '{{ \'{"name": "\' + call.name + \'", "parameters": \' }}{{ call.arguments | tojson }}{{ "}" }}'
    "{% else %}{{ message.content }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
TAGGED = BARE.replace(
    '{{ \'{"name": "\' + call.name + \'", "parameters": \' }}{{ call.arguments | tojson }}{{ "}" }}',
    "<function={{ call.name }}>{{ call.arguments | tojson }}</function>",
)
KNOWN = {
    "qwen2.5": (CHATML, "</tool_call>", None),
    "qwen3": (CHATML, "</tool_call>", None),
    "chatml-tools": (CHATML, "</tool_call>", None),
    "mistral-nemo": (MISTRAL, "]", None),
    "bare": (LLAMA, "}", BARE),
    "tagged": (LLAMA, "</function>", TAGGED),
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a town.",
        "parameters": {
            "type": "object",
            "properties": {
                "town": {"type": "string", "maxLength": 12},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"enum": ["°C", "°F"]},
            },
            "required": ["town", "unit"],
        },
    },
}
MOVE = {
    "name": "move",
    "description": "Move a figure.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "array", "items": {"$ref": "#/$defs/square"}, "maxItems": 3}},
        "required": ["path"],
        "$defs": {"square": {"type": "string", "pattern": "^[a-h][1-8]$"}},
    },
}
TOOLS = [WEATHER, MOVE, {"name": "now"}]
SHOWN = [tool.description for tool in check_tools(TOOLS)]
HELLO = [{"role": "user", "content": "Is it cold in Oslo?"}]
WILD = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def make(name, script):
    specials, _, source = KNOWN.get(name, (CHATML, "", None))
    user = ("<tool_call>", "</tool_call>") if name.startswith("qwen") else ()
    eos = specials.index("</s>") if "</s>" in specials else 1
    values = vocabularies.bpe(specials=specials, user=user)
    tokenizer = BPETokenizer(
        vocabularies.metadata({**values, "eos_token_id": values["tokens"].index(specials[eos])})
    )
    template = ChatTemplate(
        source or (TEMPLATES / f"{name}.jinja").read_text(),
        tokenizer.specials,
        bos=specials[0],
        eos=specials[eos],
    )
    return LLM(MockBackend(script(tokenizer), tokenizer.n_vocab, 8192, 4096), tokenizer, template)


def noise(tokenizer):
    def script(seen):
        seed = zlib.crc32(np.array(seen[-8:], np.int32).tobytes())
        return np.random.Generator(np.random.SFC64(seed)).standard_normal(tokenizer.n_vocab, np.float32)

    return script


def saying(text):
    """A model that says a text, in which special tokens are parsed, and ends."""
    return lambda tokenizer: [*tokenizer.encode(text, special=True, bos=False), tokenizer.eos_id]


@pytest.mark.parametrize("name", KNOWN)
def test_required_calls_are_valid(name):
    llm = make(name, noise)
    schemas = {tool.name: json.loads(tool.schema) for tool in check_tools(TOOLS)}
    called = set()
    for seed in range(12):
        options = {"seed": seed, "parallel_tool_calls": True, **WILD}
        result = llm.chat(HELLO, tools=TOOLS, tool_choice="required", **options)
        assert result.finish_reason == "stop"
        assert result.text == "" or result.text.startswith("<think>")
        assert 1 <= len(result.tool_calls) <= 8
        for call in result.tool_calls:
            jsonschema.validate(call.arguments, schemas[call.name])
            called.add(call.name)
        text = llm.tokenizer.decode(result.tokens, special=True)
        assert text.rstrip().endswith(KNOWN[name][1])
    assert called == schemas.keys()


def test_a_required_call_is_one_unless_several_are_asked_for():
    llm = make("chatml-tools", noise)

    def counts(**options):
        asked = {"tools": TOOLS, "tool_choice": "required", **WILD, **options}
        return {len(llm.chat(HELLO, seed=seed, **asked).tool_calls) for seed in range(8)}

    assert counts() == counts(parallel_tool_calls=None) == counts(parallel_tool_calls=False) == {1}
    assert max(counts(parallel_tool_calls=True)) > 1
    assert max(counts(parallel_tool_calls=True, tool_choice="move")) == 1  # a function by name is called once
    assert llm.tool_plan(TOOLS, "required") != llm.tool_plan(TOOLS, "required", True)
    with pytest.raises(InvalidRequest, match="parallel_tool_calls must be True, False or None, not 2"):
        counts(parallel_tool_calls=2)


def test_an_answer_that_is_free_to_call_may_have_several_calls():
    said = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n' * 2
    llm = make("chatml-tools", saying(said))
    assert len(llm.chat(HELLO, tools=TOOLS, temperature=0).tool_calls) == 2
    assert len(llm.chat(HELLO, tools=TOOLS, temperature=0, parallel_tool_calls=False).tool_calls) == 1


@pytest.mark.parametrize("name", KNOWN)
def test_a_call_is_written_as_the_template_writes_it(name):
    """The next prompt repeats what was generated, token by token, so it is found in the cache."""
    llm = make(name, noise)
    choice = {"type": "function", "function": {"name": "move"}}
    result = llm.chat(HELLO, tools=TOOLS, tool_choice=choice, seed=1, **WILD)
    (call,) = result.tool_calls
    assert call.name == "move"
    asked = llm.chat_prompt(HELLO, tools=[tool.description for tool in check_tools(TOOLS)])
    message = {**result.message, "content": ""}
    again = llm.chat_prompt(
        [*HELLO, message],
        tools=[tool.description for tool in check_tools(TOOLS)],
        add_generation_prompt=False,
    )
    assert again[: len(asked) + len(result.tokens)] == asked + result.tokens
    as_text = json.loads(json.dumps(message))
    as_text["tool_calls"][0]["function"]["arguments"] = json.dumps(call.arguments)
    assert llm.chat_prompt([*HELLO, as_text], add_generation_prompt=False) == llm.chat_prompt(
        [*HELLO, message], add_generation_prompt=False
    )


@pytest.mark.parametrize("name", ["qwen2.5", "chatml-tools", "mistral-nemo"])
def test_a_conversation_goes_on_after_a_call(name):
    llm = make(name, noise)
    result = llm.chat(HELLO, tools=TOOLS, tool_choice="required", seed=3, **WILD)
    messages = [*HELLO, {**result.message, "content": ""}]
    messages += [call.answer({"degrees": -4}) for call in result.tool_calls]
    text = llm.tokenizer.decode(llm.chat_prompt(messages, tools=[WEATHER]), special=True)
    assert text.count('{"degrees": -4}') == len(result.tool_calls)


def call(name, arguments):
    return json.dumps({"name": name, "arguments": arguments})


OSLO = {"town": "Oslo", "unit": "°C"}
SAID = {
    "alone": ("<tool_call>\n" + call("get_weather", OSLO) + "\n</tool_call>", "", [("get_weather", OSLO)]),
    "with words": (
        "Let me see.\n<tool_call>\n" + call("now", {}) + "\n</tool_call>",
        "Let me see.",
        [("now", {})],
    ),
    "words behind": ("<tool_call>" + call("now", {}) + "</tool_call>\nDone.", "Done.", [("now", {})]),
    "two": (
        "<tool_call>\n"
        + call("now", {})
        + "\n</tool_call>\n<tool_call>\n"
        + call("move", {"path": []})
        + "\n</tool_call>",
        "",
        [("now", {}), ("move", {"path": []})],
    ),
    "other white space": ('<tool_call>{ "name" :"now",\n "arguments":{} } </tool_call>', "", [("now", {})]),
    "other order": ('<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>', "", [("now", {})]),
    "never closed": ("<tool_call>\n" + call("now", {}), "", [("now", {})]),
    "JSON in JSON": ('<tool_call>\n{"name": "now", "arguments": "{}"}\n</tool_call>', "", [("now", {})]),
    "marks within": (
        "<tool_call>\n" + call("now", {"a": "</tool_call><tool_call>{"}) + "\n</tool_call>",
        "",
        [("now", {"a": "</tool_call><tool_call>{"})],
    ),
    "an unknown function": ("<tool_call>\n" + call("fly", {}) + "\n</tool_call>", "", [("fly", {})]),
    "no call": ("It is cold.", "It is cold.", []),
    "broken": (
        '<tool_call>\n{"name": "now", "argu\n</tool_call>',
        '<tool_call>\n{"name": "now", "argu\n</tool_call>',
        [],
    ),
    "broken, then whole": (
        "<tool_call>{oops}</tool_call><tool_call>" + call("now", {}) + "</tool_call>",
        "<tool_call>{oops}</tool_call>",
        [("now", {})],
    ),
    "no name": ("<tool_call>\n{}\n</tool_call>", "<tool_call>\n{}\n</tool_call>", []),
    "only a mark": ("The mark is <tool_call> here.", "The mark is <tool_call> here.", []),
}


@pytest.mark.parametrize("name", SAID)
def test_calls_are_read_from_free_answers(name):
    text, said, calls = SAID[name]
    llm = make("qwen2.5", saying(text))
    result = llm.chat(HELLO, tools=TOOLS, temperature=0, max_tokens=400)
    assert [(call.name, call.arguments) for call in result.tool_calls] == calls
    assert result.text == said
    assert all(isinstance(call, ToolCall) and len(call.id) == 9 for call in result.tool_calls)


def test_lists_of_calls_behind_a_special_token():
    first, second = '{"name": "now", "arguments": {}, "id": "abcdefghi"}', call("move", {"path": []})
    text = f"[TOOL_CALLS][{first}, {second}]"
    result = make("mistral-nemo", saying(text)).chat(HELLO, tools=TOOLS, temperature=0)
    assert [(call.name, call.arguments) for call in result.tool_calls] == [
        ("now", {}),
        ("move", {"path": []}),
    ]
    assert result.tool_calls[0].id == "abcdefghi"
    assert result.text == ""
    # The words alone are not the token.
    spelled = make("qwen2.5", saying(text)).chat(HELLO, tools=TOOLS, temperature=0)
    assert spelled.tool_calls == ()


def test_bare_json_is_a_call_if_it_names_a_function():
    text = '{"name": "now", "parameters": {}}'
    assert make("bare", saying(text)).chat(HELLO, tools=TOOLS, temperature=0).tool_calls[0].name == "now"
    said = make("bare", saying(f"As JSON: {text} Done.")).chat(HELLO, tools=TOOLS, temperature=0)
    assert (said.text, [call.name for call in said.tool_calls]) == ("As JSON:  Done.", ["now"])
    other = text.replace("now", "fly")
    said = make("bare", saying(f"As JSON: {other}")).chat(HELLO, tools=TOOLS, temperature=0)
    assert (said.text, said.tool_calls) == (f"As JSON: {other}", ())


def test_tags_around_arguments_are_read():
    tagged = make("tagged", saying('Well. <function=now>{"a": 1}</function>'))
    result = tagged.chat(HELLO, tools=TOOLS, temperature=0)
    (call,) = result.tool_calls
    assert (result.text, call.name, call.arguments) == ("Well.", "now", {"a": 1})


def test_streams_and_several_answers():
    llm = make("qwen2.5", noise)
    whole = llm.chat(HELLO, tools=TOOLS, tool_choice="required", seed=2, **WILD)
    stream = llm.chat(HELLO, tools=TOOLS, tool_choice="required", seed=2, stream=True, **WILD)
    text = "".join(token.text for token in stream)
    assert stream.result.tool_calls == whole.tool_calls
    assert text.startswith("<tool_call>")
    several = llm.chat(HELLO, tools=TOOLS, tool_choice="required", seed=2, n=3, **WILD)
    assert several[0].tool_calls == whole.tool_calls
    assert all(result.tool_calls for result in several)


def test_choices():
    llm = make("qwen2.5", saying("Hello."))
    shown = llm.tokenizer.encode("get_weather")
    assert llm.chat(HELLO, tools=TOOLS, temperature=0).text == "Hello."
    assert _holds(llm.backend.batches, shown)
    llm.backend.batches.clear()
    assert llm.chat(HELLO, tools=TOOLS, tool_choice="none", temperature=0).text == "Hello."
    assert not _holds(llm.backend.batches, shown)


def _holds(batches, tokens):
    flat = [token for batch in batches for token in batch]
    return any(flat[i : i + len(tokens)] == tokens for i in range(len(flat)))


@pytest.mark.parametrize("name", ["smollm2", "llama3", "gemma"])
def test_templates_without_tools_get_them_in_a_message(name):
    specials = {"llama3": LLAMA, "gemma": ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]}
    values = vocabularies.bpe(specials=specials.get(name, CHATML))
    end = values["tokens"].index(specials.get(name, CHATML)[1])
    tokenizer = BPETokenizer(vocabularies.metadata({**values, "eos_token_id": end}))
    template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), tokenizer.specials)
    llm = LLM(MockBackend(noise(tokenizer), tokenizer.n_vocab, 8192, 4096), tokenizer, template)
    result = llm.chat(HELLO, tools=TOOLS, tool_choice="required", seed=1, **WILD)
    assert result.text == ""
    assert {call.name for call in result.tool_calls} <= {"get_weather", "move", "now"}
    messages = [{"role": "system", "content": "Be brief."}, *HELLO, result.message]
    messages += [call.answer("-4") for call in result.tool_calls]
    text = llm.tokenizer.decode(llm.chat_prompt(messages, tools=SHOWN), special=True)
    assert "Be brief." in text
    assert '"The weather in a town."' in text
    assert text.count(result.tool_calls[0].name + '", "arguments": ') >= 1
    assert "-4" in text


@pytest.mark.parametrize("calls", ["", "{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}"])
def test_templates_that_write_no_calls_get_them_as_text(calls):
    tokenizer = BPETokenizer(vocabularies.metadata(vocabularies.bpe(specials=CHATML)))
    source = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}" + calls + "{% endfor %}"
    llm = LLM(MockBackend([1], tokenizer.n_vocab), tokenizer, ChatTemplate(source, tokenizer.specials))
    turn = ToolCall("now", {"zone": "UTC"}, "1").message
    messages = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [turn]}]
    text = llm.tokenizer.decode(llm.chat_prompt(messages, tools=SHOWN))
    assert '{"name": "now", "arguments": {"zone": "UTC"}}' in text


WRONG = [
    ({"tools": "now"}, "tools must be a list"),
    ({"tools": []}, "0 entries"),
    ({"tools": [5]}, r"tools\[0\] must be a function or a dict"),
    ({"tools": [{"type": "retrieval"}]}, "retrieval"),
    ({"tools": [{"function": 3}]}, "no dict"),
    ({"tools": [{"name": 'a", "b'}]}, "has the name"),
    ({"tools": [{"name": "a"}, {"name": "a"}]}, "two functions called 'a'"),
    ({"tools": [{"name": "a", "parameters": []}]}, "no JSON schema"),
    (
        {"tools": [{"name": "a", "parameters": {"properties": {"x": {"$ref": "http://x"}}}}]},
        r"tools\[0\] \(a\): ",
    ),
    ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice must be"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "fly"}}}, "'fly'"),
    ({"tool_choice": "required"}, "no tools to choose from"),
    ({"tools": TOOLS, "grammar": Grammar.regex("a")}, "leave one of them out"),
    (
        {"tools": [{"name": "a", "parameters": {"not": {}}}], "tool_choice": "required"},
        "description of the tools",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_tools_say_what_is_wrong(options, message):
    with pytest.raises(InvalidRequest, match=message):
        make("qwen2.5", noise).chat(HELLO, **options)


def test_the_fallback_by_json(smollm2_path):
    with stretto.load(smollm2_path) as llm:
        schemas = {tool.name: json.loads(tool.schema) for tool in check_tools(TOOLS)}
        for seed in range(4):
            result = llm.chat(HELLO, grammar=call_grammar(TOOLS), seed=seed, **WILD)
            call = read_call(result.text)
            jsonschema.validate(call.arguments, schemas[call.name])
    for text in ("no JSON", "[1]", '{"name": "now"}'):
        with pytest.raises(InvalidRequest, match=r"no JSON|no call"):
            read_call(text)


def test_reading_never_fails():
    rng = np.random.default_rng(0)
    pieces = [
        "<tool_call>",
        "</tool_call>",
        "{",
        "}",
        '"name": ',
        '"now"',
        ", ",
        '"arguments": ',
        "{}",
        "[",
        "\n",
        "x",
    ]
    for name in KNOWN:
        llm = make(name, noise)
        reader = CallReader(call_format(llm.template, llm.tokenizer), llm.tokenizer)
        for _ in range(300):
            text = "".join(rng.choice(pieces, rng.integers(1, 30)))
            said, calls = reader.read_text(text)
            assert len(said) <= len(text)
            assert all(isinstance(call, ToolCall) for call in calls)


def test_formats_are_learned_with_special_tokens_of_high_ids():
    fillers = [f"<unused{i}>" for i in range(160_000)]
    values = vocabularies.bpe(specials=[*fillers, *CHATML])
    tokenizer = BPETokenizer(vocabularies.metadata({**values, "eos_token_id": len(values["tokens"]) - 2}))
    template = ChatTemplate((TEMPLATES / "chatml-tools.jinja").read_text(), tokenizer.specials)
    layout = call_format(template, tokenizer)
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert CallReader(layout, tokenizer).read_text(text)[1][0].name == "now"


def test_strict_tools_have_closed_arguments():
    inner = {"type": "object", "properties": {"a": {"type": "string"}}}
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"x": inner}}}
    (free,), (strict,) = check_tools([tool]), check_tools([{**tool, "strict": True}])
    assert "additionalProperties" not in json.loads(free.schema)["properties"]["x"]
    assert json.loads(strict.schema)["properties"]["x"]["additionalProperties"] is False
