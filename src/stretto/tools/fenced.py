"""Calls in fenced blocks of JSON, in which some models write them whatever their template says.

Qwen2.5-Coder answers

    ```json
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    ```

This is a call if a tool of that name is offered, the arguments fit its schema, nothing but such blocks
follows, and the same call does not stand in what the model was given to read. So is such an object without
a fence, if the answer is nothing else. All else is text. Nothing of it is shown before it is sure which of
both it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from stretto.engine.types import ToolCall
from stretto.structured.unique import canonical
from stretto.tools.fitting import fits
from stretto.tools.format import CallFormat
from stretto.tools.parsing import (
    ARGUMENT_KEYS,
    ID_KEYS,
    NAME_KEYS,
    Event,
    Stop,
    read_json_call,
    replace_surrogates,
)

Call = tuple[str, dict[str, Any]]  # a name and arguments
Quoted = Callable[[], frozenset[Any]]  # the calls that are quoted, in a form that can be compared

MAX_QUOTED = 10_000  # objects of a message that are looked at
MAX_READ = 1 << 18  # characters that are decoded in all messages, beside 8 for each of theirs
MAX_NESTED = 4  # string literals within string literals that are looked into
UNREAD = None  # among quoted calls: there are more, so that any call may be one of them
_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_FENCE_BEGUN = re.compile(r"(?:`{1,2}|~{1,2}|(?:`{3,}|~{3,})[^`\n]*)$")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_ESCAPED = {r"\b": "\b", r"\f": "\f", r"\n": "\n", r"\r": "\r", r"\t": "\t"}
_MARGIN = re.compile(r"^[ \t>]+", re.MULTILINE)
_KEYS = (*NAME_KEYS, *ARGUMENT_KEYS, *ID_KEYS, "type", "function")
_OBJECT = re.compile(rf'\{{\s*"(?:{"|".join(_KEYS)})"')
_BEGUN = re.compile(
    r'\s*(?:\[\s*)?(?:\{\s*(?:"(?P<key>[^"\\]*)(?:"\s*(?::\s*(?:"(?P<text>[^"\\]*)(?P<end>")?)?)?)?)?)?'
)


def writes_fenced(layout: CallFormat) -> bool:
    """Whether models of this format are known to answer with fenced blocks: Hermes' format, and alike."""
    return layout.is_object and "<tool_call>" in layout.lead


def calls_in(text: str) -> list[Call]:
    """The names and arguments of the calls that a block is: objects in a row, or a list; [] if it is not.

    >>> calls_in('{"name": "now", "arguments": {}}')
    [('now', {})]
    """
    decoder, values = json.JSONDecoder(), []
    try:
        while text := text.lstrip(" \t\r\n,;"):
            value, end = decoder.raw_decode(text)
            values += value if isinstance(value, list) else [value]
            text = text[end:]
    except (ValueError, RecursionError):
        return []
    found = [read_json_call(value) for value in values if isinstance(value, dict)]
    calls = [(one[0], one[1]) for one in found if one is not None]
    return calls if len(calls) == len(values) else []


def quoted_calls(messages: Any) -> frozenset[Any]:
    """The calls that stand in messages of others than the model: whoever repeats one quotes it.

    `UNREAD` is among them where a message has more objects than are looked at, or objects in objects take
    more work than that.
    """
    found: set[Any] = set()
    left = MAX_READ
    for text in _texts_of(messages):
        bare = _MARGIN.sub("", text)
        left += 8 * len(bare)
        for n, match in enumerate(_OBJECT.finditer(bare)):
            if n == MAX_QUOTED or left < 0:
                found.add(UNREAD)
                break
            value, end = _object_at(bare, match.start())
            left -= end - match.start()
            if value is not None and (call := read_json_call(value)) is not None:
                found.add(canonical(list(call[:2])))
    return frozenset(found)


def _object_at(text: str, start: int) -> tuple[Any, int]:
    """The object that begins at an index, None if it is none, and where reading it ended at the latest."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
        return value, end
    except json.JSONDecodeError as error:
        is_open = error.msg.startswith("Unterminated string")  # it was read to the end
        return None, len(text) if is_open else error.pos
    except (ValueError, RecursionError):
        return None, len(text)


def _texts_of(messages: Any) -> Iterator[str]:
    """The texts of messages that are not the assistant's, and what string literals in them say."""
    for message in messages if isinstance(messages, (list, tuple)) else ():
        if not isinstance(message, Mapping) or message.get("role") == "assistant":
            continue
        content = message.get("content")
        for part in content if isinstance(content, (list, tuple)) else [content]:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str):
                yield text
                for _ in range(MAX_NESTED):
                    if "\\" in text:
                        yield (text := replace_surrogates(_ESCAPE.sub(_unescaped, text)))


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[0], found[0][1:])


class Follower(Protocol):
    """Takes tokens of an answer and returns events."""

    @property
    def is_pending(self) -> bool:
        """Whether text was taken that is neither given out nor known to be part of a call."""

    def push(self, token: int) -> list[Event]:
        """Add a token; return what can be told now."""

    def push_spelled(self, text: str) -> list[Event]:
        """As `push`, for text with special tokens spelled out."""

    def answer(self) -> None:
        """The answer begins with the next token: the tokens of the reasoning before it were left out."""

    def end(self, stop: Stop | None = None) -> list[Event]:
        """The answer has ended, perhaps by a stop string; return the rest."""


class FencedFollower:
    """As the follower in it, which reads the model's own format, with calls in fenced blocks."""

    def __init__(
        self,
        inner: Follower,
        schemas: Mapping[str, Any],
        make_id: Callable[[int, str], str],
        most: int | None = None,
        quoted: Quoted = frozenset,
    ) -> None:
        self._inner = inner
        self._schemas = schemas
        self._make_id = make_id
        self._most = most
        self._quoted = quoted
        self._text = ""  # not given on yet
        self._at = 0  # index in it up to which lines have been read
        self._held: int | None = None  # index in it where the first block begins that may be a call
        self._is_start = self._is_line_start = True
        self._fence = ""  # of the block that lines stand in
        self._content: int | None = None  # index of the content of the block, if it may be a call
        self._calls: list[Call] = []
        self._has_inner = False  # a call in the model's own format

    @property
    def is_pending(self) -> bool:
        """Whether text was taken that is neither given out nor known to be part of a call."""
        return self._inner.is_pending or bool(self._text)

    def push(self, token: int) -> list[Event]:
        """Add a token; return what can be told now."""
        return self._sorted(self._inner.push(token))

    def push_spelled(self, text: str) -> list[Event]:
        """As `push`, for text with special tokens spelled out."""
        return self._sorted(self._inner.push_spelled(text))

    def answer(self) -> None:
        """The answer begins with the next token: the tokens of the reasoning before it were left out."""
        self._inner.answer()

    def end(self, stop: Stop | None = None) -> list[Event]:
        """The answer has ended, perhaps by a stop string; return the rest."""
        events = self._sorted(self._inner.end(stop))
        if self._has_inner:
            return events
        self._read_lines(has_ended=True)
        if self._content is not None:
            self._take_block(self._text[self._content :])
        calls = self._calls[: self._most]
        events += self._given(self._held if calls and self._held is not None else len(self._text))
        for index, (name, arguments) in enumerate(calls):
            given = self._make_id(index, name)
            events.append(Event(index=index, name=name, id=given))
            events.append(Event(index=index, arguments=json.dumps(arguments, ensure_ascii=False)))
            events.append(Event(index=index, call=ToolCall(name, arguments, given)))
        return events

    def _sorted(self, events: list[Event]) -> list[Event]:
        """Events with their text as far as it is no block that may be a call."""
        found: list[Event] = []
        for event in events:
            if self._has_inner:
                found.append(event)
            elif event.text and not event.is_told:
                self._text += event.text
                self._read_lines()
                found += self._given(self._at if self._held is None else self._held)
            else:
                self._has_inner = True
                found += [*self._given(len(self._text)), event]
        return found

    def _given(self, end: int) -> list[Event]:
        """The text up to an index."""
        text, self._text = self._text[:end], self._text[end:]
        self._at -= len(text)
        if self._held is not None:
            self._held -= len(text)
        if self._content is not None:
            self._content -= len(text)
        return [Event(text)] if text else []

    def _read_lines(self, has_ended: bool = False) -> None:
        """Read the lines that are whole, and of the last one what cannot become a fence."""
        if self._is_start and (first := self._text[self._at :].strip()[:1]):
            self._is_start = False
            if first == "{":
                self._held = self._content = self._text.index(first, self._at)
        if self._is_bare and self._may_be_call():
            return
        while self._at < len(self._text):
            if self._content is not None and not self._may_be_call():
                self._drop()
            end = self._text.find("\n", self._at) + 1
            line = self._text[self._at : end or len(self._text)].rstrip("\r\n")
            may_be_fence = self._is_line_start and _FENCE_BEGUN.match(line) is not None
            if not end and not has_ended and (may_be_fence or self._content is not None):
                break
            self._read_line(line if self._is_line_start else "-")
            self._at = end or len(self._text)
            self._is_line_start = end > 0

    @property
    def _is_bare(self) -> bool:
        """Whether the answer may be nothing but calls, without a fence."""
        return self._content is not None and not self._fence

    def _read_line(self, line: str) -> None:
        """Read a line, or the rest of one."""
        fence = _FENCE.match(line)
        if self._fence:
            ended = fence is not None and fence[1].startswith(self._fence) and not fence[2].strip()
            if ended:
                self._fence = ""
            if ended and self._content is not None:
                self._take_block(self._text[self._content : self._at])
        elif fence is not None:
            self._fence = fence[1]
            if fence[2].strip() == "json":
                self._held = self._at if self._held is None else self._held
                self._content = self._at + len(line)
            else:
                self._drop()
        elif line.strip():
            self._drop()

    def _may_be_call(self) -> bool:
        """Whether the block that is being read may become a call, by its first member."""
        content = self._text[self._content or 0 :]
        begun = _BEGUN.match(content)
        if begun is None or begun.end() == len(content):
            found = begun is not None and begun["key"]
            return begun is not None and (not found or any(key.startswith(found) for key in _KEYS))
        if begun["key"] not in _KEYS:
            return False
        return begun["key"] not in NAME_KEYS or (begun["end"] is not None and begun["text"] in self._schemas)

    def _take_block(self, text: str) -> None:
        """Take a block that has ended: it is calls, or this and what was held before is text."""
        self._content = None
        calls = [self._checked(*call) for call in calls_in(text)]
        if calls and None not in calls:
            self._calls += [call for call in calls if call is not None]
        else:
            self._drop()

    def _checked(self, name: str, arguments: dict[str, Any]) -> Call | None:
        """The call if it is one; null stands for an argument that is left out."""
        if name not in self._schemas or not {UNREAD, canonical([name, arguments])}.isdisjoint(self._quoted()):
            return None
        given = {key: value for key, value in arguments.items() if value is not None}
        return next(((name, one) for one in (arguments, given) if fits(one, self._schemas[name])), None)

    def _drop(self) -> None:
        """What was held is text."""
        self._held = self._content = None
        self._calls = []
