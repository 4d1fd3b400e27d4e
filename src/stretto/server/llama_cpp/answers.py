"""Answers in llama-server's own shape: whole, or as server-sent events."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from stretto import Result, Token
from stretto.engine.types import PromptStep
from stretto.options.generating import SAMPLING
from stretto.server.generation.answer import Answer, clamp_logprob, name_limit
from stretto.server.generation.generation import Generation
from stretto.server.http.streaming import event
from stretto.server.llama_cpp.schemas import NativeSampling

STOP_TYPES = {
    "stop": "eos",
    "length": "limit",
    "repetition": "limit",
    "timeout": "limit",
    "cancelled": "none",
}


class LlamaAnswer(Answer):
    """The texts of one request, in a stream an event for every token, and one at the end of each text.

    `prompts` are the texts of its prompts, `is_list` whether the answer is one.
    """

    def __init__(
        self,
        generation: Generation,
        body: NativeSampling,
        prompts: list[str],
        is_list: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(generation)
        self._body = body
        self._prompts = prompts
        self._is_list = is_list
        self._settings = list_settings(body, options, self.tokenizer.end_ids)
        self._counts: Counter[int] = Counter()  # tokens of each text so far

    def whole(self, results: list[Result]) -> Any:
        """All texts, or the one."""
        answers = [self._text(index, result) for index, result in enumerate(results)]
        return answers if self._is_list else answers[0]

    def count_values(self, results: list[Result]) -> int:
        """Those of log-probabilities, and the tokens' ids."""
        return sum(len(result.tokens) for result in results) * (1 + (self._body.n_probs or 0))

    def _text(self, index: int, result: Result) -> dict[str, Any]:
        answer = {
            **self._ended(index, result),
            "content": result.text,
            "tokens": result.tokens if self._body.return_tokens else [],
        }
        if self._body.n_probs:
            answer["completion_probabilities"] = [
                self._probability(token) for token in result.logprobs or [] if token.id is not None
            ]
        return self._picked(answer)

    def _ended(self, index: int, result: Result) -> dict[str, Any]:
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
            "model": self._body.model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "generation_settings": {**self._settings, "seed": result.seed},
            "prompt": self._prompts[index],
            "has_new_line": "\n" in result.text,
            "truncated": self._is_cut(result),
            "stop_type": "word" if is_word else kind,
            "stopping_word": result.stop_reason if is_word else "",
            **name_limit(result),
            "tokens_cached": usage.prompt_tokens + usage.completion_tokens,
            "timings": self.generation.timings([result]),
        }

    def _is_cut(self, result: Result) -> bool:
        """Whether the context ended before the text did, or lost its oldest tokens."""
        usage = result.usage
        if usage.prompt_tokens + usage.completion_tokens > self.generation.lease.llm.context_length:
            return True
        return result.finish_reason == "length" and result.stop_reason is not None

    def _picked(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The fields that were asked for, each under its path; all, if none was named."""
        if not self._body.response_fields:
            return answer
        found = {}
        for path in self._body.response_fields:
            value: Any = answer
            for name in path.split("/"):
                if not isinstance(value, dict) or name not in value:
                    break
                value = value[name]
            else:
                found[path] = value
        return found

    def _probability(self, token: Token) -> dict[str, Any]:
        """A token with its log-probability and its alternatives; after the samplers, with probabilities."""
        assert token.id is not None
        tops = [self._entry(one.token, one.logprob) for one in token.top[: self._body.n_probs]]
        name = "top_probs" if self._body.post_sampling_probs else "top_logprobs"
        return {**self._entry(token.id, token.logprob), name: tops}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        shown = self.tokenizer.spelled(token)
        data = self.tokenizer.token_bytes(token) or shown.encode()
        entry: dict[str, Any] = {"id": token, "token": shown, "bytes": list(data)}
        if self._body.post_sampling_probs:
            return {**entry, "prob": 0.0 if logprob is None else math.exp(logprob)}
        return {**entry, "logprob": clamp_logprob(logprob)}

    # -- as events --

    def add(self, index: int, token: Token, result: Result | None) -> str:
        """The event of a token, and the one of its text's end."""
        out = ""
        is_end = token.finish_reason == "stop" and token.id in self.tokenizer.end_ids
        ids = [] if token.id is None or is_end else [token.id]
        self._counts[index] += len(ids)
        if ids or token.text:
            piece = self._event(index, token.text, ids)
            if self._body.n_probs and ids:
                piece["completion_probabilities"] = [self._probability(token)]
            if self._body.timings_per_token:
                piece["timings"] = self.generation.timings_now(self._counts[index])
            out = event(self._picked(piece))
        return out if result is None else out + event(self._picked(self._ended(index, result)))

    def progress(self, index: int, step: PromptStep) -> str:
        """The event of a step that has computed a part of a prompt."""
        piece = self._event(index, "", []) | {"prompt_progress": self.generation.prompt_progress(step)}
        if self._body.timings_per_token:
            piece["timings"] = self.generation.prompt_timings(step)
        return event(piece)

    def _event(self, index: int, text: str, ids: list[int]) -> dict[str, Any]:
        return {
            "index": index,
            "content": text,
            "tokens": ids,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._counts[index],
            "tokens_evaluated": self.generation.progress.prompt_tokens,
        }


def list_settings(body: NativeSampling, options: dict[str, Any], ends: frozenset[int]) -> dict[str, Any]:
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
