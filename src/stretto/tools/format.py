"""The format of a chat template's tool calls, learned by rendering some.

Templates differ: some put `<tool_call>` around JSON, others a list after a special token, or plain JSON.
Each can write a turn of the assistant that holds calls, since such turns are part of later prompts. So a call
with a name and arguments that stand nowhere else is rendered, and what stands around them is the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from stretto.errors import InvalidRequest, Unsupported
from stretto.text.reasoning import find_format
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.tools.check import Tool

MARKS = 0x40000  # special tokens are characters from here on, in planes that Unicode has left empty
LAST_MARK = 0xDFFFF  # room for 655,360 ids
ID = "Stretto0"  # with a digit after it the id of a call: nine letters and digits, as Mistral's are

FALLBACK = (
    "describe the tools in a message instead and use grammar=stretto.tools.call_grammar(tools) "
    "(docs/structured.md)"
)
_learned: WeakKeyDictionary[ChatTemplate, CallFormat] = WeakKeyDictionary()


@dataclass(frozen=True)
class CallFormat:
    """The text before a name, between it and the arguments, after them, and between two calls.

    Special tokens are characters from `MARKS` on. `joint` is None where a turn has one call at most. `block`
    is the empty reasoning that the template writes before a call.
    """

    before: str
    between: str
    after: str
    joint: str | None
    block: str = ""


def call_format(template: ChatTemplate, tokenizer: Tokenizer, tools: list[Tool]) -> CallFormat:
    """The format of a template's calls; `Unsupported` where it has no tools or writes no calls."""
    shown = [tool.description for tool in tools]
    user = {"role": "user", "content": "x"}
    try:
        prompt = _text(template.parts([user], tools=shown))
        bare = _text(template.parts([user]))
    except InvalidRequest as error:
        raise Unsupported(
            f"this model's chat template takes no tools ({error}); {FALLBACK}", param="tools"
        ) from None
    if prompt == bare:
        raise Unsupported(f"this model's chat template does not mention tools; {FALLBACK}", param="tools")
    learned = _learned.get(template)
    if learned is None:
        learned = _learned[template] = _learn(template, tokenizer, shown, user, prompt)
    return learned


def marked(token: int) -> str:
    """The character for a special token."""
    return chr(MARKS + token)


def is_mark(character: str) -> bool:
    """Whether a character stands for a special token."""
    return MARKS <= ord(character) <= LAST_MARK


def _learn(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    shown: list[Mapping[str, Any]],
    user: Mapping[str, Any],
    prompt: str,
) -> CallFormat:
    markers = _markers(template, tokenizer)
    begin = _without_opening(prompt, markers)

    def turn_with(n: int) -> str:
        """A turn with `n` calls, as the template writes it after the prompt."""
        calls = [{"id": _id(i), "type": "function", "function": _call(i)} for i in range(n)]
        turn = {"role": "assistant", "content": "", "tool_calls": calls}
        whole = _text(template.parts([user, turn], tools=shown, add_generation_prompt=False))
        if not whole.startswith(begin):
            raise InvalidRequest("a turn with a call does not start as an answer does")
        turn_text = whole[len(begin) :]
        ends = [turn_text.find(marked(token)) for token in tokenizer.end_ids]
        end = min((at for at in ends if at >= 0), default=len(turn_text.rstrip()))
        return turn_text[:end]

    def answer(n: int) -> str:
        """The same without reasoning."""
        text = turn_with(n)
        return text[_reasoning_length(text, markers) :]

    try:
        one = turn_with(1)
        block = one[: _reasoning_length(one, markers)]
        before, between, after = _around(one[len(block) :], 0)
    except InvalidRequest as error:
        raise Unsupported(
            f"the format of this model's tool calls cannot be learned from its template: {error}; {FALLBACK}",
            param="tools",
        ) from None
    return CallFormat(before, between, after, _joint(answer, before, between, after), block)


def _markers(template: ChatTemplate, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """The markers that open and close reasoning, special tokens as marks."""
    layout = find_format(template.source)
    marks = {text: marked(token) for text, token in tokenizer.specials.items()}
    return [] if layout is None else [(_marked(a, marks), _marked(b, marks)) for a, b in layout.blocks]


def _marked(text: str, marks: Mapping[str, str]) -> str:
    for special in sorted((one for one in marks if one in text), key=len, reverse=True):
        text = text.replace(special, marks[special])
    return text


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
    return f"{ID}{number}"


def _call(number: int) -> dict[str, Any]:
    return {"name": _name(number), "arguments": {f"stretto_key_{number}": f"stretto_value_{number}"}}


def _arguments(number: int) -> str:
    """A pattern for the arguments of a call as JSON, whatever its white space."""
    key, value = (re.escape(json.dumps(f"stretto_{what}_{number}")) for what in ("key", "value"))
    return rf"\{{\s*{key}\s*:\s*{value}\s*\}}"


def _text(parts: list[str | int]) -> str:
    return "".join(marked(part) if isinstance(part, int) else part for part in parts)
