"""The format of a model's tool calls: declared for its family, learned from its template, or plain JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from stretto.errors import InvalidRequest
from stretto.text.reasoning import find_format
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.tools.format import (
    AFTER_LEARNING,
    DECLARED,
    GENERIC,
    ID,
    CallFormat,
    bind,
    make_mark,
    shared_prefix,
    special_marks,
    with_marks,
)

# The format of a chat template's tool calls, learned by rendering some.
#
# Templates differ: some put `<tool_call>` around JSON, others a list after a special token, or plain JSON.
# Each can write a turn of the assistant that holds calls, since such turns are part of later prompts. So a
# call with a name and arguments that stand nowhere else is rendered, and what stands around them is the
# format.

_ID = "Stretto0"  # with a digit after it the id of a call: nine letters and digits, as Mistral's are


def learn(template: ChatTemplate, tokenizer: Tokenizer, shown: Sequence[Mapping[str, Any]]) -> CallFormat:
    """The format that a template writes calls in; `InvalidRequest` says why there is none to be learned."""
    markers = _markers(template, tokenizer)
    begin = _without_opening(_text(template.parts([_USER], tools=shown)), markers)

    def turn_with(n: int) -> str:
        """A turn with `n` calls, as the template writes it after the prompt."""
        calls = [{"id": _id(i), "type": "function", "function": _call(i)} for i in range(n)]
        turn = {"role": "assistant", "content": "", "tool_calls": calls}
        whole = _text(template.parts([_USER, turn], tools=shown, add_generation_prompt=False))
        if not whole.startswith(begin):
            raise InvalidRequest("a turn with a call does not start as an answer does")
        turn_text = whole[len(begin) :]
        ends = [turn_text.find(make_mark(token)) for token in tokenizer.end_ids]
        end = min((at for at in ends if at >= 0), default=len(turn_text.rstrip()))
        return turn_text[:end]

    def answer(n: int) -> str:
        """The same without reasoning."""
        text = turn_with(n)
        return text[_reasoning_length(text, markers) :]

    one = turn_with(1)
    block = one[: _reasoning_length(one, markers)]
    before, between, after = _around(one[len(block) :], 0)
    return _parts(before, between, after, _joint(answer, before, between, after), block)


def _parts(before: str, between: str, after: str, joint: str | None, block: str) -> CallFormat:
    """The format of calls with this text around them; `joint` stands between two.

    What is the same before every call belongs to the call, and what is not, to the turn.
    """
    before, between, after = (re.sub(rf"{_ID}\d", ID, text) for text in (before, between, after))
    if joint is None:
        return CallFormat("learned", before, between, after, block=block)
    joint = re.sub(rf"{_ID}\d", ID, joint)
    start = shared_prefix(before[::-1], joint[::-1])[::-1]
    end = shared_prefix(joint[: len(joint) - len(start)], after)
    return CallFormat(
        "learned",
        start,
        between,
        end,
        joint[len(end) : len(joint) - len(start)],
        before[: len(before) - len(start)],
        after[len(end) :],
        block=block,
    )


def _markers(template: ChatTemplate, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """The markers that open and close reasoning, special tokens as marks."""
    layout = find_format(template.tool_source)
    marks = special_marks(tokenizer)
    return [] if layout is None else [(with_marks(a, marks), with_marks(b, marks)) for a, b in layout.blocks]


def _without_opening(prompt: str, markers: list[tuple[str, str]]) -> str:
    """A prompt up to where reasoning may start: turns of the past may be without it."""
    bare = prompt.rstrip()
    for opening, closing in markers:
        if bare.endswith(closing):
            bare = bare.removesuffix(closing).rstrip()
        if bare.endswith(opening):
            return bare.removesuffix(opening)
    return prompt


def _reasoning_length(turn: str, markers: list[tuple[str, str]]) -> int:
    """The length of the block of reasoning, empty as a rule, that a template writes into a turn."""
    for opening, closing in markers:
        if turn.lstrip().startswith(opening) and closing in turn:
            return len(turn) - len(turn.partition(closing)[2].lstrip("\n"))
    return 0


def _joint(answer: Any, before: str, between: str, after: str) -> str | None:
    """The text between two calls, if they are written as one call is."""
    try:
        two = answer(2)
        first = _around(two, 0)
        head, middle, tail = _around(two, 1)
    except InvalidRequest:
        return None  # the template refuses, or writes them in another way
    joint = head.removeprefix(first[0] + _name(0) + first[1])
    arguments = re.match(_arguments(0), joint)
    same = (first[0], first[1], middle) == (before, between, between)
    if not same or arguments is None or tail != after.replace(_id(0), _id(1)):
        return None
    return joint[arguments.end() :]


def _around(text: str, number: int) -> tuple[str, str, str]:
    """The text before the name of a call, between it and its arguments, and after them."""
    at = text.find(_name(number))
    if at < 0:
        raise InvalidRequest("it leaves the name of the function out")
    rest = text[at + len(_name(number)) :]
    arguments = re.search(_arguments(number), rest)
    if arguments is None:
        raise InvalidRequest("it does not write the arguments as JSON after the name")
    return text[:at], rest[: arguments.start()], rest[arguments.end() :]


def _name(number: int) -> str:
    return f"stretto_function_{number}"


def _id(number: int) -> str:
    return f"{_ID}{number}"


def _call(number: int) -> dict[str, Any]:
    return {"name": _name(number), "arguments": {f"stretto_key_{number}": f"stretto_value_{number}"}}


def _arguments(number: int) -> str:
    """A pattern for the arguments of a call as JSON, whatever its white space."""
    key, value = (re.escape(json.dumps(f"stretto_{what}_{number}")) for what in ("key", "value"))
    return rf"\{{\s*{key}\s*:\s*{value}\s*\}}"


def _text(parts: list[str | int]) -> str:
    return "".join(make_mark(part) if isinstance(part, int) else part for part in parts)


Shown = Sequence[Mapping[str, Any]]

_found: WeakKeyDictionary[ChatTemplate, CallFormat] = WeakKeyDictionary()
_USER = {"role": "user", "content": "x"}
PROBE: Mapping[str, Any] = {  # a tool by which templates are tried
    "type": "function",
    "function": {
        "name": "stretto_tool",
        "description": "x",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "string", "description": "x"}},
            "required": ["x"],
        },
    },
}


def call_format(template: ChatTemplate, tokenizer: Tokenizer) -> CallFormat:
    """The format of a model's calls, in terms of its vocabulary."""
    found = _found.get(template)
    if found is None:
        found = _found[template] = _find(template, tokenizer)
    return found


def in_system(template: ChatTemplate) -> bool:
    """Whether a template reads tools from the system message, as Phi-4-mini's does."""
    source = template.tool_source
    return "message['tools']" in source and "<|tool|>" in source


def _find(template: ChatTemplate, tokenizer: Tokenizer) -> CallFormat:
    source = template.tool_source
    declared = next((layout for layout in DECLARED if layout.fits(source)), None)
    if not in_system(template) and not _shows_tools(template):
        return bind(GENERIC if declared is None else replace(declared, is_described=True), tokenizer)
    if declared is not None:
        return _begun(bind(declared, tokenizer), template)
    try:
        return learn(template, tokenizer, [PROBE])
    except InvalidRequest:
        fitting = (layout for layout in AFTER_LEARNING if layout.fits(source))
        return bind(next(fitting, GENERIC), tokenizer)


def _shows_tools(template: ChatTemplate) -> bool:
    """Whether a prompt with tools differs from one without."""
    try:
        prompt = template.parts([_USER], tools=[PROBE])
    except InvalidRequest:
        return False
    try:
        return prompt != template.parts([_USER])
    except InvalidRequest:
        return True  # it can only do with tools


def _begun(layout: CallFormat, template: ChatTemplate) -> CallFormat:
    """A format that knows whether a prompt ends with the beginning of a call."""
    start = (layout.opening or layout.before).strip()
    with suppress(InvalidRequest):
        end = template.parts([_USER], tools=[PROBE])[-1:]
        if start and isinstance(end[0], str) and end[0].rstrip().endswith(start):
            return replace(layout, begun=start)
    return layout
