"""The log-probabilities of a prompt, for `/v1/completions` with `echo` and `logprobs`.

lm-eval's `local-completions` scores texts with them: the prompt holds context and continuation, `max_tokens`
is 1 or 0, and what counts are the log-probabilities of the prompt's own tokens.
"""

from __future__ import annotations

import asyncio
from typing import Any

from stretto import Result, Token
from stretto.engine.types import Timings, Usage
from stretto.server.adapters import choose_adapter
from stretto.server.errors import ApiError
from stretto.server.generation import Generation
from stretto.server.schemas import CompletionRequest


def check_echo(body: CompletionRequest) -> None:
    """Raise for fields that do not go with `echo`, or need it."""
    if body.max_tokens == 0 and body.echo:
        for name in ("stream", "best_of", "cache_pin", "return_token_ids"):
            if getattr(body, name):
                raise ApiError(400, f"{name} needs max_tokens of at least 1", param=name, code="unsupported")
    scores = body.logprobs is not None or body.max_tokens == 0
    if body.echo and scores and body.continue_token_ids is not None:
        raise ApiError(
            400, "continue_token_ids and echo do not go together with logprobs or without new tokens",
            param="continue_token_ids", code="unsupported",
        )  # fmt: skip


async def echoed(
    generation: Generation, prompts: list[Any], top: int, options: dict[str, Any]
) -> list[list[Token]]:
    """The tokens of each prompt with their log-probabilities, by the adapter that its text will have."""
    salt = generation.caller.salt or None
    choose_adapter(options, generation.lease)
    scoring = generation.lease.llm.aprompt_logprobs(
        prompts, top, cache_salt=salt, adapter=options.get("adapter")
    )
    try:
        return await asyncio.wait_for(scoring, generation.left)
    except asyncio.TimeoutError:
        raise ApiError(
            503, "the prompt was not scored before the time limit of the request", code="timeout",
            retry_after=10,
        ) from None  # fmt: skip


def nothing_new(n_prompt: int) -> Result:
    """The result of a request for no tokens: its prompt is all there is."""
    return Result(
        text="",
        tokens=[],
        finish_reason="length",
        stop_reason=None,
        usage=Usage(n_prompt, 0),
        timings=Timings(0.0, 0.0, 0),
        seed=0,
        logprobs=[],
    )
