"""Answers in Anthropic's shapes: a message of blocks, whole or as events."""

from __future__ import annotations

import time
from secrets import token_hex
from typing import Any

from stretto import Result, Token
from stretto.engine.types import ToolCall, Usage
from stretto.server.anthropic.schemas import MessagesRequest
from stretto.server.generation.answer import Answer, name_limit
from stretto.server.generation.calls import AnswerParts, Kind, Piece
from stretto.server.generation.generation import Generation
from stretto.server.http.errors import ApiError, dumps, write_error
from stretto.tools.plan import ToolPlan

SIGNATURE = "stretto"  # of reasoning; clients send it back, and some drop blocks without one
DELTAS = {"text": ("text_delta", "text"), "arguments": ("input_json_delta", "partial_json")}
PING_SECONDS = 5.0  # without an event, while a call is being written
DELTAS["reasoning"] = ("thinking_delta", "thinking")


class MessageAnswer(Answer):
    """A message: blocks that follow one another.

    In a stream a call comes when it is whole, unless its tool says otherwise: clients take the arguments of a
    call that was cut for whole ones, and may run it.
    """

    def __init__(
        self,
        generation: Generation,
        body: MessagesRequest,
        plan: ToolPlan,
        edited: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(generation)
        self._edited = {} if edited is None else {"context_management": {"applied_edits": edited}}
        self._plan = plan
        self._model = body.model
        self._hides_thinking = body.thinking is not None and body.thinking.display == "omitted"
        self._stops = body.stop_sequences or []
        self._id = f"msg_{token_hex(12)}"
        eager = {tool.name for tool in body.tools or () if tool.eager_input_streaming}
        self._parts = AnswerParts(plan, lambda name: name in eager, generation.stops)
        self._last = time.monotonic()  # when an event was made
        self._begun = False
        self._open: Kind | None = None  # the kind of the block that has begun
        self._index = -1  # its number

    def whole(self, results: list[Result]) -> dict[str, Any]:
        """The answer in one piece."""
        (result,) = map(self._plan.read, results)
        blocks: list[dict[str, Any]] = []
        if result.reasoning:
            thoughts = "" if self._hides_thinking else result.reasoning
            blocks.append({"type": "thinking", "thinking": thoughts, "signature": SIGNATURE})
        if result.text:
            blocks.append({"type": "text", "text": result.text})
        blocks += [{**_tool_use(call), "input": call.arguments} for call in result.tool_calls]
        end = {**self._ending(result), "usage": self._usage(result), **self._edited}
        return {**self._head(), "content": blocks, **end}

    def _head(self) -> dict[str, Any]:
        """The first fields of a message."""
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}

    def _ending(self, result: Result) -> dict[str, Any]:
        """The reason why it ended."""
        stop = result.stop_reason
        if result.finish_reason == "length" and stop == "context":
            return {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
        if result.finish_reason != "stop":  # also where whole calls stand before the cut
            return {"stop_reason": "max_tokens", "stop_sequence": None, **name_limit(result)}
        if result.tool_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(stop, str) and stop in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": "end_turn", "stop_sequence": None}

    def _usage(self, result: Result) -> dict[str, Any]:
        return {**count_usage(result.usage), **self.generation.usage_notes}

    # -- as events --

    def add(self, index: int, token: Token, result: Result | None) -> str:
        """The events of a token; a ping if there was none for long, while a call is being written."""
        out = "" if self._begun else self._begin(result)
        out += "".join(map(self._piece, self._parts.push(token)))
        if result is not None:
            out += self._finish(result)
        now = time.monotonic()
        if not out and now - self._last > PING_SECONDS:
            out = event("ping", {})
        if out:
            self._last = now
        return out

    async def end(self) -> bytes:
        """The last event."""
        return event("message_stop", {}).encode()

    def fail(self, error: ApiError) -> bytes:
        """The error is an event too, and the last one."""
        return event("error", write_error(error, self.generation.path)).encode()

    def _begin(self, result: Result | None) -> str:
        self._begun = True
        if result is not None:
            used = result.usage
        else:
            progress = self.generation.progress
            used = Usage(progress.prompt_tokens, 0, min(progress.cached_tokens, progress.prompt_tokens))
        message = {
            **self._head(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**count_usage(used), "output_tokens": 0},
        }
        return event("message_start", {"message": message}) + event("ping", {})

    def _piece(self, piece: Piece) -> str:
        out = ""
        kind: Kind = "call" if piece.kind == "arguments" else piece.kind
        if piece.kind == "call" or kind != self._open:
            out = self._stop() + self._start(kind, piece.call)
        if piece.kind == "call" or (piece.kind == "reasoning" and self._hides_thinking):
            return out
        name, field = DELTAS[piece.kind]
        return out + self._delta({"type": name, field: piece.text})

    def _start(self, kind: Kind, call: ToolCall | None) -> str:
        self._open = kind
        self._index += 1
        block: dict[str, Any] = {"type": "text", "text": ""}
        if kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif call is not None:
            block = {**_tool_use(call), "input": {}}
        return event("content_block_start", {"index": self._index, "content_block": block})

    def _stop(self) -> str:
        """The end of the block that is open, if one is."""
        kind, self._open = self._open, None
        if kind is None:
            return ""
        signed = {"type": "signature_delta", "signature": SIGNATURE}
        out = self._delta(signed) if kind == "reasoning" else ""
        return out + event("content_block_stop", {"index": self._index})

    def _finish(self, result: Result) -> str:
        pieces, result = self._parts.end(result)
        out = "".join(map(self._piece, pieces)) + self._stop()
        fields = {"delta": self._ending(result), "usage": self._usage(result), **self._edited}
        return out + event("message_delta", fields)

    def _delta(self, delta: dict[str, Any]) -> str:
        return event("content_block_delta", {"index": self._index, "delta": delta})


def event(kind: str, fields: dict[str, Any]) -> str:
    """A server-sent event with a name."""
    return f"event: {kind}\ndata: {dumps({'type': kind, **fields})}\n\n"


def count_usage(counted: Usage) -> dict[str, Any]:
    """Tokens counted; those found in the prefix cache are told apart from those computed."""
    return {
        "input_tokens": counted.prompt_tokens - counted.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counted.cached_tokens,
        "output_tokens": counted.completion_tokens,
        "output_tokens_details": {"thinking_tokens": counted.reasoning_tokens},
    }


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name}
