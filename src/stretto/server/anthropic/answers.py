"""Answers in Anthropic's shapes: a message of blocks, whole or as events."""

from __future__ import annotations

import time
from collections.abc import Collection
from secrets import token_hex
from typing import Any

from stretto import Result, Token
from stretto.engine.types import ToolCall, Usage
from stretto.server.generation.calls import AnswerParts, Kind, Piece
from stretto.server.generation.generation import Generation, ended_by
from stretto.server.http.errors import ApiError, body_of, dumps
from stretto.tools.plan import ToolPlan

SIGNATURE = "stretto"  # of reasoning; clients send it back, and some drop blocks without one
DELTAS = {"text": ("text_delta", "text"), "arguments": ("input_json_delta", "partial_json")}
PING_SECONDS = 5.0  # without an event, while a call is being written
DELTAS["reasoning"] = ("thinking_delta", "thinking")


class MessageShape:
    """Formats the answer to one request."""

    def __init__(self, generation: Generation, model: str, stops: list[str], hides_thinking: bool) -> None:
        self.generation = generation
        self.model = model
        self.hides_thinking = hides_thinking
        self._stops = stops
        self._id = f"msg_{token_hex(12)}"

    def head(self) -> dict[str, Any]:
        """The first fields of a message."""
        return {"id": self._id, "type": "message", "role": "assistant", "model": self.model}

    def whole(self, result: Result) -> dict[str, Any]:
        """The answer in one piece."""
        blocks: list[dict[str, Any]] = []
        if result.reasoning:
            thoughts = "" if self.hides_thinking else result.reasoning
            blocks.append({"type": "thinking", "thinking": thoughts, "signature": SIGNATURE})
        if result.text:
            blocks.append({"type": "text", "text": result.text})
        blocks += [{**_tool_use(call), "input": call.arguments} for call in result.tool_calls]
        return {
            **self.head(),
            "content": blocks,
            **self.ending(result),
            "usage": {**usage(result.usage), **self.generation.warnings},
        }

    def ending(self, result: Result) -> dict[str, Any]:
        """The reason why it ended."""
        stop = result.stop_reason
        if result.finish_reason == "length" and stop == "context":
            return {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
        if result.finish_reason != "stop":  # also where whole calls stand before the cut
            return {"stop_reason": "max_tokens", "stop_sequence": None, **ended_by(result)}
        if result.tool_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(stop, str) and stop in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": "end_turn", "stop_sequence": None}


class MessageEvents:
    """A message as server-sent events; its blocks follow one another.

    A call comes when it is whole, unless its tool is one of `eager`: clients take the arguments of a call
    that was cut for whole ones, and may run it.
    """

    def __init__(self, shape: MessageShape, plan: ToolPlan, eager: Collection[str] = ()) -> None:
        self._shape = shape
        tokenizer = shape.generation.lease.llm.tokenizer
        self._parts = AnswerParts(plan, tokenizer, lambda name: name in eager)
        self._last = time.monotonic()  # when an event was made
        self._begun = False
        self._open: Kind | None = None  # the kind of the block that has begun
        self._index = -1  # its number

    def more(self, news: list[tuple[int, Token]]) -> bytes:
        """The events of some tokens."""
        out: list[str] = []
        for _, token in news:
            result = None
            if token.finish_reason is not None:
                result = self._shape.generation.texts.result(0)
                self._shape.generation.check(result)
            if not self._begun:
                self._begun = True
                out += self._start(result)
            for piece in self._parts.push(token):
                out += self._piece(piece)
            if result is not None:
                out += self._end(result)
        now = time.monotonic()
        if not out and now - self._last > PING_SECONDS:
            out.append(event("ping", {}))
        if out:
            self._last = now
        return "".join(out).encode()

    async def end(self) -> bytes:
        """The last event."""
        return event("message_stop", {}).encode()

    def failed(self, error: ApiError) -> bytes:
        """The error is an event too, and the last one."""
        return event("error", body_of(error, "/v1/messages")).encode()

    def _start(self, result: Result | None) -> list[str]:
        if result is not None:
            used = result.usage
        else:
            progress = self._shape.generation.progress
            n_cached = min(progress.cached_tokens, progress.prompt_tokens)
            used = Usage(progress.prompt_tokens, 0, n_cached)
        message = {
            **self._shape.head(),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage(used), "output_tokens": 0},
        }
        return [event("message_start", {"message": message}), event("ping", {})]

    def _piece(self, piece: Piece) -> list[str]:
        out: list[str] = []
        kind: Kind = "call" if piece.kind == "arguments" else piece.kind
        if piece.kind == "call" or kind != self._open:
            out += [*self._stop(), self._begin(kind, piece.call)]
        if piece.kind == "call" or (piece.kind == "reasoning" and self._shape.hides_thinking):
            return out
        name, field = DELTAS[piece.kind]
        return [*out, self._delta({"type": name, field: piece.text})]

    def _begin(self, kind: Kind, call: ToolCall | None) -> str:
        self._open = kind
        self._index += 1
        block: dict[str, Any] = {"type": "text", "text": ""}
        if kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif call is not None:
            block = {**_tool_use(call), "input": {}}
        return event("content_block_start", {"index": self._index, "content_block": block})

    def _stop(self) -> list[str]:
        """The end of the block that is open, if one is."""
        if self._open is None:
            return []
        signed = self._open == "reasoning"
        self._open = None
        out = [self._delta({"type": "signature_delta", "signature": SIGNATURE})] if signed else []
        return [*out, event("content_block_stop", {"index": self._index})]

    def _end(self, result: Result) -> list[str]:
        pieces, result = self._parts.end(result)
        out = [text for piece in pieces for text in self._piece(piece)]
        fields = {
            "delta": self._shape.ending(result),
            "usage": {**usage(result.usage), **self._shape.generation.warnings},
        }
        return [*out, *self._stop(), event("message_delta", fields)]

    def _delta(self, delta: dict[str, Any]) -> str:
        return event("content_block_delta", {"index": self._index, "delta": delta})


def event(kind: str, fields: dict[str, Any]) -> str:
    """A server-sent event with a name."""
    return f"event: {kind}\ndata: {dumps({'type': kind, **fields})}\n\n"


def usage(counted: Usage) -> dict[str, Any]:
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
