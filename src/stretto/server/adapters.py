"""Adapters of served models: `--adapter NAME=PATH`, and in requests `model="base:NAME"` or `lora`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stretto.errors import InvalidRequest
from stretto.server.errors import ApiError
from stretto.server.registry import Lease
from stretto.server.schema_base import NumberedAdapter
from stretto.server.served_model import ServedModel
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


def choose_adapter(options: dict[str, Any], lease: Lease) -> None:
    """Put a request's adapter into its options: the one that its model names, or `lora`, not both.

    Adapters by number become names. A request that says nothing gets those of `POST /lora-adapters`.
    """
    given, served = options.get("adapter"), lease.model
    if isinstance(given, list):
        options.pop("adapter")
        if mixed := numbered(given, served):
            options["adapter"] = mixed
    if lease.adapter is None:
        if given is None and served.scales:
            options["adapter"] = dict(served.scales)
        return
    if given is not None:
        raise ApiError(
            400,
            f"the model names the adapter {lease.adapter!r}, and lora others; give one of them",
            param="lora",
        )
    options["adapter"] = lease.adapter


def numbered(given: Sequence[NumberedAdapter], served: ServedModel) -> dict[str, float]:
    """Names with scales, of adapters that were named by their numbers; those of scale 0 are left out."""
    names = [name for name, _ in served.entry.adapters]
    for one in given:
        if one.id >= len(names):
            raise ApiError(
                400, f"{served.name} has {len(names)} adapters, and none of the number {one.id}", param="lora"
            )
    return {names[one.id]: one.scale for one in given if one.scale}
