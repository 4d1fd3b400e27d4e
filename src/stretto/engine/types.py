"""The types that callers get: tokens, steps, results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from stretto.engine.inside import Captured

FinishReason = Literal["stop", "length", "repetition", "timeout", "cancelled"]
EditMode = Literal["recompute", "shift", "heal"]
Approximate = Literal["shift", "heal", "hole"]  # modes that leave K and V which another text would not have


@dataclass(frozen=True)
class Logprob:
    """A token and its log-probability in the model's own distribution."""

    token: int
    logprob: float


class PromptStep(NamedTuple):
    """How much of a prompt has been computed: tokens, and the time on the monotonic clock.

    The first step of a prompt has only the cached tokens: it is from before the first pass.
    """

    total: int
    cached: int
    processed: int
    time: float


class Token(NamedTuple):
    """One event of a stream.

    `text` is what may be shown now: text that could begin a stop string, or half a character, is held
    back and comes with a later token. The last event has a `finish_reason`. An end token has no text; when
    the end comes from outside (timeout, cancellation, callback), the last event has no token: `id` is None.
    `is_reasoning` tells that its text is part of the model's reasoning; if a token ends the reasoning and
    starts the answer, the text of the former comes in an event of its own, whose `id` is None.
    """

    id: int | None
    text: str
    logprob: float | None = None  # with logprobs=n only, as `top`
    top: tuple[Logprob, ...] = ()
    finish_reason: FinishReason | None = None
    is_reasoning: bool = False


class Step(NamedTuple):
    """A step of `Sequence.step`: the sampled token, its text, whether it is an end token.

    `logprob` is its log-probability in the distribution that it was sampled from, before temperature and
    filters.
    """

    token: int
    text: str
    is_end: bool
    logprob: float


@dataclass(frozen=True)
class Edit:
    """What an edit of a sequence did, counted in tokens.

    `mode` is the one that was used: "recompute", "shift" or "heal", and "hole" where later tokens kept their
    positions. Where that is not the mode that was `asked` for, `reason` says why. `added` are new, `removed`
    are gone. Of the others `kept` have the K and V that they had, `moved` of these with their keys rotated,
    and `recomputed` are computed again: those next to the cut at once, others when logits are next needed.
    `exact` tells whether the sequence now has the K and V of a text that never was edited.
    """

    mode: EditMode | Approximate
    asked: EditMode | Approximate
    added: int
    removed: int
    kept: int
    moved: int
    recomputed: int
    exact: bool
    reason: str = ""


@dataclass(frozen=True)
class Usage:
    """Tokens counted: of the prompt, of those found in the cache, generated, and of those reasoning.

    Where a sequence is continued, all of it is the prompt, and what was computed before is found.

    `edit_mode` is that of the last edit which left K and V in the context that another text would not have:
    "shift", "heal" or "hole". None: the context is as if it had never been edited.

    `drafted_tokens` of speculative decoding were verified; `accepted_tokens` of them are part of the text.
    They say how it was computed, and do not count where two are compared.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    edit_mode: Approximate | None = None
    drafted_tokens: int = field(default=0, compare=False)
    accepted_tokens: int = field(default=0, compare=False)

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timings:
    """Seconds: from the request to its first token, and from there to its last."""

    first_token: float
    decode: float
    n_decoded: int  # tokens after the first

    @property
    def tokens_per_second(self) -> float:
        """The speed of decoding, 0 where nothing was decoded."""
        return self.n_decoded / self.decode if self.decode > 0 else 0.0


@dataclass(frozen=True)
class ToolCall:
    """A function that the model calls, and its arguments; the answer to it names its `id`."""

    name: str
    arguments: dict[str, Any]
    id: str

    @property
    def message(self) -> dict[str, Any]:
        """The call as part of a message of the assistant."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }

    def answer(self, content: Any) -> dict[str, Any]:
        """The message that answers it: a text as it is, anything else as JSON."""
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        return {"role": "tool", "tool_call_id": self.id, "name": self.name, "content": text}


@dataclass(frozen=True)
class Result:
    """A finished generation.

    `tokens` are those generated, without the end token. `finish_reason` is "stop", "length" (a limit),
    "repetition" (by `repeat_guard`), "timeout" or "cancelled". `stop_reason` says what stopped it: the stop
    string, the id of the end or stop token, "grammar" (nothing more fits), "callback", "stop function",
    "cache full", "context" (the context was full before `max_tokens`), or None. With
    `logprobs=n`, `logprobs` has an entry for each event of a token. `logprob` is what `best_of` and `beams`
    chose by: the mean log-probability of the tokens sampled, or the score of the hypothesis; it is there with
    `logprobs=n` too, and None otherwise. `tool_calls` are
    those found in the answer of a chat with tools; `text` is then the rest of the answer. `reasoning` is what
    the model thought before it answered, where that is told apart (stretto docs chat): `text` is then
    the answer alone, which starts at `tokens[answer_start]` (with `continues` perhaps before them: negative).
    `captured` has the values that `capture` asked for (stretto docs inside).
    """

    text: str
    tokens: list[int] = field(repr=False)
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    timings: Timings = field(repr=False)
    seed: int
    logprobs: list[Token] | None = field(default=None, repr=False)
    logprob: float | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    answer_start: int = 0
    captured: Captured | None = field(default=None, repr=False)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, for the conversation to go on with."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.message for call in self.tool_calls]
        return message

    def __str__(self) -> str:
        return self.text
