"""Edits of a track that move or remove cells: all or nothing, and the track's tokens follow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from stretto.cache.checks import check_position, check_range
from stretto.cache.lags import lag_before
from stretto.engine.runner import Runner
from stretto.engine.tokens import refuse_cut
from stretto.engine.track import Track
from stretto.errors import InvalidRequest, wrong_value

Compute = Callable[[Track], None]  # computes the pending tokens of a track


def list_positions(runner: Runner, track: Track) -> list[int]:
    """The position of each token."""
    placed: list[int] = runner.cells.sequence_positions(track.id).tolist()
    return placed + list(range(track.start, track.start + track.n_missing))


def remove(runner: Runner, track: Track, start: int, stop: int, close: bool, compute: Compute) -> None:
    """Remove the tokens at start ≤ position < stop; `close` moves those behind them down."""
    start, stop = check_position("start", start), check_position("stop", stop)
    check_range(start, stop)
    uncomputed = close and start >= track.start  # a mere change of the text to come
    if runner.slots is not None and not uncomputed:
        runner.slots.check_removal(is_tail=start == stop or stop >= track.position)
        close = False  # no token is behind it
    if close:
        runner.backend.capabilities.require("shift", runner.backend.name)
    if stop < track.position and track.n_missing and not uncomputed:
        compute(track)  # tokens behind the hole take their positions before it is made
    where = list_positions(runner, track)
    first, last = bisect_left(where, start), bisect_left(where, stop)
    if first == last:
        return
    if track.has_images:
        refuse_cut(track.tokens, first, last)
    if close and not uncomputed:  # what shifting takes, less what removing gives: before any change
        cells = runner.cells
        own = last - first - cells.count_shared(track.id, start, stop)
        runner.make_room(cells.count_shared(track.id, stop) - own)
    lag = lag_before(runner.cells, track.id, stop) - lag_before(runner.cells, track.id, start)
    runner.cells.remove(track.id, start, stop)
    del track.tokens[first:last]
    track.n_prompt -= max(0, min(last, track.n_prompt) - first)
    if first == 0 or start <= (track.resume or 0):
        track.resume = None
    track.edited(len(track.tokens) if uncomputed else first)
    if close and not uncomputed:
        runner.shift(track.id, stop, None, start - stop, lag)


def shift(runner: Runner, track: Track, start: int, stop: int | None, by: int) -> None:
    """Move the tokens of a computed track at start ≤ position < stop, keeping the order of tokens."""
    where = list_positions(runner, track)
    last = len(where) if stop is None else bisect_left(where, stop)
    first = bisect_left(where, start)
    if first >= last or not by:
        return
    low = where[first - 1] if first else -1
    high = where[last] if last < len(where) else runner.context_length
    if not (low < where[first] + by and where[last - 1] + by < high):
        raise InvalidRequest(
            f"positions {where[first]} to {where[last - 1]} moved by {by} would leave the room "
            f"between {low} and {high}",
            param="by",
        )
    runner.shift(track.id, start, stop, by)
    track.edited(first)


def drop_oldest_half(runner: Runner, track: Track, keep: int, compute: Compute) -> None:
    """Make room in a full context: remove the older half of the tokens behind the first `keep`."""
    half = (track.position - keep + 1) // 2
    start, stop = track.whole_images(keep), track.whole_images(keep + half)
    remove(runner, track, start, stop, True, compute)


def check_shift(start: int, stop: int | None, by: int) -> tuple[int, int | None, int]:
    """The arguments of a shift as integers."""
    start, stop = check_range(start, stop)
    if isinstance(by, bool) or not isinstance(by, (int, np.integer)):
        raise wrong_value("by", by, "a number of positions")
    return start, stop, int(by)
