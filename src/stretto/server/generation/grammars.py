"""Structured answers: `response_format`, `format` and `grammar` as grammars of the engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from stretto import Grammar
from stretto.errors import InvalidRequest
from stretto.server.generation.fields import StructuredOutputs, VllmSampling
from stretto.server.generation.requests import (
    ChatRequest,
    ChoiceGrammar,
    JsonFormat,
    LarkGrammar,
    RegexGrammar,
    Sampling,
    SchemaFormat,
)
from stretto.server.http.errors import ApiError
from stretto.server.settings import RequestLimits

# vLLM's `structured_outputs` and `guided_…` as grammars of the engine.

Makers = dict[str, tuple[Any, Callable[[Any], Grammar]]]  # by field: value, and what makes the grammar


def vllm_grammars(body: VllmSampling) -> Makers:
    """The fields of a request that shape its text, each with what makes a grammar of its value."""
    found: Makers = {}
    if body.structured_outputs is not None:
        found |= _of("structured_outputs.", body.structured_outputs)
        if len(found) != 1:
            raise ApiError(
                400,
                "structured_outputs needs exactly one of json, regex, choice, grammar and json_object",
                param="structured_outputs",
                code="invalid_value",
            )
    names = ("json", "regex", "choice", "grammar", "whitespace_pattern")
    guided = {name: getattr(body, f"guided_{name}") for name in names}
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


def grammar_of(body: Sampling, limits: RequestLimits) -> dict[str, Any]:
    """The option `grammar` of a request, or nothing."""
    if made := _vllm_grammar(body, limits):
        return made
    wanted = body.response_format if isinstance(body, ChatRequest) else None
    shaped = isinstance(wanted, (JsonFormat, SchemaFormat))
    if shaped and (body.grammar is not None or body.json_schema is not None):
        field = "json_schema" if body.grammar is None else "grammar"
        raise ApiError(400, f"{field} and response_format say the same; give one of them", param=field)
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
        raise ApiError(400, "guided_whitespace_pattern is for guided_json", param="guided_whitespace_pattern")
    if not makers:
        return {}
    name, *others = shaping_fields(body)
    if others:
        raise ApiError(400, f"{name} and {others[0]} say the same; give one of them", param=name)
    value, make = makers[name]
    check_size(name, value, limits)
    return {"grammar": _named(name, lambda: make(value))}


def named_grammar(given: Any, schema: dict[str, Any] | None, limits: RequestLimits) -> dict[str, Any]:
    """The option `grammar` of the fields `grammar` (a text is GBNF) and `json_schema`, or nothing."""
    if given is not None and schema is not None:
        raise ApiError(400, "grammar and json_schema say the same; give one of them", param="json_schema")
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
        raise ApiError(
            400,
            f"{name} has more than the {most:,} characters that are served",
            param=name,
            code="over_limit",
        )


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


def _named(name: str, make: Any) -> Grammar:
    """Make a grammar; errors are reported for the field `name`."""
    try:
        made: Grammar = make()
        return made
    except InvalidRequest as error:
        raise ApiError(400, f"{name}: {error}", param=name, code="invalid_grammar") from None
