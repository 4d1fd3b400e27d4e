"""Answers of `/v1/responses`: items, whole or as events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from secrets import token_hex
from typing import Any

from stretto import Result, Token
from stretto.engine.types import PromptStep, ToolCall
from stretto.server.generation.answer import Answer, name_limit
from stretto.server.generation.calls import AnswerParts, Kind, Piece, write_arguments
from stretto.server.generation.generation import Generation
from stretto.server.generation.requests import ChatRequest
from stretto.server.http.errors import ApiError, dumps
from stretto.server.openai.answers import ChatAnswer, count_drafts
from stretto.server.openai.responses_request import ResponseRequest
from stretto.tools.plan import ToolPlan

Event = dict[str, Any]

SAME = (
    *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "previous_response_id"),
    *("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "temperature", "top_p", "user"),
)


class ItemBuilder:
    """Makes items of the pieces of an answer, and the events that tell of them."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []  # that have begun
        self._open: Kind | None = None  # the kind of the last one, until it ends

    def push(self, piece: Piece, logprobs: list[Any]) -> Iterator[Event]:
        """Add a piece."""
        kind: Kind = "call" if piece.kind == "arguments" else piece.kind
        if piece.kind == "call" or kind != self._open:
            yield from self.close()
            yield from self._begin(kind, piece.call)
        item = self.items[-1]
        if piece.kind == "arguments":
            item["arguments"] += piece.text
            yield self._event("response.function_call_arguments.delta", delta=piece.text)
        elif piece.kind != "call":
            part = item["content"][0]
            part["text"] += piece.text
            if kind == "text":
                part["logprobs"] += logprobs
                yield self._event("response.output_text.delta", 0, delta=piece.text, logprobs=logprobs)
            else:
                yield self._event("response.reasoning_text.delta", 0, delta=piece.text)

    def close(self, status: str = "completed") -> Iterator[Event]:
        """End the item that is open, if one is."""
        if self._open is None:
            return
        kind, self._open = self._open, None
        item = self.items[-1]
        is_whole = kind == "call" and _is_json(item["arguments"])
        item["status"] = status = "completed" if is_whole else status
        if kind == "call" and status == "completed":
            yield self._event("response.function_call_arguments.done", arguments=item["arguments"])
        elif kind != "call":
            part = item["content"][0]
            fields = {"text": part["text"], **({"logprobs": part["logprobs"]} if kind == "text" else {})}
            name = "output_text" if kind == "text" else "reasoning_text"
            yield self._event(f"response.{name}.done", 0, **fields)
            yield self._event("response.content_part.done", 0, part=part)
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _begin(self, kind: Kind, call: ToolCall | None) -> Iterator[Event]:
        self._open = kind
        item, part = _new_item(kind, call)
        self.items.append(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(item)}
        if part is not None:
            item["content"] = [part]
            yield self._event("response.content_part.added", 0, part=dict(part))

    def _event(self, kind: str, content_index: int | None = None, **fields: Any) -> Event:
        place = {} if content_index is None else {"content_index": content_index}
        number = len(self.items) - 1
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": number, **place, **fields}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _new_item(kind: Kind, call: ToolCall | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """An item without its content, and the part that its text will be in."""
    status = {"status": "in_progress"}
    if call is not None:
        named = {"call_id": call.id, "name": call.name, "arguments": ""}
        return {"id": f"fc_{token_hex(12)}", "type": "function_call", **named, **status}, None
    if kind == "reasoning":
        item = {"id": f"rs_{token_hex(12)}", "type": "reasoning", "summary": [], "content": [], **status}
        return item, {"type": "reasoning_text", "text": ""}
    item = {"id": f"msg_{token_hex(12)}", "type": "message", "role": "assistant", "content": [], **status}
    return item, {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


class ResponseAnswer(Answer):
    """The answer to one request, which `keep` gets in the end; its events are numbered."""

    def __init__(
        self,
        generation: Generation,
        body: ResponseRequest,
        chat: ChatRequest,
        plan: ToolPlan,
        keep: Callable[[Event], None],
    ) -> None:
        super().__init__(generation)
        self.keep = keep
        self.id = f"resp_{token_hex(16)}"
        self._body = body
        self._plan = plan
        self._created = int(time.time())
        self._has_timings = body.timings_per_token is True  # in events of text, and in the last one
        self._has_logprobs = chat.logprobs is True
        self._chat = ChatAnswer(generation, chat, plan)  # writes log-probabilities
        self._builder = ItemBuilder()
        self._parts = AnswerParts(plan, stops=generation.stops)
        self._number = 0
        self._waiting: list[Any] = []  # log-probabilities of tokens whose text has not come yet
        self._result: Result | None = None
        self._n_tokens = 0

    def _logprobs(self, tokens: list[Token]) -> list[Any]:
        """Log-probabilities of tokens, where they are asked for."""
        return list(self._chat.logprobs(tokens)["content"]) if self._has_logprobs else []

    def response(self, status: str, **more: Any) -> Event:
        """The response object."""
        body = self._body
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text is not None else {}
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or () if tool.type == "function"]
        choice: Any = body.tool_choice or "auto"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [],
            **{name: getattr(body, name) for name in SAME},
            "background": body.background is True,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "service_tier": "default",
            "store": body.store is not False,
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [{"parameters": None, "strict": None, **tool} for tool in tools],
            "top_logprobs": body.top_logprobs or 0,
            "truncation": "disabled",
            "usage": None,
            **more,
        }

    def fail_response(self, error: ApiError, **more: Any) -> Event:
        """The response object of an answer that has failed."""
        fault = {"code": error.code or "server_error", "message": error.message}
        return self.response("failed", error=fault, **more)

    def _done(self, result: Result) -> Event:
        """The response at its end, which is kept from now on."""
        cut = result.finish_reason != "stop"
        made = self.response(
            find_status(result),
            output=self._builder.items,
            completed_at=int(time.time()),
            incomplete_details={"reason": "max_output_tokens", **name_limit(result)} if cut else None,
            usage={**_usage(result), **self.generation.usage_notes},
            timings=self.generation.timings([result]),
        )
        self.keep(made)
        return made

    def whole(self, results: list[Result]) -> Event:
        """The answer in one piece."""
        (result,) = map(self._plan.read, results)
        builder = self._builder
        answer = [token for token in result.logprobs or () if not token.is_reasoning]
        while answer and not answer[-1].text:  # an end token, say
            answer.pop()
        pieces = [Piece("reasoning", result.reasoning)] if result.reasoning else []
        pieces += [Piece("text", result.text)] if result.text else []
        for call in result.tool_calls:
            pieces += Piece("call", "", call), Piece("arguments", write_arguments(call))
        for piece in pieces:
            logprobs = self._logprobs(answer) if piece.kind == "text" else []
            for _ in builder.push(piece, logprobs):
                pass
        for _ in builder.close(find_status(result)):
            pass
        for item in builder.items:  # a call that was cut is text, which stands before those that are whole
            if item["type"] == "message":
                item["status"] = find_status(result)
        return self._done(result)

    # -- as events --

    def add(self, index: int, token: Token, result: Result | None) -> str:
        """The events of a token."""
        out = self._start()
        self._n_tokens += 1
        if not token.is_reasoning:
            self._waiting += self._logprobs([token])
        pieces = self._parts.push(token)
        if result is not None:
            more, self._result = self._parts.end(result)
            pieces += more
        for piece in pieces:
            out += self._written(self._builder.push(piece, self._taken(piece)))
        if self._result is not None:
            out += self._written(self._builder.close(find_status(self._result)))
        return out

    def progress(self, index: int, step: PromptStep) -> str:
        """The event of a step that has computed a part of the prompt."""
        told = {"response": self.response("in_progress")}
        told["prompt_progress"] = self.generation.prompt_progress(step)
        return self._start() + self._event({"type": "response.in_progress", **told})

    async def end(self) -> bytes:
        """The response as a whole."""
        assert self._result is not None
        made = self._done(self._result)
        last = {"type": f"response.{made['status']}", "response": made}
        return self._event(last | ({"timings": made["timings"]} if self._has_timings else {})).encode()

    def fail(self, error: ApiError) -> bytes:
        """The error is an event too, and the last one."""
        made = self.fail_response(error, output=self._builder.items)
        return (self._start() + self._event({"type": "response.failed", "response": made})).encode()

    def _taken(self, piece: Piece) -> list[Any]:
        """The log-probabilities that go with a piece."""
        if piece.kind != "text":
            return []
        taken, self._waiting = self._waiting, []
        return taken

    def _start(self) -> str:
        """The first events, where they have not come yet."""
        if self._number:
            return ""
        kinds = ("response.created", "response.in_progress")
        begun = self.response("in_progress")
        return "".join([self._event({"type": kind, "response": begun}) for kind in kinds])

    def _written(self, events: Iterator[Event]) -> str:
        if not self._has_timings:
            return "".join(map(self._event, events))
        timings = {"timings": self.generation.timings_now(self._n_tokens)}
        return "".join(
            self._event(one | timings if one["type"].endswith(".delta") else one) for one in events
        )

    def _event(self, fields: Event) -> str:
        number, self._number = self._number, self._number + 1
        return f"event: {fields['type']}\ndata: {dumps({**fields, 'sequence_number': number})}\n\n"


def find_status(result: Result) -> str:
    """OpenAI's word for how an answer ended."""
    return "completed" if result.finish_reason == "stop" else "incomplete"


def _usage(result: Result) -> dict[str, Any]:
    counted = result.usage
    return {
        "input_tokens": counted.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counted.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": counted.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counted.reasoning_tokens, **count_drafts([result])},
        "total_tokens": counted.total_tokens,
    }
