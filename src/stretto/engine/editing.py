"""Edits of a sequence that move or take away cells: all or nothing, and the sequence's books follow."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from stretto.cache.cells import check_range
from stretto.engine.pictures import refuse_cut
from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from stretto.engine.sequence import Sequence


def remove(sequence: Sequence, start: int, stop: int, close: bool) -> None:
    """Take the tokens at start ≤ position < stop out; `close` moves those behind them down."""
    start, stop = check_position("start", start), check_position("stop", stop)
    check_range(start, stop)
    engine = sequence._engine
    with engine.lock:
        sequence.check_open()
        if close:
            engine.backend.capabilities.require("shift", engine.backend.name)
        uncomputed = close and start >= sequence._start  # a mere change of the text to come
        if stop < sequence.position and sequence.n_pending and not uncomputed:
            engine.compute([sequence])  # tokens behind the hole take their places before it is made
        where = sequence.positions
        first, last = bisect_left(where, start), bisect_left(where, stop)
        if first == last:
            return
        if sequence.pictured:
            refuse_cut(sequence._tokens, first, last)
        if close and not uncomputed:  # what shifting takes, less what removing gives: before any change
            cells = engine.cells
            own = last - first - cells.count_shared(sequence.id, start, stop)
            engine.make_room(cells.count_shared(sequence.id, stop) - own)
        engine.cells.remove(sequence.id, start, stop)
        del sequence._tokens[first:last]
        sequence.n_prompt -= max(0, min(last, sequence.n_prompt) - first)
        if first == 0 or start <= (sequence._resume or 0):
            sequence._resume = None
        sequence._edited(len(sequence._tokens) if uncomputed else first)
        if close and not uncomputed:
            engine.shift(sequence.id, stop, None, start - stop)


def shift(sequence: Sequence, start: int, stop: int | None, by: int) -> None:
    """Move the tokens at start ≤ position < stop by some positions, keeping the order of tokens."""
    start = check_position("start", start)
    stop = None if stop is None else check_position("stop", stop)
    check_range(start, stop)
    if isinstance(by, bool) or not isinstance(by, (int, np.integer)):
        raise InvalidRequest(f"by must be a number of positions, not {by!r}")
    by, engine = int(by), sequence._engine
    with engine.lock:
        sequence.check_open()
        engine.backend.capabilities.require("shift", engine.backend.name)
        engine.compute([sequence])
        where = sequence.positions
        last = len(where) if stop is None else bisect_left(where, stop)
        first = bisect_left(where, start)
        if first >= last or not by:
            return
        low = where[first - 1] if first else -1
        high = where[last] if last < len(where) else engine.context_length
        if not (low < where[first] + by and where[last - 1] + by < high):
            raise InvalidRequest(
                f"positions {where[first]} to {where[last - 1]} moved by {by} would leave the room "
                f"between {low} and {high}"
            )
        engine.shift(sequence.id, start, stop, by)
        sequence._edited(first)


def check_position(name: str, value: int) -> int:
    """A position as an integer, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise InvalidRequest(f"{name} must be a position, 0 or more, not {value!r}")
    return int(value)
