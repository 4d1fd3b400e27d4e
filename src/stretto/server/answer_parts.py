"""An answer in parts, as its tokens come: reasoning, text, calls.

OpenAI's chunks are made in `shapes.py`; protocols that send an answer as a list of blocks or items use this.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal, NamedTuple

from stretto import Result, Token
from stretto.engine.types import ToolCall
from stretto.server.calls import CallWatcher
from stretto.text.tokenizer import Tokenizer
from stretto.tools.plan import ToolPlan

Kind = Literal["reasoning", "text", "call", "arguments"]


class Piece(NamedTuple):
    """Some more of the answer: text, or a call that begins, or some more of its arguments as JSON."""

    kind: Kind
    text: str
    call: ToolCall | None = None


class AnswerParts:
    """Follows one text: `push` each token, then `end`."""

    def __init__(
        self, plan: ToolPlan, tokenizer: Tokenizer, eager: Callable[[str], bool] = lambda name: True
    ) -> None:
        self._watcher = CallWatcher(plan, tokenizer, eager=eager) if plan.reader is not None else None

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


def arguments_of(call: ToolCall) -> str:
    """The arguments of a call as JSON."""
    return json.dumps(call.arguments, ensure_ascii=False)
