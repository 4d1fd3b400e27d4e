"""From the fields of a request to the options of the engine, with the server's limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stretto import Grammar
from stretto.hooks import Only
from stretto.options.generating import OPTIONS
from stretto.options.option import taken_by
from stretto.server.generation.fields import Body, LlamaSamplers, StructuredOutputs, VllmSampling
from stretto.server.generation.requests import (
    ChatRequest,
    ChoiceGrammar,
    CompletionRequest,
    JsonFormat,
    LarkGrammar,
    RegexGrammar,
    Sampling,
    SchemaFormat,
)
from stretto.server.http.errors import blame_field, field_error, unsupported
from stretto.server.settings import RequestLimits

PLAIN = tuple(option.name for option in taken_by(OPTIONS, "request"))


def plain_options(body: Body) -> dict[str, Any]:
    """The options that a body has fields of the same name and meaning for, as far as they are given."""
    return {name: value for name in PLAIN if (value := getattr(body, name, None)) is not None}


def engine_options(body: Sampling, limits: RequestLimits) -> dict[str, Any]:
    """The options that both kinds of completion share."""
    options = plain_options(body)
    if body.n_predict is not None:
        if "max_tokens" in body.model_fields_set and body.max_tokens not in (None, body.n_predict):
            raise field_error("n_predict", "max_tokens and n_predict differ; give one")
        options.pop("max_tokens", None)
        options.update({"max_tokens": body.n_predict} if body.n_predict >= 0 else {})
    if body.top_k == -1:
        options["top_k"] = 0
    if (penalty := repeat_penalty(body)) is not None:
        if options.get("repetition_penalty", penalty) != penalty:
            raise field_error("repeat_penalty", "repetition_penalty and repeat_penalty differ; give one")
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
        raise field_error(
            "prompt_logprobs", "prompt_logprobs are not streamed; leave stream out", "unsupported"
        )
    if body.lora is not None:
        options["adapter"] = body.lora
    if body.seed is not None:
        options["seed"] = body.seed % (1 << 64)
    if body.stream_options is not None and not body.stream:
        raise field_error("stream_options", "stream_options is for streams; set stream, or leave it out")
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
            raise field_error("best_of", "best_of cannot be streamed: the best is known at the end")
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
        raise field_error("logprob_token_ids", "logprob_token_ids needs logprobs")
    options["logprob_tokens"] = body.logprob_token_ids


def check_allowed(body: Sampling, n_vocab: int) -> None:
    """Raise if a token that may be sampled is none of the model's."""
    highest = max(body.allowed_token_ids or [0])
    if highest >= n_vocab:
        raise field_error(
            "allowed_token_ids",
            f"allowed_token_ids has {highest}; the vocabulary ends at {n_vocab - 1}: leave it out",
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
            raise field_error("max_tokens", "max_tokens and max_completion_tokens differ; give one")
        options["max_tokens"] = most
    switch = body.thinking.budget_tokens if body.thinking is not None else None
    for budget in (body.thinking_budget_tokens, body.thinking_token_budget, switch):
        if budget is not None and budget >= 0:
            options["reasoning_budget"] = min(budget, options.get("reasoning_budget", budget))
    if body.top_logprobs is not None and not body.logprobs:
        raise field_error("top_logprobs", "top_logprobs needs logprobs: true")
    if body.logprobs:
        options["logprobs"] = max(1, body.top_logprobs or 0)
    _choose_logprobs(body, options)
    return options


def check_at_most(name: str, value: int, most: int) -> None:
    """Raise for a value above a limit of the server."""
    if value > most:
        raise field_error(name, f"{name} is {value:,}; at most {most:,} are served", "over_limit")


def check_prompts(name: str, prompts: list[Any], limits: RequestLimits, most: int | None = None) -> None:
    """Raise for too many prompts (over `most`), and for too long ones, before they are tokenized."""
    most = most or limits.prompts
    if len(prompts) > most:
        raise field_error(
            name, f"{name} has {len(prompts):,} entries; at most {most:,} are served", "over_limit"
        )
    total = sum(map(_length, prompts))
    if total > limits.prompt:
        raise field_error(
            name, f"{name} has {total:,} characters; at most {limits.prompt:,} are served", "over_limit"
        )


def _length(prompt: Any) -> int:
    """The characters of a text, the number of ids, or both together."""
    if isinstance(prompt, str) or not any(isinstance(part, str) for part in prompt):
        return len(prompt)
    return sum(len(part) if isinstance(part, str) else 1 for part in prompt)


# Structured answers as grammars of the engine: vLLM's `structured_outputs` and `guided_…`, then
# `response_format`, `format` and `grammar`.

Makers = dict[str, tuple[Any, Callable[[Any], Grammar]]]  # by field: value, and what makes the grammar


def vllm_grammars(body: VllmSampling) -> Makers:
    """The fields of a request that shape its text, each with what makes a grammar of its value."""
    found: Makers = {}
    if body.structured_outputs is not None:
        found |= _of("structured_outputs.", body.structured_outputs)
        if len(found) != 1:
            raise field_error(
                "structured_outputs",
                "structured_outputs needs exactly one of json, regex, choice, grammar and json_object",
            )
    names = ("json", "regex", "choice", "grammar", "whitespace_pattern")
    guided = {name: getattr(body, f"guided_{name}") for name in names}
    if all(value is None for value in guided.values()):
        return found
    return found | _of("guided_", StructuredOutputs.model_validate(guided))


def _of(prefix: str, given: StructuredOutputs) -> Makers:
    """The grammars of an object whose fields have this prefix in messages."""

    def schema(value: Any) -> Grammar:
        return Grammar.of_schema(
            value,
            whitespace="compact" if given.disable_any_whitespace else "spaced",
            whitespace_pattern=given.whitespace_pattern,
            closed=given.disable_additional_properties is True,
        )

    makers: Makers = {
        "json": (given.json_, schema),
        "regex": (given.regex, Grammar.regex),
        "choice": (given.choice, Grammar.choices),
        "grammar": (given.grammar, lambda text: (Grammar.gbnf if "::=" in text else Grammar.lark)(text)),
        "json_object": ({"type": "object"} if given.json_object else None, schema),
    }
    return {f"{prefix}{name}": maker for name, maker in makers.items() if maker[0] is not None}


OBJECT = {"type": "object"}


def read_grammar(body: Sampling, limits: RequestLimits) -> dict[str, Any]:
    """The option `grammar` of a request, or nothing."""
    if made := _vllm_grammar(body, limits):
        return made
    wanted = body.response_format if isinstance(body, ChatRequest) else None
    shaped = isinstance(wanted, (JsonFormat, SchemaFormat))
    if shaped and (body.grammar is not None or body.json_schema is not None):
        field = "json_schema" if body.grammar is None else "grammar"
        raise field_error(field, f"{field} and response_format say the same; give one of them")
    if body.grammar is not None or body.json_schema is not None:
        return named_grammar(body.grammar, body.json_schema, limits)
    if isinstance(wanted, JsonFormat):
        return {"grammar": _schema("response_format", wanted.schema_ or OBJECT, limits)}
    if isinstance(wanted, SchemaFormat):
        given = wanted.json_schema
        schema = OBJECT if given.schema_ is None else given.schema_
        return {"grammar": _schema("response_format", schema, limits, closed=given.strict is True)}
    return {}


def shaping_fields(body: Sampling) -> list[str]:
    """The fields of a request that shape its text."""
    fields = [name for name in ("grammar", "json_schema") if getattr(body, name) is not None]
    wanted = body.response_format if isinstance(body, ChatRequest) else None
    if isinstance(wanted, (JsonFormat, SchemaFormat)):
        fields.append("response_format")
    return [*vllm_grammars(body), *fields]


def _vllm_grammar(body: Sampling, limits: RequestLimits) -> dict[str, Any]:
    """The option `grammar` of vLLM's fields, or nothing."""
    makers = vllm_grammars(body)
    if body.guided_whitespace_pattern is not None and "guided_json" not in makers:
        raise field_error("guided_whitespace_pattern", "guided_whitespace_pattern is for guided_json")
    if not makers:
        return {}
    name, *others = shaping_fields(body)
    if others:
        raise field_error(name, f"{name} and {others[0]} say the same; give one of them")
    value, make = makers[name]
    check_size(name, value, limits)
    return {"grammar": _named(name, lambda: make(value))}


def named_grammar(given: Any, schema: dict[str, Any] | None, limits: RequestLimits) -> dict[str, Any]:
    """The option `grammar` of the fields `grammar` (a text is GBNF) and `json_schema`, or nothing."""
    if given is not None and schema is not None:
        raise field_error("json_schema", "grammar and json_schema say the same; give one of them")
    if schema is not None:
        return {"grammar": _schema("json_schema", schema, limits)}
    return {} if given is None else {"grammar": _named("grammar", lambda: _grammar(given, limits))}


def ollama_grammar(given: str | dict[str, Any] | None, limits: RequestLimits) -> dict[str, Any]:
    """Ollama's `format`: nothing, "json", or a schema."""
    if not given:
        return {}
    return {"grammar": _schema("format", OBJECT if isinstance(given, str) else given, limits)}


def check_size(name: str, value: Any, limits: RequestLimits) -> None:
    """Refuse a grammar, or a schema as JSON, that is longer than the operator allows."""
    most = limits.schema
    if is_longer(value, most) or (not isinstance(value, str) and len(json.dumps(value)) > most):
        raise field_error(name, f"{name} has more than the {most:,} characters that are served", "over_limit")


def is_longer(value: Any, most: int) -> bool:
    """Whether the texts and values in a JSON value are certainly more; looks at no more than `most`."""
    left, waiting = most, [value]
    while waiting and left >= 0:
        one = waiting.pop()
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, dict):
            left -= sum(map(len, one))
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        left -= not isinstance(one, str)
    return left < 0


def _schema(name: str, schema: dict[str, Any], limits: RequestLimits, closed: bool = False) -> Grammar:
    check_size(name, schema, limits)
    return _named(name, lambda: Grammar.of_schema(schema, closed=closed))


def _grammar(given: Any, limits: RequestLimits) -> Grammar:
    match given:
        case str():
            check_size("grammar", given, limits)
            return Grammar.gbnf(given)
        case RegexGrammar():
            check_size("grammar.pattern", given.pattern, limits)
            return Grammar.regex(given.pattern)
        case LarkGrammar():
            check_size("grammar.grammar", given.grammar, limits)
            return Grammar.lark(given.grammar)
        case ChoiceGrammar():
            check_size("grammar.choices", given.choices, limits)
            return Grammar.choices(given.choices)
    check_size("grammar.schema", given.schema_, limits)
    return Grammar.of_schema(given.schema_)


def _named(name: str, make: Callable[[], Grammar]) -> Grammar:
    """Make a grammar; errors are reported for the field `name`."""
    with blame_field(name, "invalid_grammar"):
        return make()
