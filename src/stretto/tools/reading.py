"""Parses tool calls in generated text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from stretto.engine.types import ToolCall
from stretto.errors import InvalidRequest
from stretto.text.reasoning import Format
from stretto.text.splitter import ANSWER, START, Splitter
from stretto.text.tokenizer import Tokenizer
from stretto.tools.format import ID, MARKS, CallFormat, is_mark

_decoder = json.JSONDecoder()
_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters")


def read_call(text: str) -> ToolCall:
    """The call in a text that was generated with `call_grammar`.

    >>> read_call('{"name": "now", "arguments": {}}').name
    'now'
    """
    try:
        call = _call(json.loads(text), "", 0)
    except ValueError as error:
        raise InvalidRequest(f"the text is no JSON, so no call: {error}", param="text") from None
    if call is None:
        raise InvalidRequest(f"the text is no call with a name and arguments: {text!r:.100}", param="text")
    return call


class CallReader:
    """Finds calls written in a template's format, with some tolerance for white space and order."""

    def __init__(self, layout: CallFormat, tokenizer: Tokenizer, reasoning: Format | None = None) -> None:
        self._tokenizer = tokenizer
        self._reasoning = reasoning
        marks = {c for part in (layout.before, layout.between, layout.after) for c in part if is_mark(c)}
        spelled = {ord(c): tokenizer.piece(ord(c) - MARKS) for c in marks}
        before, between = layout.before.translate(spelled), layout.between.translate(spelled)
        self._closing = re.sub(r"\s+", "", re.sub(rf"{ID}\d", "", layout.after.translate(spelled)))
        brace = before.rfind("{")
        self._as_object = brace >= 0 and between.lstrip().startswith('"')
        lead = before[:brace] if self._as_object else before
        self._marker = lead.strip().rsplit("\n", 1)[-1].rstrip("[ ")
        self._between = between.strip()
        ends = [tokenizer.piece(ord(c) - MARKS) for c in layout.between if is_mark(c)]
        # After a name in a header other words may come; the special token says where the arguments start.
        self._separator = ends[-1] if ends and self._between.endswith(ends[-1]) else ""

    @property
    def marker(self) -> str:
        """The prefix of every call, special tokens spelled out; "" if a call is nothing but an object."""
        return self._marker

    def read(self, tokens: list[int]) -> tuple[str, tuple[ToolCall, ...]]:
        """The text without the calls, and the calls."""
        return self.read_text(self._tokenizer.decode(tokens, special=True))

    def read_text(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """As `read`, of a text with special tokens spelled out."""
        calls: list[ToolCall] = []
        parts: list[str] = []
        at = 0
        while (match := self._next(text, at, bool(calls))) is not None:
            start, end, name, value = match
            call = _call(value, name, len(calls))
            if call is None:
                parts.append(text[at:end])
            else:
                parts.append(self._tidy(text[at:start], bool(calls)))
                calls.append(call)
            at = end
        parts.append(self._tidy(text[at:], bool(calls)))
        return self._shown("".join(parts)).strip(), tuple(calls)

    def _shown(self, text: str) -> str:
        """The text beside the calls, without markers of reasoning and headers."""
        if self._reasoning is None:
            return text
        splitter = Splitter(self._reasoning.states, START if self._reasoning.blocks else ANSWER)
        pieces = [*splitter.push(text), *splitter.flush()]
        return "".join(piece for piece, is_reasoning in pieces if not is_reasoning)

    def _next(self, text: str, at: int, again: bool) -> tuple[int, int, str, Any] | None:
        """The next call: its start and end, the name before it, if any, and its JSON."""
        while True:
            start = text.find(self._marker, at) if self._marker else self._bare(text, at)
            listed = re.compile(r"[\s,]*(?=\{)").match(text, at) if again else None
            if listed and (start < 0 or start >= listed.end()):
                start, inner = at, listed.end()
            elif start < 0:
                return None
            else:
                inner = start + len(self._marker)
            name = ""
            if not self._as_object:
                split_at = self._separator or self._between
                end = text.find(split_at, inner) if split_at else inner
                if end < 0:
                    return None
                name, inner = text[inner:end].strip(), end + len(split_at)
                if self._separator:
                    name = re.split(r"[^\w.-]", name)[0]
            opened = re.compile(r"[\s\[]*").match(text, inner)
            inner = opened.end() if opened else inner
            try:
                value, end = _decoder.raw_decode(text, inner)
                return start, end, name, value
            except ValueError:
                if not self._marker:
                    return None
                at = inner  # looked like a call, but is text
                again = False

    @staticmethod
    def _bare(text: str, at: int) -> int:
        """The index of a call without a marker, which must start the text; −1 if there is none."""
        brace = re.compile(r"\s*(?=\{)").match(text, at)
        return brace.end() if brace and not text[:at].strip() else -1

    def _tidy(self, text: str, closes: bool) -> str:
        """The text between calls, without the end of the previous call."""
        if not closes:
            return text
        closing = r"\s*".join(re.escape(c) for c in self._closing.lstrip("}"))
        return re.sub(rf"^[\s,}}\]]*({closing})?", "", text) if closing else text.lstrip(" \n,}]")


def _call(value: Any, name: str, number: int) -> ToolCall | None:
    """A JSON value as a call; None if it is none."""
    if not isinstance(value, Mapping):
        return None
    arguments: Any = value
    if not name:
        inner = value.get("function")
        value = inner if isinstance(inner, Mapping) else value
        name = next((value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)), "")
        arguments = next((value[key] for key in _ARGUMENT_KEYS if key in value), None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not name or not isinstance(arguments, Mapping):
        return None
    given = value.get("id") if isinstance(value.get("id"), str) else None
    return ToolCall(name, dict(arguments), given or _identity(name, arguments, number))


def _identity(name: str, arguments: Mapping[str, Any], number: int) -> str:
    """An id of nine letters and digits; the same call has the same one."""
    text = json.dumps([number, name, arguments], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:9]
