"""Adapters of served models: `--adapter NAME=PATH`, and in requests `model="base:NAME"` or `lora`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stretto.errors import InvalidRequest
from stretto.server.errors import ApiError
from stretto.server.settings import ModelEntry


def with_adapters(entries: Sequence[ModelEntry], given: Sequence[str]) -> tuple[ModelEntry, ...]:
    """The models with adapters: `[MODEL:]NAME=PATH` each; MODEL may be left out if there is one."""
    by_name = {entry.name: entry for entry in entries}
    for text in given:
        name, equals, path = text.partition("=")
        base, colon, short = name.rpartition(":")
        if not colon and len(by_name) == 1:
            base = next(iter(by_name))
        if not equals or not path or not short or base not in by_name:
            raise InvalidRequest(
                f"--adapter takes [MODEL:]NAME=PATH with the name of a --model, not {text!r}"
            )
        entry = by_name[base]
        if short in dict(entry.adapters):
            raise InvalidRequest(f"--adapter: {base} has two adapters {short!r}; give one another name")
        by_name[base] = replace(entry, adapters=(*entry.adapters, (short, path)))
    return tuple(by_name[entry.name] for entry in entries)


def choose_adapter(options: dict[str, Any], adapter: str | None) -> None:
    """Put the adapter that a request's model names into its options; `lora` cannot name others beside it."""
    if adapter is None:
        return
    if "adapter" in options:
        raise ApiError(
            400,
            f"the model names the adapter {adapter!r}, and lora others; give one of them",
            param="lora",
        )
    options["adapter"] = adapter
