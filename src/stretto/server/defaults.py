"""What the operator sets for requests that say nothing about it: `--default`, `--chat-template-kwargs`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.engine.combinations import check_combinations
from stretto.engine.params import request_params
from stretto.errors import InvalidRequest
from stretto.options.generating import BY_NAME, OPTIONS
from stretto.options.option import taken_by

NAMES = tuple(option.name for option in taken_by(OPTIONS, "default"))


def parse_defaults(given: Sequence[str]) -> dict[str, Any]:
    """Options from `NAME=VALUE`, checked.

    >>> parse_defaults(["temperature=0.6", "top_k=20"])
    {'temperature': 0.6, 'top_k': 20}
    """
    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if name not in NAMES or not equals:
            raise InvalidRequest(
                f"--default takes NAME=VALUE with one of {', '.join(NAMES)}, not {text[:100]!r}",
                param="default",
            )
        try:
            options[name] = BY_NAME[name].read(value)
        except ValueError:
            raise InvalidRequest(
                f"--default {name} must be a number, not {value[:100]!r}", param=name
            ) from None
    check_defaults(options)
    return options


def parse_arguments(text: str | None) -> dict[str, Any]:
    """Arguments of chat templates, from an object in JSON.

    >>> parse_arguments('{"enable_thinking": false}')
    {'enable_thinking': False}
    """
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(
            '--chat-template-kwargs takes an object in JSON, as {"enable_thinking": false}, '
            f"not {text[:100]!r}",
            param="chat_template_kwargs",
        )
    return found


def check_defaults(options: Mapping[str, Any]) -> None:
    """Raise for options that no request could have."""
    check_combinations(options)
    request_params(options, 1 << 31)


def with_defaults(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A request's options, with the operator's for those that it does not have."""
    return {**defaults, **options}
