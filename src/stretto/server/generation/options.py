"""From the fields of a request to the options of the engine, with the server's limits."""

from __future__ import annotations

from typing import Any

from stretto.hooks import Only
from stretto.server.generation.fields import LlamaSamplers, plain_options
from stretto.server.generation.requests import ChatRequest, CompletionRequest, Sampling
from stretto.server.http.errors import ApiError, unsupported
from stretto.server.settings import RequestLimits


def engine_options(body: Sampling, limits: RequestLimits) -> dict[str, Any]:
    """The options that both kinds of completion share."""
    options = plain_options(body)
    if body.n_predict is not None:
        if "max_tokens" in body.model_fields_set and body.max_tokens not in (None, body.n_predict):
            raise ApiError(400, "max_tokens and n_predict differ; give one", param="n_predict")
        options.pop("max_tokens", None)
        options.update({"max_tokens": body.n_predict} if body.n_predict >= 0 else {})
    if body.top_k == -1:
        options["top_k"] = 0
    if (penalty := repeat_penalty(body)) is not None:
        if options.get("repetition_penalty", penalty) != penalty:
            raise ApiError(
                400, "repetition_penalty and repeat_penalty differ; give one", param="repeat_penalty"
            )
        options["repetition_penalty"] = penalty
    if body.logit_bias:
        options["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
    if stop_tokens := [*(body.stop_tokens or ()), *(body.stop_token_ids or ())]:
        options["stop_tokens"] = stop_tokens
    if body.allowed_token_ids is not None:
        options["hooks"] = [Only(body.allowed_token_ids)]
    if body.include_stop_str_in_output:
        options["include_stop"] = True
    if body.skip_special_tokens is False:
        options["special"] = True
    if body.prompt_logprobs is not None and body.stream:
        raise ApiError(
            400, "prompt_logprobs are not streamed; leave stream out", param="prompt_logprobs",
            code="unsupported",
        )  # fmt: skip
    if body.lora is not None:
        options["adapter"] = body.lora
    if body.seed is not None:
        options["seed"] = body.seed % (1 << 64)
    if body.stream_options is not None and not body.stream:
        raise ApiError(
            400, "stream_options is for streams; set stream, or leave it out", param="stream_options"
        )
    if body.continue_token_ids is not None:
        options["continues"] = len(body.continue_token_ids)
    options["n"] = body.n or 1
    check_at_most("n", options["n"], limits.n)
    return options


def repeat_penalty(body: LlamaSamplers) -> float | None:
    """llama-server's penalty, where it is given and not off."""
    if body.repeat_penalty in (None, 1) or body.repeat_last_n == 0:
        return None
    if body.repeat_last_n not in (None, -1):
        raise unsupported(
            "repeat_last_n: the penalty looks at the whole text here; leave it out, or give -1 or 0",
            "repeat_last_n",
        )
    return body.repeat_penalty


def completion_options(body: CompletionRequest, limits: RequestLimits) -> dict[str, Any]:
    """The options of `/v1/completions`."""
    options = engine_options(body, limits)
    if body.best_of is not None:
        check_at_most("best_of", body.best_of, limits.n)
        if body.stream:
            raise ApiError(400, "best_of cannot be streamed: the best is known at the end", param="best_of")
        if body.best_of != options["n"]:
            options["best_of"] = body.best_of
    if body.logprobs is not None:
        options["logprobs"] = max(1, body.logprobs)  # 0 asks for the token's own, and so does 1
    _choose_logprobs(body, options)
    return options


def _choose_logprobs(body: CompletionRequest | ChatRequest, options: dict[str, Any]) -> None:
    """The tokens whose log-probabilities are given, where they are named."""
    if body.logprob_token_ids is None:
        return
    if "logprobs" not in options:
        raise ApiError(400, "logprob_token_ids needs logprobs", param="logprob_token_ids")
    options["logprob_tokens"] = body.logprob_token_ids


def check_allowed(body: Sampling, n_vocab: int) -> None:
    """Raise if a token that may be sampled is none of the model's."""
    highest = max(body.allowed_token_ids or [0])
    if highest >= n_vocab:
        raise ApiError(
            400,
            f"allowed_token_ids has {highest}; the vocabulary ends at {n_vocab - 1}: leave it out",
            param="allowed_token_ids",
            code="invalid_value",
        )


def n_tops(body: CompletionRequest | ChatRequest) -> int | None:
    """How many tokens beside the chosen one have log-probabilities; None if there are none at all."""
    if isinstance(body, CompletionRequest):
        n = body.logprobs
    else:
        n = (body.top_logprobs or 0) if body.logprobs else None
    return n if n is None or body.logprob_token_ids is None else len(body.logprob_token_ids)


def chat_options(body: ChatRequest, limits: RequestLimits) -> dict[str, Any]:
    """The options of `/v1/chat/completions`."""
    options = engine_options(body, limits)
    if body.tools and body.skip_special_tokens is False:
        raise unsupported(
            "skip_special_tokens: false and tools do not go together: calls are read without them",
            "skip_special_tokens",
        )
    most = body.max_completion_tokens
    if most is not None:
        if body.max_tokens not in (None, most):
            raise ApiError(400, "max_tokens and max_completion_tokens differ; give one", param="max_tokens")
        options["max_tokens"] = most
    switch = body.thinking.budget_tokens if body.thinking is not None else None
    for budget in (body.thinking_budget_tokens, body.thinking_token_budget, switch):
        if budget is not None and budget >= 0:
            options["reasoning_budget"] = min(budget, options.get("reasoning_budget", budget))
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    if body.logprobs:
        options["logprobs"] = max(1, body.top_logprobs or 0)
    _choose_logprobs(body, options)
    return options


def check_at_most(name: str, value: int, most: int) -> None:
    """Raise for a value above a limit of the server."""
    if value > most:
        raise ApiError(
            400, f"{name} is {value:,}; at most {most:,} are served", param=name, code="over_limit"
        )


def check_prompts(name: str, prompts: list[Any], limits: RequestLimits, most: int | None = None) -> None:
    """Raise for too many prompts (over `most`), and for too long ones, before they are tokenized."""
    most = most or limits.prompts
    if len(prompts) > most:
        raise ApiError(
            400, f"{name} has {len(prompts):,} entries; at most {most:,} are served", param=name,
            code="over_limit",
        )  # fmt: skip
    total = sum(map(_length, prompts))
    if total > limits.prompt:
        raise ApiError(
            400, f"{name} has {total:,} characters; at most {limits.prompt:,} are served", param=name,
            code="over_limit",
        )  # fmt: skip


def _length(prompt: Any) -> int:
    """The characters of a text, the number of ids, or both together."""
    if isinstance(prompt, str) or not any(isinstance(part, str) for part in prompt):
        return len(prompt)
    return sum(len(part) if isinstance(part, str) else 1 for part in prompt)
