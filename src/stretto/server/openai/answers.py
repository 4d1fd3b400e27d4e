"""Answers of `/v1/completions` and `/v1/chat/completions`: choices, chunks, log-probabilities."""

from __future__ import annotations

import json
import time
from collections import Counter
from functools import cached_property
from secrets import token_hex
from typing import Any

from stretto import Result, Token
from stretto.engine.types import PromptStep
from stretto.server.generation.answer import FINGERPRINT, Answer, clamp_logprob
from stretto.server.generation.calls import CallWatcher, call_deltas, openai_calls
from stretto.server.generation.generation import Generation
from stretto.server.generation.options import n_tops
from stretto.server.generation.requests import ChatRequest, CompletionRequest
from stretto.server.http.errors import dumps
from stretto.server.http.streaming import DONE, event
from stretto.tools.plan import ToolPlan

REASONS = {"stop": "stop"} | dict.fromkeys(("length", "repetition", "timeout", "cancelled"), "length")

REASONING = ("reasoning_content", "reasoning")  # DeepSeek's and llama-server's name; vLLM's and OpenRouter's

TAIL = ',"finish_reason":null}]}\n\n'  # of a chunk
END = "}\n\n"  # of any chunk

quoted = json.encoder.encode_basestring_ascii  # a text as JSON


class CompletionAnswer(Answer):
    """Texts of `/v1/completions`. The constant parts of a text's chunks are formatted once."""

    kind = "text_completion"
    chunk_kind = "text_completion"
    prefix = "cmpl"

    def __init__(
        self, generation: Generation, body: CompletionRequest | ChatRequest, n_prompts: int = 1
    ) -> None:
        super().__init__(generation)
        self.model = body.model
        self.tops = n_tops(body)  # number of alternatives; None: no log-probabilities at all
        self.id = f"{self.prefix}-{token_hex(12)}"
        self.created = int(time.time())
        self.before: list[str] = []  # the text that comes before each of them (`echo`)
        self.scored: list[list[Token]] = []  # the prompt's tokens of each, where they have log-probabilities
        self.prompt_tops: int | None = None  # alternatives of the prompt's tokens, where they are asked for
        self.verbose: dict[str, Any] = {}  # fields of the answer for people who look into it
        self.prompts: list[list[int] | None] | None = None  # of each text, where ids of tokens are asked for
        self.ends: frozenset[int] = self.tokenizer.end_ids  # tokens that end a text and are not part of it
        self._names_ids = body.return_tokens_as_token_ids is True  # tokens of log-probabilities by their ids
        self._n_prompts = n_prompts
        options = body.stream_options
        self._usage = options is not None and bool(options.include_usage)  # at the end of a stream
        self._counts = self._usage and bool(options and options.continuous_usage_stats)  # in each chunk
        self._timed = body.timings_per_token is True
        self._n_tokens = 0
        self._n_each: Counter[int] = Counter()  # tokens of each text so far
        self._n_prompt = 0
        self._heads: dict[int, str] = {}  # of the texts that have begun
        self._results: dict[int, Result] = {}  # of those that have ended

    def is_sent(self, token: Token) -> bool:
        """Whether a token without text (half a character, say) has a chunk: a client sees each as it is made.

        An end token has one only with log-probabilities: the finish reason stands for it.
        """
        if token.id is None:
            return False
        return self.tops is not None or token.finish_reason is None or bool(self.list_ids(token))

    def list_ids(self, token: Token) -> list[int]:
        """The ids that a token adds to its text, where they are asked for."""
        if self.prompts is None or token.id is None:
            return []
        return [] if token.finish_reason == "stop" and token.id in self.ends else [token.id]

    def head(self, kind: str) -> dict[str, Any]:
        """The first fields of every answer and every chunk."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }

    def whole(self, results: list[Result]) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [
            {
                "index": index,
                **self.choice(index, result),
                **self.whole_ids(index, result),
                **self.of_prompt(index),
                "finish_reason": self.reason(index, result),
                "stop_reason": stop_reason(result),
            }
            for index, result in enumerate(map(self.read, results))
        ]
        return {
            **self.head(self.kind),
            "choices": choices,
            **self.of_prompts(),
            **self.verbose,
            "usage": self.usage(results),
            "timings": self.generation.timings(results),
        }

    def count_values(self, results: list[Result]) -> int:
        """Those of log-probabilities."""
        tops = self.tops or 0
        return sum(len(result.tokens) for result in results) * tops + sum(map(len, self.scored)) * (1 + tops)

    def usage(self, results: list[Result]) -> dict[str, Any]:
        """Tokens counted, those of each prompt once.

        A prompt that was scored here first was computed, not found in the cache.
        """
        firsts = [result.usage for result in results[:: max(1, len(results) // self._n_prompts)]]
        prompt = sum(used.prompt_tokens for used in firsts)
        cached = 0 if self.scored else sum(used.cached_tokens for used in firsts)
        completion = sum(result.usage.completion_tokens for result in results)
        reasoning = sum(result.usage.reasoning_tokens for result in results)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning, **count_drafts(results)},
            **self.generation.usage_notes,
        }

    def whole_ids(self, index: int, result: Result) -> dict[str, Any]:
        """The ids of a text and of its prompt, where they are asked for; those of an image are none."""
        if self.prompts is None:
            return {}
        return {"prompt_token_ids": self.prompts[index], "token_ids": result.tokens}

    def vllm_logprobs(self, index: int) -> list[dict[str, Any] | None]:
        """Log-probabilities of a prompt's tokens as vLLM has them: by id, None for the first."""

        def entry(token: int, logprob: float | None, rank: int | None) -> dict[str, Any]:
            return {
                "logprob": clamp_logprob(logprob),
                "rank": rank,
                "decoded_token": self.tokenizer.spelled(token),
            }

        found: list[dict[str, Any] | None] = [None]
        for token in self.scored[index][1:]:
            assert token.id is not None
            ranks = {one.token: rank for rank, one in enumerate(token.top, 1)}
            entries = {str(token.id): entry(token.id, token.logprob, ranks.get(token.id))}
            for one in token.top[: self.prompt_tops]:
                entries.setdefault(str(one.token), entry(one.token, one.logprob, ranks[one.token]))
            found.append(entries)
        return found

    def ending(self, index: int, result: Result) -> list[str]:
        """The last chunks of a text, without their heads."""
        choice = {
            "index": index,
            **self.empty(),
            "finish_reason": self.reason(index, result),
            "stop_reason": stop_reason(result),
        }
        rest = {"choices": [choice], **self.verbose, "timings": self.generation.timings([result])}
        return [dumps(rest)[1:]]

    def reason(self, index: int, result: Result) -> str:
        """OpenAI's word for how a text ended."""
        return REASONS[result.finish_reason]

    # -- streams --

    def add(self, index: int, token: Token, result: Result | None) -> str:
        """The chunks of a token: before the first of a text one without any, behind the last how it ended."""
        out, head = "", self._heads.get(index)
        if head is None:
            head = self._heads[index] = f'{self._chunk_head}"choices":[{{"index":{index},'
            if opening := self.opening(index):
                out = self._counted(f"{head}{opening}{self.opening_end()}", index)
        self._n_each[index] += 1
        if result is not None:
            self._results[index] = result
        if piece := self.piece(index, token):
            out += self._counted(f"{head}{piece}{self._timed_tail() if self._timed else TAIL}", index)
        if result is not None:
            for last in self.ending(index, result):
                out += self._counted(f"{self._chunk_head}{last}\n\n", index)
        return out

    @cached_property
    def _chunk_head(self) -> str:
        none = ',"usage":null' if self._usage and not self._counts else ""
        return f"data: {dumps(self.head(self.chunk_kind))[:-1]}{none},"

    def progress(self, index: int, step: PromptStep) -> str:
        """The chunk of a step that has computed a part of a prompt."""
        chunk = {
            **self.head(self.chunk_kind),
            "choices": [{"index": index, **self.empty(), "finish_reason": None}],
            "prompt_progress": self.generation.prompt_progress(step),
        }
        return event({**chunk, "timings": self.generation.prompt_timings(step)} if self._timed else chunk)

    def _counted(self, chunk: str, index: int) -> str:
        """A chunk of a text; where it is asked for, with the tokens of the text so far and of all prompts."""
        if not self._counts:
            return chunk
        n_text, n_prompt = self._n_each[index], self.generation.progress.prompt_tokens
        if (result := self._results.get(index)) is not None:
            n_text, n_prompt = result.usage.completion_tokens, max(n_prompt, result.usage.prompt_tokens)
        n_prompt = self._n_prompt = max(n_prompt, self._n_prompt)
        counts = {"prompt_tokens": n_prompt, "completion_tokens": n_text, "total_tokens": n_prompt + n_text}
        return f'{chunk.removesuffix(END)},"usage":{dumps(counts)}{END}'

    def _timed_tail(self) -> str:
        """The end of a token's chunk, with the timings so far."""
        self._n_tokens += 1
        timings = self.generation.timings_now(self._n_tokens)
        return f',"finish_reason":null}}],"timings":{dumps(timings)}}}\n\n'

    async def end(self) -> bytes:
        """The usage, if it was asked for, and the last event."""
        if not self._usage:
            return DONE
        results = [self._results[index] for index in sorted(self._results)]
        last = {
            **self.head(self.chunk_kind),
            "choices": [],
            "usage": self.usage(results),
            "timings": self.generation.timings(results),
        }
        return event(last).encode() + DONE

    # -- overridden for chats --

    def of_prompt(self, index: int) -> dict[str, Any]:
        """Fields of a choice about its prompt."""
        return {} if self.prompt_tops is None else {"prompt_logprobs": self.vllm_logprobs(index)}

    def of_prompts(self) -> dict[str, Any]:
        """Fields of the answer about the one prompt that it has."""
        return {}

    def opening_end(self) -> str:
        """The end of the chunk before a text's first token."""
        return TAIL

    def read(self, result: Result) -> Result:
        """A result as it is sent; with its calls in a chat."""
        return result

    def opening(self, index: int) -> str:
        """The chunk before a text's first token; empty if there is none."""
        if not self.before and self.prompts is None:
            return ""
        text = self.before[index] if self.before else ""
        logprobs = dumps(self.prompt_logprobs(index)) if self.scored and self.tops is not None else "null"
        return f'"text":{quoted(text)},"logprobs":{logprobs}{self.opening_ids(index)}'

    def opening_ids(self, index: int) -> str:
        """The ids of a text's prompt, as a field, where they are asked for."""
        return "" if self.prompts is None else f',"prompt_token_ids":{dumps(self.prompts[index])}'

    def piece_ids(self, token: Token) -> str:
        """The ids of a token, as a field, where they are asked for."""
        return "" if self.prompts is None else f',"token_ids":{dumps(self.list_ids(token))}'

    def empty(self) -> dict[str, Any]:
        """The text of a chunk that has none."""
        return {"text": "", "logprobs": None}

    def piece(self, index: int, token: Token) -> str:
        """A token as the fields of a chunk's choice; empty if there is nothing to send."""
        if not token.text and not self.is_sent(token):
            return ""
        logprobs = "null" if self.tops is None else dumps(self.logprobs([token]))
        return f'"text":{quoted(token.text)},"logprobs":{logprobs}{self.piece_ids(token)}'

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        """A whole text."""
        before = self.before[index] if self.before else ""
        logprobs = None if self.tops is None else self.logprobs(result.logprobs or [], len(before))
        if logprobs is not None and self.scored and self.before:
            logprobs = {
                name: [*first, *logprobs[name]] for name, first in self.prompt_logprobs(index).items()
            }
        return {"text": before + result.text, "logprobs": logprobs}

    def prompt_logprobs(self, index: int) -> dict[str, Any]:
        """Log-probabilities of a prompt's tokens; the first has none."""
        found = self.logprobs(self.scored[index])
        found["token_logprobs"][0] = found["top_logprobs"][0] = None
        end = len(self.before[index])  # of which the detokenized text may be another form
        found["text_offset"] = [min(at, end) for at in found["text_offset"]]
        return found

    def logprobs(self, tokens: list[Token], at: int = 0) -> dict[str, Any]:
        """Log-probabilities in the shape of `/v1/completions`; the text of the first token starts at `at`."""
        known = [token for token in tokens if token.id is not None]
        offsets = []
        for token in known:
            offsets.append(at)
            at += len(token.text)
        return {
            "tokens": [self.shown(token.id) for token in known],
            "token_logprobs": [clamp_logprob(token.logprob) for token in known],
            "top_logprobs": [self._best(token) for token in known],
            "text_offset": offsets,
            **({} if self.prompts is None else self._logprob_ids(known)),
        }

    def _best(self, token: Token) -> dict[str, float]:
        """The most probable tokens by text; of several with the same text the most probable one.

        The token itself is always among them, so that there may be one more than was asked for.
        """
        best: dict[str, float] = {}
        for one in token.top[: self.tops]:
            best.setdefault(self.shown(one.token), clamp_logprob(one.logprob))
        best.setdefault(self.shown(token.id), clamp_logprob(token.logprob))
        return best

    def _logprob_ids(self, tokens: list[Token]) -> dict[str, Any]:
        """Ids beside the texts, which may be the same for several tokens."""
        return {
            "token_ids": [token.id for token in tokens],
            "top_tokens": [
                [
                    {
                        "token": self.shown(one.token),
                        "token_id": one.token,
                        "logprob": clamp_logprob(one.logprob),
                    }
                    for one in token.top[: self.tops]
                ]
                for token in tokens
            ],
        }

    def shown(self, token: int | None) -> str:
        """A token as text."""
        if token is None:
            return ""
        return f"token_id:{token}" if self._names_ids else self.tokenizer.spelled(token)


class ChatAnswer(CompletionAnswer):
    """Texts of `/v1/chat/completions`; with tools, calls are separated from the text."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prefix = "chatcmpl"
    streams_arguments = True  # in pieces; otherwise calls come when they are whole

    def __init__(self, generation: Generation, body: ChatRequest, plan: ToolPlan) -> None:
        super().__init__(generation, body)
        self._plan = plan
        self._begun = body.continue_token_ids or []  # ids that the answer begins with
        self._watchers: dict[int, CallWatcher] = {}
        self._hides_reasoning = body.include_reasoning is False
        self._shows_sampled = body.logprob_token_ids is not None  # among the alternatives, if these are named

    def of_prompt(self, index: int) -> dict[str, Any]:
        """Nothing: all texts have the same prompt."""
        return {}

    def of_prompts(self) -> dict[str, Any]:
        """Ids and log-probabilities of the prompt, where they are asked for; vLLM's clients look here."""
        ids = {} if self.prompts is None else {"prompt_token_ids": self.prompts[0]}
        return ids if self.prompt_tops is None else {**ids, "prompt_logprobs": self.vllm_logprobs(0)}

    def opening_end(self) -> str:
        """With the ids of the prompt, where they are asked for."""
        if self.prompts is None:
            return TAIL
        return f',"finish_reason":null}}],"prompt_token_ids":{dumps(self.prompts[0])}}}\n\n'

    def reason(self, index: int, result: Result) -> str:
        """A text with calls ends with them, unless it was cut behind or within one."""
        has_ended = result.tool_calls and result.finish_reason == "stop"
        return "tool_calls" if has_ended else super().reason(index, result)

    def read(self, result: Result) -> Result:
        """With calls, if there are tools."""
        return self._plan.read(result, self._begun)

    def opening(self, index: int) -> str:
        """The role; the text is null on llama-server's path, as there, and empty on OpenAI's."""
        text = '""' if self.generation.path.startswith("/v1/") else "null"
        if self.before and self.before[index]:
            text = quoted(self.before[index])
        return f'"delta":{{"role":"assistant","content":{text}}},"logprobs":null{self.opening_ids(index)}'

    def empty(self) -> dict[str, Any]:
        """Nothing more."""
        return {"delta": {}, "logprobs": None}

    def piece(self, index: int, token: Token) -> str:
        """A token as the fields of a chunk's choice."""
        calls = ""
        if self._plan.reader is not None:
            watcher = self._watcher(index)
            token = token._replace(text=watcher.push(token))
            if deltas := call_deltas(watcher.take()):
                calls = f',"tool_calls":{dumps(deltas)}'
            elif not token.text and self.tops is None and self.prompts is None:  # part of a call, perhaps
                return ""
        is_hidden = token.is_reasoning and self._hides_reasoning
        if is_hidden or (not token.text and not calls and not self.is_sent(token)):
            return ""
        logprobs = "null" if self.tops is None else dumps(self.logprobs([token]))
        text = "null" if calls and not token.text else quoted(token.text)
        said = text_fields(text, token.is_reasoning)
        return f'"delta":{{{said}{calls}}},"logprobs":{logprobs}{self.piece_ids(token)}'

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        """A whole message."""
        logprobs = None if self.tops is None else self.logprobs(result.logprobs or [])
        text = (self.before[index] if self.before else "") + result.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if result.reasoning and not self._hides_reasoning:
            message |= dict.fromkeys(REASONING, result.reasoning)
        if result.tool_calls:
            message["content"] = text or None
            message["tool_calls"] = openai_calls(result)
        return {"message": message, "logprobs": logprobs}

    def ending(self, index: int, result: Result) -> list[str]:
        """The text that was held back, the calls, and the last chunk."""
        last: list[str] = []
        if self._plan.reader is not None:
            rest, result = self._watcher(index).end(result)
            deltas: list[dict[str, Any]] = [{"content": rest}] if rest else []
            if calls := call_deltas(self._watcher(index).take()):
                deltas.append({"tool_calls": calls})
            for delta in deltas:
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                last.append(dumps({"choices": [choice]})[1:])
        return last + super().ending(index, result)

    def _watcher(self, index: int) -> CallWatcher:
        if index not in self._watchers:
            stops = self.generation.stops
            self._watchers[index] = CallWatcher(
                self._plan, self._begun, lambda name: self.streams_arguments, stops
            )
        return self._watchers[index]

    def logprobs(self, tokens: list[Token], at: int = 0) -> dict[str, Any]:
        """Log-probabilities in the shape of chats, which have no offsets."""
        content = [
            {
                **self._entry(token.id, token.logprob),
                "top_logprobs": self._tops(token, token.id),
            }
            for token in tokens
            if token.id is not None
        ]
        return {"content": content, "refusal": None}

    def _tops(self, token: Token, sampled: int) -> list[dict[str, Any]]:
        tops: list[tuple[int, float | None]] = [(one.token, one.logprob) for one in token.top[: self.tops]]
        if self._shows_sampled and all(one != sampled for one, _ in tops):
            tops.append((sampled, token.logprob))
        return [self._entry(*one) for one in tops]

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        data = self.tokenizer.token_bytes(token) or self.tokenizer.spelled(token).encode()
        entry = {"token": self.shown(token), "logprob": clamp_logprob(logprob), "bytes": list(data)}
        return entry if self.prompts is None else {**entry, "token_id": token}


def text_fields(text: str, is_reasoning: bool) -> str:
    """The fields of a delta that have a text, which is JSON; reasoning has both of its names."""
    names = REASONING if is_reasoning else ("content",)
    return ",".join(f'"{name}":{text}' for name in names)


def stop_reason(result: Result) -> str | int | None:
    """The reason for the stop: a stop string, the id of a token, "repetition", "timeout" …"""
    return result.finish_reason if result.finish_reason in ("repetition", "timeout") else result.stop_reason


class FunctionAnswer(ChatAnswer):
    """Answers to a request with `functions`: one call at most, and it has no id."""

    streams_arguments = False

    def reason(self, index: int, result: Result) -> str:
        """A text with a call ends with it, unless it was cut behind it."""
        reason = super().reason(index, result)
        return "function_call" if reason == "tool_calls" else reason

    def choice(self, index: int, result: Result) -> dict[str, Any]:
        """A whole message."""
        found = super().choice(index, result)
        if calls := found["message"].pop("tool_calls", None):
            found["message"]["function_call"] = calls[0]["function"]
        return found

    def piece(self, index: int, token: Token) -> str:
        """A token as the fields of a chunk's choice; a call comes at the end."""
        if self._plan.reader is not None:
            token = token._replace(text=self._watcher(index).push(token))
        if not token.text or (token.is_reasoning and self._hides_reasoning):
            return ""
        logprobs = "null" if self.tops is None else dumps(self.logprobs([token]))
        said = text_fields(quoted(token.text), token.is_reasoning)
        return f'"delta":{{{said}}},"logprobs":{logprobs}{self.piece_ids(token)}'

    def ending(self, index: int, result: Result) -> list[str]:
        """The text that was held back, the call, and the last chunk."""
        if self._plan.reader is None:
            return CompletionAnswer.ending(self, index, result)
        rest, result = self._watcher(index).end(result)
        deltas: list[dict[str, Any]] = [{"content": rest}] if rest else []
        if calls := openai_calls(result):
            deltas.append({"function_call": calls[0]["function"]})
        fields = {"logprobs": None, "finish_reason": None}
        choices = [{"index": index, "delta": delta, **fields} for delta in deltas]
        return [
            *(dumps({"choices": [one]})[1:] for one in choices),
            *CompletionAnswer.ending(self, index, result),
        ]


def count_drafts(results: list[Result]) -> dict[str, int]:
    """Draft tokens that were accepted, and that were not; nothing where none were drafted."""
    drafted = sum(result.usage.drafted_tokens for result in results)
    accepted = sum(result.usage.accepted_tokens for result in results)
    if not drafted:
        return {}
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
