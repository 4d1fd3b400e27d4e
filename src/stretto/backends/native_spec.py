"""A model's spec as the native code takes it: dictionaries, which csrc/bind_config.cpp reads."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from stretto import _native
from stretto.errors import Unsupported
from stretto.models.parts import Rope
from stretto.models.spec import ModelSpec


def checked_spec(spec: ModelSpec) -> dict[str, Any]:
    """The spec for the native code; `Unsupported` for a model that it cannot run."""
    plain = plain_spec(spec)
    try:
        _native.check_spec(plain)
    except ValueError as error:
        raise Unsupported(
            f"the native backend cannot run this model: {error}; backend='reference' may"
        ) from error
    return plain


def plain_spec(spec: ModelSpec) -> dict[str, Any]:
    """The spec for the native code: dictionaries, with each distinct rope once.

    All fields are in it, so that the native code can refuse those it does not know.
    """
    ropes: list[Rope] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Rope):
            if value not in ropes:
                ropes.append(value)
            return ropes.index(value)
        if is_dataclass(value):
            named = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
            return {"part": type(value).__name__} | named
        return [plain(each) for each in value] if isinstance(value, tuple) else value

    found: dict[str, Any] = plain(spec)
    found["ropes"] = [
        {field.name: getattr(rope, field.name) for field in fields(rope) if field.name != "by_length"}
        for rope in ropes  # whose frequencies have been chosen by length
    ]
    return found
