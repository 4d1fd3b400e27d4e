"""llama-server's fields as options of the engine."""

from __future__ import annotations

from typing import Any

from stretto.server.errors import ApiError
from stretto.server.llama_schemas import NativeSampling
from stretto.server.options import repeat_penalty
from stretto.server.schema_base import plain_options
from stretto.server.settings import RequestLimits
from stretto.server.structured import named_grammar
from stretto.text.tokenizer import Tokenizer


def native_options(body: NativeSampling, limits: RequestLimits) -> dict[str, Any]:
    """The options, but for `logit_bias`, whose texts need a tokenizer."""
    options: dict[str, Any] = {"n": 1, **plain_options(body)}
    if body.top_k is not None:
        options["top_k"] = max(0, body.top_k)  # -1: all
    if (penalty := repeat_penalty(body)) is not None:
        options["repetition_penalty"] = penalty
    if body.seed is not None and body.seed >= 0:
        options["seed"] = body.seed
    if body.n_predict is not None and body.n_predict >= 0:
        options["max_tokens"] = body.n_predict
    if body.t_max_predict_ms is not None and body.t_max_predict_ms > 0:
        options["timeout"] = body.t_max_predict_ms / 1000
    if body.lora is not None:
        options["adapter"] = body.lora
    if body.n_probs:
        options["logprobs"] = body.n_probs
        options["sampled_logprobs"] = bool(body.post_sampling_probs)
    return options | named_grammar(body.grammar or None, body.json_schema, limits)


def logit_biases(body: NativeSampling, tokenizer: Tokenizer) -> dict[str, Any]:
    """The option `logit_bias`: of ids, and of every token of a text; to be called in a thread."""
    given = body.logit_bias
    pairs = list(given.items()) if isinstance(given, dict) else [_pair(one) for one in given or []]
    biases: dict[int, float] = {}
    for what, bias in pairs:
        is_text = isinstance(what, str) and not (what.isascii() and what.isdigit())
        ids = tokenizer.encode(str(what), special=True, bos=False) if is_text else [int(what)]
        biases.update(dict.fromkeys(ids, float("-inf") if bias is False else float(bias)))
    return {"logit_bias": biases} if biases else {}


def _pair(given: Any) -> tuple[int | str, Any]:
    is_pair = isinstance(given, list) and len(given) == 2
    what, bias = given if is_pair else (None, None)
    is_number = isinstance(bias, (int, float)) and bias is not True and abs(bias) <= 1e9
    if not is_number or isinstance(what, bool) or not isinstance(what, (int, str)):
        raise ApiError(
            400,
            "logit_bias must have pairs of a token or a text, and a number or false",
            param="logit_bias",
            code="invalid_value",
        )
    return what, bias
