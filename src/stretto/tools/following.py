"""Follows one answer: its text, and its calls as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.engine.types import ToolCall
from stretto.tools.json_reading import quoted
from stretto.tools.marks import MarkedText
from stretto.tools.parsing import CallParser
from stretto.tools.source import Malformed, Source, Steps, overlap


@dataclass(frozen=True)
class Event:
    """One of: text beside the calls; the start of a call; a piece of its arguments; its end.

    A call that starts has a name and an id. `call` is the whole call, at its end. A call that never ends
    could not be read, or was cut: its text comes as text, with `is_told` as far as its pieces have told it.
    """

    text: str = ""
    is_told: bool = False
    index: int = -1  # of the call among those of the answer
    name: str = ""
    id: str = ""
    arguments: str = ""
    call: ToolCall | None = None


class CallFollower:
    """Takes tokens of an answer and returns events."""

    def __init__(
        self,
        schemas: Mapping[str, Any],
        text: MarkedText,
        make_id: Callable[[int, str], str],
        most: int | None = None,
    ) -> None:
        self._text = text
        self._layout = text.marks.layout
        self._make_id = make_id
        self._events: list[Event] = []
        self._source = Source()
        self._parser = CallParser(self._layout, schemas, self._source, self)
        self._ids: set[str] = set()
        self._started = 0
        self._now = ("", "")  # the name and the id of the call that is being read
        self._pieces: list[str] = []
        self._most = most
        self._told = 0  # index up to which pieces of calls have told the text that is not taken yet
        self._piece_end = 0  # index up to which the call that is being read is told
        self._is_quiet = self._is_cut = False  # the call is read again; the text ended within a call
        begun = self._layout.begun
        self._hidden = len(begun)  # characters of the prompt, which are not shown
        self._steps = self._scan()
        self._source.text = begun
        self._advance()

    @property
    def is_pending(self) -> bool:
        """Whether text was taken that is neither given out nor known to be part of a call."""
        is_held = self._source.at < len(self._source.text) or self._text.is_held
        return is_held or self._is_inside

    def push(self, token: int) -> list[Event]:
        """Add a token; return what can be told now."""
        return self.push_text(self._text.push(token))

    def push_text(self, text: str) -> list[Event]:
        """As `push`, for text with marks."""
        if text:
            self._source.text += text
            self._advance()
        return self._taken()

    def push_spelled(self, text: str) -> list[Event]:
        """As `push`, for text with special tokens spelled out."""
        return self.push_text(self._text.filter(self._text.marks.marked(text)))

    def answer(self) -> None:
        """The answer begins with the next token: the tokens of the reasoning before it were left out."""
        self._text.answer()

    def end(self) -> list[Event]:
        """The answer has ended; return the rest."""
        self._source.text += self._text.end()
        self._source.has_ended = True
        self._advance()
        if rest := self._text.shown_end():
            self._events.append(Event(rest))
        return self._taken()

    def start(self, name: str, given: str) -> None:
        """A call has started."""
        given = self._text.marks.spelled(given)
        if not given or given in self._ids:
            given = self._make_id(self._started, name)
        self._now, self._pieces = (name, given), []
        self._is_quiet = self._source.at <= self._told
        self._piece_end = self._source.at
        if not self._is_quiet:
            self._events.append(Event(index=self._started, name=name, id=given))

    def add(self, piece: str) -> None:
        """Its arguments go on."""
        if not piece.isascii():
            marks = self._text.marks
            piece = "".join(c if marks.spelled(c) == c else quoted(marks.spelled(c)) for c in piece)
        self._pieces.append(piece)
        self._piece_end = self._source.at
        if not self._is_quiet:
            self._events.append(Event(index=self._started, arguments=piece))

    def finish(self) -> None:
        """It is whole."""
        try:
            arguments = _clean(json.loads("".join(self._pieces)))
        except (ValueError, RecursionError):
            raise Malformed from None
        name, given = self._now
        self._ids.add(given)
        if self._is_quiet:
            self._events.append(Event(index=self._started, name=name, id=given))
            self._events.append(Event(index=self._started, arguments="".join(self._pieces)))
        self._events.append(Event(index=self._started, call=ToolCall(name, arguments, given)))
        self._started += 1
        self._now = ("", "")

    def drop(self) -> None:
        """It cannot be read."""
        if self._now[0] and not self._is_quiet:
            self._started += 1
            self._told = max(self._told, self._piece_end)
            if self._source.has_ended:
                self._told, self._is_cut = len(self._source.text), True
        self._now = ("", "")

    def _advance(self) -> None:
        next(self._steps, None)

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events if self._most is None else [one for one in events if one.index < self._most]

    def _scan(self) -> Iterator[None]:
        """Give text on, and read calls where one of their markers stands."""
        source, markers = self._source, self._parser.markers
        self._is_inside = bool(self._layout.at_start)
        if self._is_inside and (yield from self._begins(self._layout.at_start)):
            yield from self._try("", is_first=True)
        while True:
            self._is_inside = False
            if self._is_cut:  # an object within the arguments is no call
                self._say(len(source.text))
                return
            found = min(
                ((at, -len(m), m) for m in markers if (at := source.text.find(m, source.at)) >= 0),
                default=None,
            )
            if found is not None:
                self._say(found[0])
                self._is_inside = True
                yield from self._try(found[2])
                continue
            self._say(len(source.text) - max(overlap(source.text, m, source.at) for m in markers))
            if source.has_ended:
                self._say(len(source.text))
                return
            self._told = max(0, self._told - source.at)
            source.text, source.at = source.text[source.at :], 0
            yield

    def _begins(self, marker: str) -> Steps[bool]:
        """Whether the answer begins with a marker; nothing is taken."""
        found = yield from self._source.skip(marker)
        self._source.at = 0
        return found

    def _try(self, marker: str, is_first: bool = False) -> Steps[None]:
        """Read calls; if there is none, the marker is text."""
        source, start = self._source, self._source.at
        try:
            yield from self._parser.read_calls(is_first)
            self._hidden = 0
        except Malformed:
            self.drop()
            source.at = start
            self._say(start + len(marker))

    def _say(self, end: int) -> None:
        """Give on the text up to an index."""
        source = self._source
        if source.at < self._told < end:
            self._say(self._told)
        is_told = source.at < self._told
        text = source.text[source.at : end]
        source.at = max(source.at, end)
        hidden = min(self._hidden, len(text))
        self._hidden -= hidden
        if shown := self._text.shown(text[hidden:]):
            self._events.append(Event(shown, is_told))


def whole_calls(calls: Sequence[ToolCall]) -> list[Event]:
    """Calls as pieces of a stream: the start of each, and its arguments."""
    return [
        event
        for i, call in enumerate(calls)
        for event in (
            Event(index=i, name=call.name, id=call.id),
            Event(index=i, arguments=json.dumps(call.arguments, ensure_ascii=False)),
        )
    ]


def _clean(value: Any) -> Any:
    """A value without halves of surrogate pairs, which no text can hold."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return {_clean(key): _clean(one) for key, one in value.items()} if isinstance(value, dict) else value
