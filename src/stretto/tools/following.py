"""Follows one answer: its text, and its calls as they come."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

from stretto.engine.types import ToolCall
from stretto.errors import InvalidRequest
from stretto.text.reasoning import ANSWER, REASONING, START, Format, Splitter, State
from stretto.text.stops import StopBuffer
from stretto.text.tokenizer import Tokenizer
from stretto.tools.check import Tool
from stretto.tools.fenced import FencedFollower, Follower, Quoted, quoted_calls, writes_fenced
from stretto.tools.format import MARKS, CallFormat, change_texts, is_mark, list_texts, with_marks
from stretto.tools.json_reading import Malformed, Source, Steps, overlap, quote_text
from stretto.tools.parsing import CallParser, Event, Receiver, Stop, read_json_call, replace_surrogates

__all__ = ["CallReader", "read_call"]


# Generated tokens as text in which special tokens are marks, with the reasoning left out.

FIRST = 0xD800  # marks are lone surrogates here, which no decoded text can hold


class Marks:
    """The special tokens that matter to a format of calls and to one of reasoning, each with its mark.

    `layout` and `states` are these formats in terms of the marks.
    """

    def __init__(self, layout: CallFormat, reasoning: Format | None, tokenizer: Tokenizer) -> None:
        self._piece = tokenizer.piece
        found = {ord(c) - MARKS for text in list_texts(layout) for c in text if is_mark(c)}
        markers = [m for state in reasoning.states.values() for m in state.markers] if reasoning else []
        found |= {token for text, token in tokenizer.specials.items() if any(text in m for m in markers)}
        self.of_token = {token: chr(FIRST + number) for number, token in enumerate(sorted(found))}
        self._spelled = {tokenizer.piece(token): mark for token, mark in self.of_token.items()}
        self._tokens = {mark: token for token, mark in self.of_token.items()}
        self.shown = {mark: tokenizer.decode([token]) for mark, token in self._tokens.items()}
        self.layout = change_texts(layout, self._from_planes)
        self.states: Mapping[str, State] = {
            name: State(state.shows, {self.marked(marker): to for marker, to in state.markers.items()})
            for name, state in (reasoning.states.items() if reasoning else ())
        }

    @property
    def openings(self) -> list[str]:
        """The markers that open reasoning and are text."""
        found = self.states[START].markers if self.states else {}
        return [self.plain(marker) for marker, to in found.items() if to == REASONING]

    def marked(self, text: str) -> str:
        """A text with its special tokens as marks; of those that overlap, the longer."""
        return with_marks(text, self._spelled)

    def spelled(self, text: str) -> str:
        """A text with its marks spelled out."""
        if text.isascii():
            return text
        return "".join(self._piece(self._tokens[c]) if c in self._tokens else c for c in text)

    def plain(self, text: str) -> str:
        """A text without its marks."""
        return text if text.isascii() else "".join(c for c in text if c not in self._tokens)

    def _from_planes(self, text: str) -> str:
        return "".join(self.of_token[ord(c) - MARKS] if is_mark(c) else c for c in text)


class MarkedText:
    """Spells the tokens of one answer; what may be one of some stop strings is held back.

    Reasoning in blocks (`<think>`) is cut out before calls are looked for: those in it are none. Where
    reasoning, answers and calls are messages with headers, which hold the calls' names, the headers are cut
    out of the text around calls (`shown`).
    """

    def __init__(
        self, marks: Marks, tokenizer: Tokenizer, has_blocks: bool, stops: Sequence[str] = ()
    ) -> None:
        self.marks = marks
        self._stops = StopBuffer(stops, marks.shown)
        self._detokenizer = tokenizer.detokenizer()
        states = marks.states
        self._blocks = Splitter(states, START, keeps_marks=True) if states and has_blocks else None
        self._headers = Splitter(states, ANSWER, keeps_marks=True) if states and not has_blocks else None

    @property
    def is_held(self) -> bool:
        """Whether text was taken that may yet be a marker of reasoning, or a stop string."""
        return bool(self._stops.held) or (self._blocks is not None and self._blocks.is_held)

    def push(self, token: int) -> str:
        """The marked text of a token, without reasoning."""
        mark = self.marks.of_token.get(token)
        if mark is not None:
            return self._stops.push(self.filter(self._detokenizer.cut() + mark))
        return self._stops.push(self.filter(self._detokenizer.push(token)))

    def answer(self) -> None:
        """The answer begins: what came before, if anything, was reasoning."""
        if self._blocks is not None:
            self._blocks = Splitter(self.marks.states, ANSWER, keeps_marks=True)

    def end(self, stop: Stop | None = None) -> str:
        """The rest of the marked text; what comes before the stop string that ended it."""
        if stop is not None and not stop.is_within and self._stops.has_match:
            return self._stops.cut(stop.is_shown)
        rest = self._stops.held + self.filter(self._detokenizer.flush())
        return rest if self._blocks is None else rest + _answer(self._blocks.flush())

    def filter(self, text: str) -> str:
        """Marked text without the reasoning."""
        return text if self._blocks is None else _answer(self._blocks.push(text))

    def shown(self, text: str) -> str:
        """The part of a marked text that is shown: no special tokens, and no headers."""
        return self.marks.plain(text if self._headers is None else _answer(self._headers.push(text)))

    def shown_end(self) -> str:
        """The rest of what is shown."""
        return "" if self._headers is None else self.marks.plain(_answer(self._headers.flush()))


def _answer(pieces: list[tuple[str, bool]]) -> str:
    return "".join(text for text, is_reasoning in pieces if not is_reasoning)


class CallFollower(Receiver):
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
        self._told_call = -1  # the number of the call whose pieces have told it
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

    def end(self, stop: Stop | None = None) -> list[Event]:
        """The answer has ended, perhaps by a stop string; return the rest."""
        self._source.text += self._text.end(stop)
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
            piece = "".join(c if marks.spelled(c) == c else quote_text(marks.spelled(c)) for c in piece)
        self._pieces.append(piece)
        self._piece_end = self._source.at
        if not self._is_quiet:
            self._events.append(Event(index=self._started, arguments=piece))

    def finish(self) -> None:
        """It is whole."""
        try:
            arguments = replace_surrogates(json.loads("".join(self._pieces)))
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
            self._told_call = self._started
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
            self._events.append(Event(shown, is_told, self._told_call if is_told else -1))


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


# Parses tool calls in generated text, whole or while it comes.
#
# `CallReader` belongs to a format and its tools; `follow` reads one text piece by piece and gives events:
# text, the start of a call with its name, pieces of its arguments as JSON, and its end. What begins as a
# call and cannot be read is text.


def read_call(text: str) -> ToolCall:
    """The call in a text that was generated with `call_grammar`.

    >>> read_call('{"name": "now", "arguments": {}}').name
    'now'
    """
    try:
        found = read_json_call(json.loads(text))
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
        self._quoted: Quoted = frozenset

    def salted(self, salt: str) -> CallReader:
        """The same reader with other ids for the calls."""
        twin = copy(self)
        twin._salt = salt
        return twin

    def beside(self, messages: Any) -> CallReader:
        """The same reader for an answer to messages, whose calls in blocks are quoted if it repeats them."""
        twin = copy(self)
        twin._quoted = lambda: quoted_calls(messages)
        return twin

    def follow(self, stops: Sequence[str] = ()) -> Follower:
        """A follower of one answer, which may end by one of some stop strings."""

        def make_id(number: int, name: str) -> str:
            return call_id(self._salt, number, name)

        text = MarkedText(self._marks, self._tokenizer, self.has_blocks, stops)
        found = CallFollower(self._schemas, text, make_id, self._most)
        if not writes_fenced(text.marks.layout):
            return found
        return FencedFollower(found, self._schemas, make_id, self._most, self._quoted)

    def read(self, tokens: list[int], stop: Stop | None = None) -> tuple[str, tuple[ToolCall, ...]]:
        """The text without the calls, and the calls; the text ends where a stop string ended it."""
        return _collected(_all_events(self.follow(() if stop is None else [stop.text]), tokens, stop))

    def place_stop(self, tokens: list[int], stop: Stop) -> Stop | None:
        """A stop string, with what it is part of; None if it is not in the text."""
        if stop.text not in self._tokenizer.decode(tokens):
            return None
        _, calls = self.read(tokens, stop)
        _, whole = self.read(tokens)
        return stop._replace(is_within=len(whole) > len(calls))

    def read_open(self, tokens: list[int]) -> tuple[str, tuple[ToolCall, ...]]:
        """The reasoning and the calls of an answer that never closes its reasoning.

        There are none unless they stand at its end.
        """
        follower = self.follow()
        follower.answer()
        events = _all_events(follower, tokens)
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


def _all_events(follower: Follower, tokens: Iterable[int], stop: Stop | None = None) -> list[Event]:
    """The events of a whole answer."""
    return [*(event for token in tokens for event in follower.push(token)), *last_events(follower, stop)]


def last_events(follower: Follower, stop: Stop | None) -> list[Event]:
    """The events at the end; no text behind a call that the stop string is a part of."""
    events = follower.end(stop)
    if stop is None or not stop.is_within:
        return events
    last = max((i for i, event in enumerate(events) if event.call is not None), default=-1)
    return events[: last + 1]


def _collected(events: list[Event]) -> tuple[str, tuple[ToolCall, ...]]:
    text = "".join(event.text for event in events)
    calls = [event.call for event in events if event.call is not None]
    return re.sub(r"\n{3,}", "\n\n", text).strip() if calls else text.strip(), tuple(calls)
