"""vLLM's `structured_outputs` and `guided_…` as grammars of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto import Grammar
from stretto.server.errors import ApiError
from stretto.server.vllm_schemas import StructuredOutputs, VllmSampling

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
