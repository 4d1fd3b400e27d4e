"""Answers in llama-server's own shape: whole, or as server-sent events."""

from __future__ import annotations

import math
from typing import Any

from stretto import Result, Token
from stretto.engine.types import PromptStep
from stretto.options.generating import SAMPLING
from stretto.server.generation.answer import clamp_logprob
from stretto.server.generation.generation import Generation, ended_by, progress_field
from stretto.server.http.errors import ApiError, body_of
from stretto.server.http.streaming import event
from stretto.server.llama_cpp.schemas import NativeSampling

STOP_TYPES = {
    "stop": "eos",
    "length": "limit",
    "repetition": "limit",
    "timeout": "limit",
    "cancelled": "none",
}


class NativeShape:
    """Formats the texts of one request; `prompts` are their texts."""

    def __init__(
        self, generation: Generation, body: NativeSampling, prompts: list[str], options: dict[str, Any]
    ) -> None:
        self.generation = generation
        self.tokenizer = generation.lease.llm.tokenizer
        self.body = body
        self.prompts = prompts
        self._settings = settings_of(body, options, self.tokenizer.end_ids)

    def whole(self, index: int, result: Result) -> dict[str, Any]:
        """A text in one piece."""
        answer = {
            **self.ended(index, result),
            "content": result.text,
            "tokens": result.tokens if self.body.return_tokens else [],
        }
        if self.body.n_probs:
            answer["completion_probabilities"] = [
                self.probability(token) for token in result.logprobs or [] if token.id is not None
            ]
        return self.picked(answer)

    def ended(self, index: int, result: Result) -> dict[str, Any]:
        """The fields of a text that has ended, without the text."""
        kind = STOP_TYPES[result.finish_reason]
        is_word = isinstance(result.stop_reason, str) and kind == "eos"
        usage = result.usage
        return {
            "index": index,
            "content": "",
            "tokens": [],
            "id_slot": -1,
            "stop": True,
            "model": self.body.model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "generation_settings": {**self._settings, "seed": result.seed},
            "prompt": self.prompts[index],
            "has_new_line": "\n" in result.text,
            "truncated": self._is_cut(result),
            "stop_type": "word" if is_word else kind,
            "stopping_word": result.stop_reason if is_word else "",
            **ended_by(result),
            "tokens_cached": usage.prompt_tokens + usage.completion_tokens,
            "timings": self.generation.timings([result]),
        }

    def _is_cut(self, result: Result) -> bool:
        """Whether the context ended before the text did, or lost its oldest tokens."""
        usage = result.usage
        if usage.prompt_tokens + usage.completion_tokens > self.generation.lease.llm.context_length:
            return True
        return result.finish_reason == "length" and result.stop_reason is not None

    def picked(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The fields that were asked for, each under its path; all, if none was named."""
        if not self.body.response_fields:
            return answer
        found = {}
        for path in self.body.response_fields:
            value: Any = answer
            for name in path.split("/"):
                if not isinstance(value, dict) or name not in value:
                    break
                value = value[name]
            else:
                found[path] = value
        return found

    def probability(self, token: Token) -> dict[str, Any]:
        """A token with its log-probability and its alternatives; after the samplers, with probabilities."""
        assert token.id is not None
        tops = [self._entry(one.token, one.logprob) for one in token.top[: self.body.n_probs]]
        name = "top_probs" if self.body.post_sampling_probs else "top_logprobs"
        return {**self._entry(token.id, token.logprob), name: tops}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        shown = self.tokenizer.spelled(token)
        data = self.tokenizer.token_bytes(token) or shown.encode()
        entry: dict[str, Any] = {"id": token, "token": shown, "bytes": list(data)}
        if self.body.post_sampling_probs:
            return {**entry, "prob": 0.0 if logprob is None else math.exp(logprob)}
        return {**entry, "logprob": clamp_logprob(logprob)}


class NativeEvents:
    """Texts as server-sent events: one for every token, and one at the end of each text."""

    def __init__(self, shape: NativeShape, path: str) -> None:
        self._shape = shape
        self._path = path
        self._counts: dict[int, int] = {}

    def more(self, news: list[tuple[int, Token]]) -> bytes:
        """The events of some tokens."""
        shape, texts = self._shape, self._shape.generation.texts
        out = [event(self._progress(*step)) for step in texts.prompt_steps()]
        for index, token in news:
            is_end = token.finish_reason == "stop" and token.id in shape.tokenizer.end_ids
            ids = [] if token.id is None or is_end else [token.id]
            self._counts[index] = count = self._counts.get(index, 0) + len(ids)
            if ids or token.text:
                out.append(event(shape.picked(self._piece(index, token, ids, count))))
            if token.finish_reason is not None:
                result = texts.result(index)
                shape.generation.check(result)
                out.append(event(shape.picked(shape.ended(index, result))))
        return "".join(out).encode()

    def _progress(self, index: int, step: PromptStep) -> dict[str, Any]:
        generation = self._shape.generation
        piece = self._event(index, "", [], 0) | {"prompt_progress": progress_field(generation, step)}
        if self._shape.body.timings_per_token:
            piece["timings"] = generation.prompt_timings(step)
        return piece

    def _event(self, index: int, text: str, ids: list[int], count: int) -> dict[str, Any]:
        return {
            "index": index,
            "content": text,
            "tokens": ids,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": count,
            "tokens_evaluated": self._shape.generation.progress.prompt_tokens,
        }

    def _piece(self, index: int, token: Token, ids: list[int], count: int) -> dict[str, Any]:
        shape = self._shape
        piece = self._event(index, token.text, ids, count)
        if shape.body.n_probs and ids:
            piece["completion_probabilities"] = [shape.probability(token)]
        if shape.body.timings_per_token:
            piece["timings"] = shape.generation.timings_now(count)
        return piece

    async def end(self) -> bytes:
        """The last event has been sent."""
        return b""

    def failed(self, error: ApiError) -> bytes:
        """The error is an event too, and the last one."""
        return event(body_of(error, self._path)).encode()


def settings_of(body: NativeSampling, options: dict[str, Any], ends: frozenset[int]) -> dict[str, Any]:
    """How a text was generated, by llama-server's names; the seed is known when it is done."""
    penalty = options.get("repetition_penalty", 1.0)
    biases = dict(options.get("logit_bias", {}))
    if body.ignore_eos:
        biases.update(dict.fromkeys(sorted(ends), float("-inf")))
    stop = body.stop or []
    given = {option.name: options.get(option.name, option.default) for option in SAMPLING}
    return {
        "n_predict": options.get("max_tokens", -1) if body.n_predict is None else body.n_predict,
        "temperature": given["temperature"],
        "top_k": given["top_k"],
        "top_p": given["top_p"],
        "min_p": given["min_p"],
        "repeat_penalty": penalty,
        "repeat_last_n": -1 if penalty != 1 else 0,
        "presence_penalty": given["presence_penalty"],
        "frequency_penalty": given["frequency_penalty"],
        "adaptive_target": -1.0,  # off
        "adaptive_decay": 0.0 if body.adaptive_decay is None else body.adaptive_decay,
        "logit_bias": [
            {"token": token, "bias": None if bias == float("-inf") else bias}
            for token, bias in biases.items()
        ],
        "stop": [stop] if isinstance(stop, str) else stop,
        "ignore_eos": bool(body.ignore_eos),
        "stream": bool(body.stream),
        "n_probs": body.n_probs or 0,
        "timings_per_token": bool(body.timings_per_token),
        "grammar": body.grammar or "",
    }
