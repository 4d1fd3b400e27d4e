"""Parses tool calls in generated text, whole or while it comes.

`CallReader` belongs to a format and its tools; `follow` reads one text piece by piece and gives events: text,
the start of a call with its name, pieces of its arguments as JSON, and its end. What begins as a call and
cannot be read is text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from stretto.engine.types import ToolCall
from stretto.errors import InvalidRequest
from stretto.text.reasoning import Format
from stretto.text.tokenizer import Tokenizer
from stretto.tools.check import Tool
from stretto.tools.following import CallFollower, Event
from stretto.tools.format import CallFormat
from stretto.tools.marks import MarkedText, Marks
from stretto.tools.parsing import call_of

__all__ = ["CallReader", "read_call"]


def read_call(text: str) -> ToolCall:
    """The call in a text that was generated with `call_grammar`.

    >>> read_call('{"name": "now", "arguments": {}}').name
    'now'
    """
    try:
        found = call_of(json.loads(text))
    except ValueError as error:
        raise InvalidRequest(f"the text is no JSON, so no call: {error}", param="text") from None
    if found is None:
        raise InvalidRequest(f"the text is no call with a name and arguments: {text!r:.100}", param="text")
    name, arguments, given = found
    return ToolCall(name, arguments, given or call_id("", 0, name))


def call_id(salt: str, number: int, name: str) -> str:
    """An id of nine letters and digits, by the number of the call in its answer."""
    return hashlib.sha256(f"{salt}\0{number}\0{name}".encode()).hexdigest()[:9]


class CallReader:
    """Finds calls written in a format that is bound to a vocabulary.

    `has_blocks`: reasoning stands in blocks, and is told apart by their markers alone. `salt` tells the ids
    of calls apart that have none of their own. Calls behind the first `most` are left out.
    """

    def __init__(
        self,
        layout: CallFormat,
        tokenizer: Tokenizer,
        reasoning: Format | None = None,
        tools: Iterable[Tool] = (),
        salt: str = "",
        most: int | None = None,
    ) -> None:
        self._marks = Marks(layout, reasoning, tokenizer)
        self._tokenizer = tokenizer
        self.has_blocks = reasoning is not None and bool(reasoning.blocks)
        self._schemas: Mapping[str, Any] = {tool.name: json.loads(tool.schema) for tool in tools}
        self._salt = salt
        self._most = most

    def salted(self, salt: str) -> CallReader:
        """The same reader with other ids for the calls."""
        twin = copy(self)
        twin._salt = salt
        return twin

    def follow(self) -> CallFollower:
        """A follower of one answer."""
        return CallFollower(
            self._schemas,
            MarkedText(self._marks, self._tokenizer, self.has_blocks),
            lambda number, name: call_id(self._salt, number, name),
            self._most,
        )

    def read(self, tokens: list[int]) -> tuple[str, tuple[ToolCall, ...]]:
        """The text without the calls, and the calls."""
        follower = self.follow()
        events: list[Event] = []
        for token in tokens:
            events += follower.push(token)
        return _collected([*events, *follower.end()])

    def read_open(self, tokens: list[int]) -> tuple[str, tuple[ToolCall, ...]]:
        """The reasoning and the calls of an answer that never closes its reasoning.

        There are none unless they stand at its end.
        """
        follower = self.follow()
        follower.answer()
        events: list[Event] = []
        for token in tokens:
            events += follower.push(token)
        events += follower.end()
        last = max((i for i, event in enumerate(events) if event.call is not None), default=-1)
        if last < 0 or "".join(event.text for event in events[last:]).strip():
            return "", ()
        text, calls = _collected(events)
        for opening in self._marks.openings:
            text = text.removeprefix(opening).lstrip()
        return text, calls

    def read_text(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """As `read`, of a text with special tokens spelled out."""
        follower = self.follow()
        events = follower.push_spelled(text)
        return _collected([*events, *follower.end()])


def _collected(events: list[Event]) -> tuple[str, tuple[ToolCall, ...]]:
    text = "".join(event.text for event in events)
    calls = [event.call for event in events if event.call is not None]
    return re.sub(r"\n{3,}", "\n\n", text).strip() if calls else text.strip(), tuple(calls)
