"""Answers of `/api/generate` and `/api/chat`: whole, or as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from stretto import Result, Token
from stretto.server.generation.answer import Answer, clamp_logprob, name_limit
from stretto.server.generation.calls import AnswerParts
from stretto.server.generation.generation import Generation
from stretto.server.http.errors import ApiError, dumps, field_error, write_error
from stretto.server.http.streaming import LINES
from stretto.server.ollama.schemas import GenerateRequest, OllamaChatRequest
from stretto.server.ollama.store import Made
from stretto.text.tokenizer import Tokenizer
from stretto.tools.plan import ToolPlan

WORDS = {"repetition": "length"} | {word: word for word in ("stop", "length", "timeout", "cancelled")}


@dataclass
class Asked:
    """A request for a text: its messages or its whole prompt, and the fields of its answer."""

    body: GenerateRequest | OllamaChatRequest
    made: Made
    messages: list[dict[str, Any]]
    images: dict[int, list[str]]
    whole: Callable[[Tokenizer], str | list[int]] | None = None  # the prompt, if it is not from messages
    context: list[int] | None = None  # the tokens before; None: they are not asked for in the answer
    seen: list[int] = field(default_factory=list)  # the prompt's tokens, where they are

    @property
    def tops(self) -> int | None:
        """How many alternatives of each token are asked for; None: no log-probabilities."""
        if not self.body.logprobs:
            if self.body.top_logprobs:
                raise field_error("top_logprobs", "top_logprobs needs logprobs: true")
            return None
        return self.body.top_logprobs or 0


class OllamaAnswer(Answer):
    """The answer to one request: a line for every token that has text, and one at the end."""

    media_type = LINES

    def __init__(self, generation: Generation, asked: Asked, plan: ToolPlan) -> None:
        super().__init__(generation)
        self._asked = asked
        self._plan = plan
        # Calls come at the end, when they are whole.
        self._parts = AnswerParts(plan, lambda name: False, generation.stops)
        self._head = {"model": asked.body.model, "created_at": now()}

    def whole(self, results: list[Result]) -> dict[str, Any]:
        """The answer in one piece."""
        (result,) = map(self._plan.read, results)
        piece = self._piece(result.text, result.reasoning, result.logprobs or [], result)
        return {**self._head, **piece, **self._ending(result)}

    def add(self, index: int, token: Token, result: Result | None) -> str:
        """The lines of a token."""
        pieces = self._parts.push(token)
        if result is not None:
            more, result = self._parts.end(result)
            pieces += more
        text = "".join(piece.text for piece in pieces if piece.kind == "text")
        lines = []
        if token.is_reasoning and token.text:
            lines.append({**self._piece("", token.text), "done": False})
        piece = self._piece(text, "", [token], result)
        if text or piece.get("logprobs") or (result is not None and result.tool_calls):
            lines.append({**piece, "done": False})
        if result is not None:
            lines.append({**self._piece("", ""), **self._ending(result)})
        return "".join(dumps({**self._head, **line}) + "\n" for line in lines)

    def fail(self, error: ApiError) -> bytes:
        """The error is a line too, and the last one."""
        return (dumps(write_error(error, self.generation.path)) + "\n").encode()

    def _piece(
        self, text: str, thoughts: str, tokens: list[Token] | None = None, result: Result | None = None
    ) -> dict[str, Any]:
        """Some of the answer; with log-probabilities of its tokens, and the calls of a result."""
        reasoning = {"thinking": thoughts} if thoughts else {}
        scores = {} if tokens is None else self._logprobs(tokens)
        if isinstance(self._asked.body, GenerateRequest):
            return {"response": text, **reasoning, **scores}
        calls = [
            {"function": {"name": call.name, "arguments": call.arguments}}
            for call in (result.tool_calls if result is not None else ())
        ]
        called = {"tool_calls": calls} if calls else {}
        return {"message": {"role": "assistant", "content": text, **reasoning, **called}, **scores}

    def _logprobs(self, tokens: list[Token]) -> dict[str, Any]:
        """The field `logprobs` of an answer, if it is asked for."""
        if (tops := self._asked.tops) is None:
            return {}

        def entry(token: int, logprob: float | None) -> dict[str, Any]:
            data = self.tokenizer.token_bytes(token)
            shown = self.tokenizer.spelled(token)
            return {"token": shown, "logprob": clamp_logprob(logprob), "bytes": list(data)}

        found = []
        for token in tokens:
            if token.id is not None:
                best = [entry(one.token, one.logprob) for one in token.top[:tops]]
                found.append({**entry(token.id, token.logprob), **({"top_logprobs": best} if tops else {})})
        return {"logprobs": found}

    def _ending(self, result: Result) -> dict[str, Any]:
        spent, asked = self.generation.timings([result]), self._asked
        context = {} if asked.context is None else {"context": [*asked.seen, *result.tokens]}
        return {
            "done": True,
            "done_reason": WORDS[result.finish_reason],
            **name_limit(result),
            "total_duration": count_ns(spent["total"]),
            "load_duration": count_ns(spent["load"]),
            "prompt_eval_count": result.usage.prompt_tokens,
            "prompt_eval_duration": count_ns(spent["first_token"]),
            "eval_count": result.usage.completion_tokens,
            "eval_duration": count_ns(spent["decode"]),
            **context,
            **self.generation.usage_notes,
        }


def now() -> str:
    """The time, as Ollama's clients read it."""
    return datetime.now(timezone.utc).isoformat()


def count_ns(seconds: float) -> int:
    """Nanoseconds."""
    return int(1e9 * seconds)
