"""Tool calls in an answer: streamed text without them, and the parsed calls at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from stretto import Result, Token
from stretto.engine.types import ToolCall
from stretto.tools.following import last_events, whole_calls
from stretto.tools.parsing import Event
from stretto.tools.plan import ToolPlan


class CallWatcher:
    """Follows one text of a chat with tools.

    `push` returns the text that can be streamed, as soon as it cannot be part of a call; reasoning at once.
    `take` returns what has come of calls since: each starts with its name and id, and its arguments follow
    piece by piece as JSON. `end` returns the rest of the text, and the result with its calls.

    A call that is cut has come in pieces, and is not in the text. Calls of functions that are not `eager`
    come when they are whole, so one that is cut is text alone. So do all where there are stop strings: none
    is shown, and a call that one of them cuts is not taken for a call.
    """

    def __init__(
        self,
        plan: ToolPlan,
        begun: Sequence[int] = (),
        eager: Callable[[str], bool] = lambda name: True,
        stops: Sequence[str] = (),
    ) -> None:
        if plan.reader is None:
            raise ValueError("a plan without tools has no calls to follow")
        self._plan = plan
        self._follower = plan.reader.follow(stops)
        self._has_blocks = plan.reader.has_blocks
        self._held: list[str] = []  # texts of tokens that may be part of a call
        self._said: list[str] = []  # text beside calls, since one has started
        self._pieces: list[Event] = []
        self._eager = (lambda name: False) if stops else eager
        self._waiting: list[Event] = []  # pieces of a call that is not whole yet
        self._has_call = self._is_thinking = False
        # An empty block of reasoning before a required call belongs to its grammar; nobody says it.
        self._is_calls = plan.grammar is not None and not plan.thinks
        self._begun = begun  # ids that the answer begins with; they were sent before
        for token in begun:
            self._sort(self._follower.push(token))
        self._said = []

    def push(self, token: Token) -> str:
        """Add a token; returns the text that can be streamed now."""
        if token.is_reasoning and (token.text or self._has_blocks):
            self._is_thinking = True
            return token.text
        if self._is_thinking:
            self._is_thinking = False
            self._follower.answer()
        self._held.append(token.text)
        if token.id is not None:
            self._sort(self._follower.push(token.id))
        if not self._has_call and (self._follower.is_pending or token.is_reasoning):
            return ""
        return self._taken()

    def take(self) -> list[Event]:
        """The starts of calls and the pieces of their arguments since the last call of this."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def end(self, result: Result) -> tuple[str, Result]:
        """The rest of the text to be streamed, and the result with its calls."""
        self._sort(last_events(self._follower, self._plan.find_stop(result, self._begun)))
        rest = self._taken()
        read = self._plan.read(result, self._begun)
        if not self._has_call:
            self._pieces += whole_calls(read.tool_calls)  # those in reasoning that was never closed
        return rest if rest.strip() or not self._has_call else "", read

    def _sort(self, events: list[Event]) -> None:
        for event in events:
            if event.text:
                if not event.is_told or self._waiting:
                    self._said.append(event.text)
            elif event.call is not None:
                self._pieces += self._waiting
                self._has_call, self._waiting = True, []
            elif event.name and not self._eager(event.name):
                self._waiting = [event]
            elif not event.name and self._waiting:
                self._waiting.append(event)
            else:
                self._has_call, self._waiting = True, []
                self._pieces.append(event)

    def _taken(self) -> str:
        """The text that is no call: of the tokens, or from the first call on what stands beside calls."""
        text = "".join(self._said if self._has_call or self._is_calls else self._held)
        self._held, self._said = [], []
        return text


def call_deltas(pieces: list[Event]) -> list[dict[str, Any]]:
    """Starts of calls and pieces of arguments as OpenAI's clients read them in a stream."""
    deltas: list[dict[str, Any]] = []
    for piece in pieces:
        if piece.name:
            function = {"name": piece.name, "arguments": ""}
            deltas.append({"index": piece.index, "id": piece.id, "type": "function", "function": function})
        elif deltas and deltas[-1]["index"] == piece.index:
            deltas[-1]["function"]["arguments"] += piece.arguments
        else:
            deltas.append({"index": piece.index, "function": {"arguments": piece.arguments}})
    return deltas


def openai_calls(result: Result) -> list[dict[str, Any]]:
    """The calls of an answer as OpenAI's clients read them."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in result.tool_calls
    ]


# An answer in parts, as its tokens come: reasoning, text, calls.
#
# Protocols that send an answer as a list of blocks or items use this; OpenAI's chunks have several at once.

Kind = Literal["reasoning", "text", "call", "arguments"]


class Piece(NamedTuple):
    """Some more of the answer: text, or a call that begins, or some more of its arguments as JSON."""

    kind: Kind
    text: str
    call: ToolCall | None = None


class AnswerParts:
    """Follows one text: `push` each token, then `end`."""

    def __init__(
        self,
        plan: ToolPlan,
        eager: Callable[[str], bool] = lambda name: True,
        stops: Sequence[str] = (),
    ) -> None:
        self._watcher = CallWatcher(plan, eager=eager, stops=stops) if plan.reader is not None else None

    def push(self, token: Token) -> list[Piece]:
        """What a token adds."""
        text = token.text if self._watcher is None else self._watcher.push(token)
        pieces = [Piece("reasoning" if token.is_reasoning else "text", text)] if text else []
        return pieces + self._calls()

    def end(self, result: Result) -> tuple[list[Piece], Result]:
        """The rest, and the result with its calls."""
        if self._watcher is None:
            return [], result
        rest, result = self._watcher.end(result)
        return ([Piece("text", rest)] if rest else []) + self._calls(), result

    def _calls(self) -> list[Piece]:
        """The starts of calls and the pieces of their arguments that have come."""
        events = self._watcher.take() if self._watcher is not None else []
        return [
            Piece("call", "", ToolCall(event.name, {}, event.id))
            if event.name
            else Piece("arguments", event.arguments)
            for event in events
        ]


def write_arguments(call: ToolCall) -> str:
    """The arguments of a call as JSON."""
    return json.dumps(call.arguments, ensure_ascii=False)
