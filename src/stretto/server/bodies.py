"""JSON bodies: read and validated within bounds, so that none holds up the requests of others.

The number of values is bounded before anything is parsed, fields of objects and digits of numbers while it
is, and a list fails at its first wrong value (`schemas.Body`): each wrong value costs as much as a hundred
right ones. Large bodies are read one after the other in a thread of their own: it shares the interpreter
with the event loop, so there too the bounds count, and several at once would take turns with it and fill the
threads that prompts of others need. Between two of them the thread rests for as long as the first one took,
so that half of the interpreter's time is left to the others, however many large bodies come.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from stretto.server.errors import ApiError, explained
from stretto.server.settings import RequestLimits

Model = TypeVar("Model", bound=BaseModel)

MAX_FIELDS = 2048  # of one object
MAX_DIGITS = 100  # of a number
SMALL_BYTES = 2048  # a body that cannot have too many of anything
LOOP_BYTES = 32 << 10  # up to which a body is read on the event loop
CHUNK_BYTES = 1 << 20  # counted at a time, so that other threads get their turn
READER = ThreadPoolExecutor(1, "stretto-server-body")
REST = 1.0  # that the reader pauses before the next body, in times of what the last one took
MARKS = b",:[{"  # a value each, more or less
IS_MARK = np.isin(np.arange(256), tuple(MARKS))  # bool[256]
NOTHING = np.empty(0, np.uint8)
IS_NESTING = np.isin(np.arange(256), tuple(b"{}[]:"))  # bool[256]
UNREADABLE = "the body is no JSON that can be read"


async def read_body(model: type[Model], data: bytes, limits: RequestLimits) -> Model:
    """The body of a request as a model; `ApiError` says what is wrong with it."""
    if len(data) <= LOOP_BYTES:
        return validated(model, parsed(data, limits))
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(READER, TURNS.read, model, data, limits)
    if not isinstance(found, ApiError):
        return found
    try:
        raise found
    finally:
        del found  # the error has this frame in its traceback: the two would keep the body


class Turns:
    """Reads one large body after the other, each after a rest."""

    def __init__(self) -> None:
        self._rested = 0.0  # when the next one may be read, by the monotonic clock

    def read(self, model: type[Model], data: bytes, limits: RequestLimits) -> Model | ApiError:
        """The model, or the error that refuses the body."""
        time.sleep(max(0.0, self._rested - time.monotonic()))
        begun = time.thread_time()
        try:
            return _read_or_refuse(model, data, limits)
        finally:
            self._rested = time.monotonic() + REST * (time.thread_time() - begun)


TURNS = Turns()


def _read_or_refuse(model: type[Model], data: bytes, limits: RequestLimits) -> Model | ApiError:
    """The model, or the error without what was parsed, which it would hold until the event loop sends it."""
    try:
        return validated(model, parsed(data, limits))
    except ApiError as error:
        error.__context__ = None
        return error.with_traceback(None)


def parsed(data: bytes, limits: RequestLimits) -> Any:
    """The value of a JSON text; raises if it is none, or has too many values or fields."""
    if not data:
        return None
    most = limits.values
    if len(data) > most and _count_marks(data) > most and (n := count_values(data)) > most:
        raise ApiError(400, f"the body has about {n:,} values; at most {most:,} are taken", code="over_limit")
    if len(data) > SMALL_BYTES and _count(data, b":") > MAX_FIELDS and (n := most_fields(data)) > MAX_FIELDS:
        raise _too_many_fields(n)
    try:
        return json.loads(data, **_hooks_for(data))
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
        raise _too_many_fields(len(fields))
    return fields


def _too_many_fields(n: int) -> ApiError:
    return ApiError(
        400,
        f"the body has an object with {n:,} fields; at most {MAX_FIELDS:,} are taken",
        code="over_limit",
    )


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


FIELDS: dict[str, Any] = {"object_hook": _check_fields}
NUMBERS: dict[str, Any] = {"parse_int": _integer, "parse_float": _float}
LONG_NUMBER = b"0" * (MAX_DIGITS + 1)
NUMERALS = bytes(ord("0") if byte in b"0123456789+-.eE" else ord(" ") for byte in range(256))


def _hooks_for(data: bytes) -> dict[str, Any]:
    """The checks that a text needs while it is parsed; that of numbers doubles the time for a list."""
    if len(data) <= SMALL_BYTES:
        return {}
    has_short_numbers = len(data) <= CHUNK_BYTES and LONG_NUMBER not in data.translate(NUMERALS)
    return FIELDS if has_short_numbers else FIELDS | NUMBERS


def _count_marks(data: bytes) -> int:
    """At least how many values there are; more, if there are texts with commas in them."""
    return 1 + _count(data, MARKS)


def _count(data: bytes, marks: bytes) -> int:
    """How many of these bytes there are; other threads run meanwhile, as they do while NumPy computes."""
    array = np.frombuffer(data, np.uint8)
    return sum(int(np.count_nonzero(array == mark)) for mark in marks)


def count_values(data: bytes) -> int:
    """How many values a JSON text has, names of fields included, give or take those of empty lists.

    >>> count_values(b'{"a, b": [1, 2, ",", []]}')
    8
    """
    return 1 + sum(int(np.count_nonzero(IS_MARK[piece])) for piece in _outside_texts(data))


def most_fields(data: bytes) -> int:
    """How many fields the largest object of a JSON text has; as `_count`, it lets other threads run.

    >>> most_fields(b'{"a": {"b": ":", "c": [{"d": 1}]}}')
    2
    """
    pieces = [piece[IS_NESTING[piece]] for piece in _outside_texts(data)]
    marks = np.concatenate([NOTHING, *pieces])  # uint8[n]
    opens = (marks == ord("{")) | (marks == ord("["))
    colons = marks == ord(":")
    depths = np.cumsum(np.where(opens, 1, np.where(colons, 0, -1)), dtype=np.int32)
    kept = opens | colons
    by_depth = np.argsort(depths[kept], kind="stable")
    opens = opens[kept][by_depth]
    owners = np.cumsum(opens)  # at one depth, a colon belongs to what was opened last
    return int(np.bincount(owners[~opens], minlength=1).max())


def _outside_texts(data: bytes) -> Iterator[NDArray[np.uint8]]:
    """The bytes of a JSON text that are in no text of it, quotes that end one included, piece by piece."""
    start, in_text = 0, False
    while start < len(data):
        chunk = data[start : start + CHUNK_BYTES]
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:  # a character and its backslash stay together
            chunk = data[start : start + CHUNK_BYTES + 1]
        start += len(chunk)
        # Two backslashes are a character, and a quote behind a single one does not end a text.
        plain = np.frombuffer(chunk.replace(b"\\\\", b"..").replace(b'\\"', b".."), np.uint8)
        outside = (np.cumsum(plain == ord('"'), dtype=np.uint8) + in_text) % 2 == 0
        yield plain[outside]
        in_text ^= bool(np.count_nonzero(plain == ord('"')) % 2)
