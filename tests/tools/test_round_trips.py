"""Whatever arguments a call has: its format writes them, its grammar allows that, and they are read back."""

import json
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from call_families import FAMILIES, make
from stretto.structured.compiler import Compiler
from stretto.tools.check import check_tools
from stretto.tools.finding import call_format
from stretto.tools.following import CallReader
from stretto.tools.format import MARKS, Tagged, is_mark
from stretto.tools.grammar import required_calls
from stretto.tools.history import write_calls
from stretto.tools.tag_reading import parse_value

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "list": {"type": "array", "items": {"type": "string"}},
        "inner": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "flag": {"type": "boolean"}},
            "required": ["text"],
            "additionalProperties": False,
        },
    },
    "required": ["text"],
}
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
TOOLS = check_tools([{"name": "do_it", "description": "x", "parameters": PARAMETERS}, {"name": "now"}])
MARKERS = [
    *("<tool_call>", "</tool_call>", "\n</parameter>\n", "</parameter", "</arg_value>", "[TOOL_CALLS]"),
    *('<|"|>', "</｜DSML｜parameter>", "<｜tool▁call▁end｜>", "<|tool_call_end|>", ")]", "}]", '"}'),
    *("</function>", ">>>now\n{}", "<|channel|>", "```", "null", "None", "5", "true", "{", "[", "\n"),
    *("<think>", "</think>", "functions.now:0", "\\u0041", "\\n", "\r\n", "\u2028", "\U000d0107"),
    *("'", '"', "\\", " ", "é", "𝄞", "\0", "[ARGS]"),
]  # fmt: skip
PLAIN = st.characters(exclude_categories=["Cs"], max_codepoint=MARKS - 1, exclude_characters="\x7f")
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(MARKERS),
        st.text(PLAIN, max_size=4),
    ),
    max_size=4,
).map("".join)
ARGUMENTS = st.fixed_dictionaries(
    {"text": TEXTS},
    optional={
        "count": st.integers(-(10**12), 10**12),
        "note": st.none() | TEXTS,
        "list": st.lists(TEXTS, max_size=3),
        "inner": st.tuples(TEXTS, st.booleans()).map(lambda pair: {"text": pair[0], "flag": pair[1]}),
    },
)


@cache
def family(name):
    llm = make(FAMILIES[name])
    tokenizer = llm.tokenizer
    layout = call_format(llm.template, tokenizer)
    compiler = Compiler(tokenizer, tokenizer.n_vocab)
    compiled = compiler.compile(required_calls(layout, TOOLS, one=False))
    return tokenizer, layout, compiled, CallReader(layout, tokenizer, tools=TOOLS)


def tokens_of(tokenizer, text):
    """Tokens of a text with marks: only the format's own markers are special tokens."""
    ids, plain = [], ""
    for character in [*text, ""]:
        if (character and not is_mark(character)) or character == "\U000d0107":
            plain += character
            continue
        ids += tokenizer.encode_inside(plain) if plain else []
        plain = ""
        ids += [ord(character) - MARKS] if character else []
    return ids


def is_expressible(layout, arguments):
    """Tags cannot hold their own end, nor a string that reads as another value."""
    if not isinstance(layout.encoding, Tagged):
        return True
    end = layout.encoding.end.strip()
    strings = [value for value in arguments.values() if isinstance(value, str)]
    if not layout.encoding.value_json and isinstance(arguments.get("note"), str):
        note = arguments["note"]
        if parse_value(note, frozenset({"null"})) != note:
            return False
    return not any(end in text or end in text + end[:-1] for text in strings)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(data=st.data())
def test_arguments_survive(name, data):
    tokenizer, layout, compiled, reader = family(name)
    drawn = data.draw(ARGUMENTS)
    arguments = {key: drawn[key] for key in PARAMETERS["properties"] if key in drawn}
    assume(is_expressible(layout, arguments))
    calls = [("do_it", arguments, "abcdefghi"), ("now", {}, "123456789")][: 1 if layout.joint is None else 2]
    text = write_calls(layout, calls).removeprefix(layout.begun)
    tokens = tokens_of(tokenizer, text)
    guide = compiled.guide()
    valid = guide.n_valid(tokens)
    assert valid == len(tokens), text[:80]
    said, found = reader.read(tokens)
    assert [(call.name, call.arguments) for call in found] == [(name, values) for name, values, _ in calls]
    assert said == ""
    follower = reader.follow()
    events = [event for token in tokens for event in follower.push(token)] + follower.end()
    pieces = {}
    for event in events:
        if event.arguments:
            pieces[event.index] = pieces.get(event.index, "") + event.arguments
    assert [json.loads(piece) for piece in pieces.values()] == [values for _, values, _ in calls]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(data=st.data())
def test_what_cannot_be_read_stays_text(name, data):
    tokenizer, layout, _, reader = family(name)
    text = data.draw(
        st.lists(st.sampled_from([*MARKERS, FAMILIES[name].says[:20], "x", "now"]), max_size=12).map("".join)
    )
    said, found = reader.read_text(text)
    if not found:
        wanted = "".join(c for c in text if not c.isspace())
        for special in tokenizer.specials:
            wanted = wanted.replace(special, "")
        assert "".join(said.split()) == "".join(wanted.split()) or layout.says or layout.begun
