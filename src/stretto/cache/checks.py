"""Checks of what callers pass to the tables of the cache: ids, ranges of positions, lists of integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stretto.errors import InvalidRequest, wrong_value

MAX_POSITION = (1 << 31) - 1
INTEGERS = {int}  # and not bool


def check_position(name: str, value: int) -> int:
    """A position as an integer, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise wrong_value(name, value, "a position, 0 or more")
    return int(value)


def check_range(start: int, stop: int | None) -> tuple[int, int | None]:
    """Positions as integers; raise unless they are in order. No `stop` is the end."""
    start = check_position("start", start)
    stop = None if stop is None else check_position("stop", stop)
    if stop is not None and stop < start:
        raise InvalidRequest(
            f"start {start} lies behind stop {stop}; ranges are start ≤ position < stop",
            param="start",
            value=start,
        )
    return start, stop


def check_id(sequence: int) -> int:
    """A sequence id as a plain integer; raise if it is none."""
    if type(sequence) is int and sequence >= 0:  # the usual case, at once
        return sequence
    if isinstance(sequence, bool) or not isinstance(sequence, (int, np.integer)) or sequence < 0:
        raise InvalidRequest(
            f"a sequence id must be an integer, 0 or more, not {sequence!r}", param="sequence", value=sequence
        )
    return int(sequence)


def check_members(members: tuple[int, ...]) -> list[int]:
    """The ids of a set, each once."""
    if not members:
        raise InvalidRequest("a token must belong to at least one sequence")
    return list(dict.fromkeys(map(check_id, members)))


def check_integers(values: ArrayLike, name: str, least: int) -> list[int]:
    """`values` as a list of integers, none of them below `least`."""
    if isinstance(values, (list, range)) and set(map(type, values)) <= INTEGERS:
        integers: list[int] = list(values)
    else:
        try:
            array = np.asarray(values)
        except ValueError:  # lists of different lengths
            raise wrong_value(name, values, "a list of integers") from None
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise InvalidRequest(
                f"{name} must be a list of integers, not {array.dtype} of shape {array.shape}", param=name
            )
        integers = array.tolist()
    if integers and (min(integers) < least or max(integers) > MAX_POSITION):
        raise InvalidRequest(
            f"{name} must lie from {least} to {MAX_POSITION}, not {min(integers)} to {max(integers)}",
            param=name,
        )
    return integers
