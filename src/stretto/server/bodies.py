"""JSON bodies: read and validated within bounds, so that none holds up the requests of others.

The number of values is bounded before anything is parsed, fields of objects and digits of numbers while it
is, and a list fails at its first wrong value (`schemas.Body`): each wrong value costs as much as a hundred
right ones. Large bodies are read in a thread, which shares the interpreter with the event loop: there too
the bounds count.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from stretto.server.errors import ApiError, explained
from stretto.server.settings import RequestLimits

Model = TypeVar("Model", bound=BaseModel)

MAX_FIELDS = 2048  # of one object
MAX_DIGITS = 100  # of a number
SMALL_BYTES = 2048  # a body that cannot have too many of anything
LOOP_BYTES = 32 << 10  # up to which a body is read on the event loop
CHUNK_BYTES = 1 << 20  # counted at a time, so that other threads get their turn
MARKS = tuple(b",:[{")  # a value each, more or less
IS_MARK = np.isin(np.arange(256), MARKS)  # bool[256]
UNREADABLE = "the body is no JSON that can be read"


async def read_body(model: type[Model], data: bytes, limits: RequestLimits) -> Model:
    """The body of a request as a model; `ApiError` says what is wrong with it."""
    if len(data) <= LOOP_BYTES:
        return validated(model, parsed(data, limits))
    return await asyncio.to_thread(lambda: validated(model, parsed(data, limits)))


def parsed(data: bytes, limits: RequestLimits) -> Any:
    """The value of a JSON text; raises if it is none, or has too many values or fields."""
    if not data:
        return None
    most = limits.values
    if len(data) > most and _count_marks(data) > most and (n := count_values(data)) > most:
        raise ApiError(400, f"the body has about {n:,} values; at most {most:,} are taken", code="over_limit")
    try:
        return json.loads(data, **({} if len(data) <= SMALL_BYTES else HOOKS))
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the body is no JSON: {error.msg}", code="invalid_json") from None
    except (ValueError, RecursionError):  # bytes that are no text, numbers of too many digits, too deep
        raise ApiError(400, UNREADABLE, code="invalid_json") from None


def validated(model: type[Model], value: Any) -> Model:
    """A JSON value as a model."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        issues = error.errors(include_url=False, include_context=False)
        known = [field.alias or name for name, field in model.model_fields.items()]
        raise explained([{**one, "loc": ("body", *one["loc"])} for one in issues], value, known) from None


def _check_fields(fields: dict[str, Any]) -> dict[str, Any]:
    if len(fields) > MAX_FIELDS:
        raise ApiError(
            400,
            f"the body has an object with {len(fields):,} fields; at most {MAX_FIELDS:,} are taken",
            code="over_limit",
        )
    return fields


def _integer(text: str) -> int:
    return int(text if len(text) <= MAX_DIGITS else _too_long(text))


def _float(text: str) -> float:
    return float(text if len(text) <= MAX_DIGITS else _too_long(text))


def _too_long(text: str) -> str:
    """Refuse a number: its digits take time by the square of their number."""
    raise ApiError(
        400,
        f"the body has a number of {len(text):,} characters; at most {MAX_DIGITS} are taken",
        code="over_limit",
    )


HOOKS: dict[str, Any] = {"object_hook": _check_fields, "parse_int": _integer, "parse_float": _float}


def _count_marks(data: bytes) -> int:
    """At least how many values there are; more, if there are texts with commas in them."""
    return 1 + sum(data.count(mark) for mark in MARKS)


def count_values(data: bytes) -> int:
    """How many values a JSON text has, names of fields included, give or take those of empty lists.

    >>> count_values(b'{"a, b": [1, 2, ",", []]}')
    8
    """
    total, start, in_text = 1, 0, False
    while start < len(data):
        chunk = data[start : start + CHUNK_BYTES]
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:  # a character and its backslash stay together
            chunk = data[start : start + CHUNK_BYTES + 1]
        start += len(chunk)
        # Two backslashes are a character, and a quote behind a single one does not end a text.
        plain = np.frombuffer(chunk.replace(b"\\\\", b"..").replace(b'\\"', b".."), np.uint8)
        outside = (np.cumsum(plain == ord('"'), dtype=np.uint8) + in_text) % 2 == 0
        total += int(np.count_nonzero(IS_MARK[plain] & outside))
        in_text ^= bool(np.count_nonzero(plain == ord('"')) % 2)
    return total
