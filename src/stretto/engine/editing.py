"""Edits of a track: cells are removed, moved or computed again, and its tokens follow; all or nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np

from stretto.cache.checks import check_position, check_range
from stretto.cache.items import ImageToken
from stretto.cache.lags import lag_before
from stretto.engine.runner import Runner
from stretto.engine.tokens import refuse_cut
from stretto.engine.track import Track
from stretto.engine.types import Approximate, Edit, EditMode
from stretto.errors import ContextOverflow, InvalidRequest, wrong_value

Compute = Callable[[Track], None]  # computes the pending tokens of a track

MODES: tuple[EditMode, ...] = get_args(EditMode)
# What "heal" computes again (benchmarks/edits.py measures what more of them would change).
HEAL_NEXT_TOKENS = 32  # behind the cut
HEAL_LAST_TOKENS = 64  # at the end of the sequence


def list_positions(runner: Runner, track: Track) -> list[int]:
    """The position of each token."""
    placed: list[int] = runner.cells.sequence_positions(track.id).tolist()
    return placed + list(range(track.start, track.start + track.n_missing))


def remove(runner: Runner, track: Track, start: int, stop: int, close: bool, compute: Compute) -> Edit:
    """Remove the tokens at start ≤ position < stop; `close` moves those behind them down."""
    start, stop = check_position("start", start), check_position("stop", stop)
    check_range(start, stop)
    uncomputed = close and start >= track.start  # a mere change of the text to come
    if runner.slots is not None and not uncomputed:
        runner.slots.check_removal(is_tail=start == stop or stop >= track.position)
        close = False  # no token is behind it
    if close:
        runner.backend.capabilities.require("shift", runner.backend.name)
        if not uncomputed:
            runner.require_shift()
        return replace(runner, track, start, stop, [], "shift", compute)
    if stop < track.position and track.n_missing:
        compute(track)  # tokens behind the hole take their positions before it is made
    where = list_positions(runner, track)
    first, last = bisect_left(where, start), bisect_left(where, stop)
    if track.has_images:
        refuse_cut(track.tokens, first, last)
    n = track.n_placed
    if first < last:
        runner.cells.remove(track.id, start, stop)
        del track.tokens[first:last]
        track.n_prompt -= max(0, min(last, track.n_prompt) - first)
        if first == 0 or start <= (track.resume or 0):
            track.resume = None
        track.edited(first, "hole")
    n_lost = n - min(n, last) + min(n, first) - track.n_placed  # recurrent layers go back to a checkpoint
    return Edit("hole", "hole", 0, last - first, track.n_placed, 0, n_lost, track.exact is None)


def replace(
    runner: Runner,
    track: Track,
    start: int,
    stop: int,
    new: list[int],
    mode: EditMode,
    compute: Compute,
    ahead: Track | None = None,
) -> Edit:
    """Put checked tokens in the place of those at start ≤ position < stop; those behind them move.

    `ahead` is what `begin` has made for this edit, once it is computed.
    """
    start, stop = check_position("start", start), check_position("stop", stop)
    check_range(start, stop)
    if mode not in MODES:
        raise wrong_value("mode", mode, f"one of {', '.join(map(repr, MODES))}")
    if start > track.position:
        if new:
            raise InvalidRequest(
                f"start {start} lies behind the end of the sequence, whose next position is "
                f"{track.position}; give a position in it, or append the tokens",
                param="start",
                value=start,
            )
        start = stop = track.position  # nothing is there to be removed
    if track.n_missing and track.resume is not None:
        compute(track)  # pending tokens follow the last cell from here on
    where = list_positions(runner, track)
    first, last = bisect_left(where, start), bisect_left(where, stop)
    if track.has_images:
        refuse_cut(track.tokens, first, last)
    cut = Cut(start, stop, first, last, where)
    used, reason = _usable_mode(runner, track, cut, mode)
    _check_fits(runner, track, cut, used, new)
    n_placed, n_added, n_moved = track.n_placed, 0, 0
    if used == "recompute":
        is_whole = track.exact is None or reason == _ONLY_PENDING
        _recompute(runner, track, cut, first if is_whole else min(first, track.exact or 0), new)
    elif new or first < last:
        n_added, n_moved = _move(runner, track, cut, new, used, compute, ahead)
    return Edit(
        used,
        mode,
        len(new),
        last - first,
        kept=track.n_placed - n_added,
        moved=n_moved,
        recomputed=n_placed - (min(n_placed, last) - min(n_placed, first)) - (track.n_placed - n_added),
        exact=track.exact is None,
        reason=reason,
    )


def begin(
    runner: Runner, track: Track, start: int, stop: int, new: list[int], mode: EditMode
) -> Track | None:
    """A track in which the new tokens of an edit can be computed before it, which then shares their cells.

    None if the edit itself computes nothing. Errors are those of `replace`.
    """
    start, stop = check_position("start", start), check_position("stop", stop)
    check_range(start, stop)
    where = list_positions(runner, track)
    first, last = bisect_left(where, start), bisect_left(where, stop)
    if mode == "recompute" or not new or start > track.position:
        return None
    if track.has_images:
        refuse_cut(track.tokens, first, last)
    cut = Cut(start, stop, first, last, where)
    used, _ = _usable_mode(runner, track, cut, mode)
    if used == "recompute":
        return None
    _check_fits(runner, track, cut, used, new)
    return runner.branch(track, first, start, new)


_ONLY_PENDING = "no token behind the edit had been computed"


@dataclass(frozen=True)
class Cut:
    """The place of an edit: positions start to stop, which are the tokens first to last; where all stand."""

    start: int
    stop: int
    first: int
    last: int
    where: list[int]

    @property
    def n_holes(self) -> int:
        """How many positions below the last token's have no token, those of the cut left out."""
        where = self.where
        behind = where[-1] + 1 - self.stop - (len(where) - self.last) if self.last < len(where) else 0
        return behind + self.start - self.first


def _check_fits(runner: Runner, track: Track, cut: Cut, used: EditMode, new: list[int]) -> None:
    """Raise `ContextOverflow` if a text is too long after an edit."""
    n_gone = cut.last - cut.first
    n_tokens = len(track) - n_gone + len(new) + (0 if used == "recompute" else cut.n_holes)
    if n_tokens > runner.context_length:
        raise ContextOverflow(
            f"with {len(new)} tokens in the place of {n_gone} the sequence has {n_tokens}, and the "
            f"context takes {runner.context_length}; remove more, or insert fewer",
            n_tokens=n_tokens,
            limit=runner.context_length,
            param="tokens",
        )


def _usable_mode(runner: Runner, track: Track, cut: Cut, mode: EditMode) -> tuple[EditMode, str]:
    """The mode that an edit can have, and why if that is another one than was asked for."""
    n_behind = track.n_placed - cut.last
    if mode == "recompute":
        return mode, ""
    if n_behind <= 0:
        return "recompute", _ONLY_PENDING
    if reason := runner.shift_obstacle:
        return "recompute", reason
    if mode == "heal" and n_behind + track.n_missing <= HEAL_NEXT_TOKENS + HEAL_LAST_TOKENS:
        return "recompute", "so few tokens are behind the edit that healing computes them all"
    return mode, ""


def _recompute(runner: Runner, track: Track, cut: Cut, kept: int, new: list[int]) -> None:
    """Keep the first tokens' cells; all that follow are pending, behind the last cell."""
    tokens = [*track.tokens[: cut.first], *new, *track.tokens[cut.last :]]
    n_prompt = _n_prompt(track, cut, new)
    exact = None if track.exact is None or track.exact >= kept else track.exact
    runner.rollback(track, kept)
    track.tokens, track.n_prompt = tokens, n_prompt
    track.has_images = ImageToken in map(type, tokens)
    track.resume, track.exact, track.logits = None, exact, None
    track.n_edits += 1


def _n_prompt(track: Track, cut: Cut, new: list[int]) -> int:
    """How many tokens are the prompt's after an edit: those that are put into a prompt are a part of it."""
    if cut.first >= track.n_prompt:
        return track.n_prompt
    return track.n_prompt - (min(cut.last, track.n_prompt) - cut.first) + len(new)


def _move(
    runner: Runner,
    track: Track,
    cut: Cut,
    new: list[int],
    mode: Approximate,
    compute: Compute,
    ahead: Track | None,
) -> tuple[int, int]:
    """Move the tokens behind a cut and compute new ones in it; return how many were computed and moved.

    New tokens are computed in a track of their own, which shares the cells before them, and their cells are
    then the edited track's too. To heal, tokens next to the cut are computed like new ones, and those at the
    end are pending again.
    """
    cells, tokens, where = runner.cells, track.tokens, cut.where
    first, last, start, stop = cut.first, cut.last, cut.start, cut.stop
    n_prompt, n_tokens = _n_prompt(track, cut, new), len(tokens)
    if mode == "heal":
        if where[last] == stop:
            last = track.whole_images(last + _count_run(where[last:], HEAL_NEXT_TOKENS))
            stop = where[last - 1] + 1
            new = [*new, *tokens[cut.last : last]]
        n_tokens = track.whole_images(len(tokens) - _count_run(where[last:][::-1], HEAL_LAST_TOKENS))
    delta = start + len(new) - stop
    branch = runner.branch(track, first, start, new, ahead) if new else None
    try:
        if branch is not None:
            n_edits = track.n_edits
            compute(branch)
            if track.n_edits != n_edits or track.closed or track.running:
                raise InvalidRequest(f"sequence {track.id} was changed while it was being edited")
        lag = lag_before(cells, track.id, stop) - lag_before(cells, track.id, start)
        if branch is not None:
            lag -= lag_before(cells, branch.id, start + len(new)) - lag_before(cells, branch.id, start)
        if delta or lag:  # what moving takes, less what removing gives: before any change
            own = last - first - cells.count_shared(track.id, start, stop)
            runner.make_room(cells.count_shared(track.id, stop) - own)
        try:
            runner.rollback_cells(track, n_tokens)
            cells.remove(track.id, start, stop)
            n_moved = cells.count(track.id) - first if delta or lag else 0
            if n_moved:
                runner.shift(track.id, stop, None, delta, lag)
            if branch is not None:
                cells.copy(branch.id, track.id, start, start + len(new))
        except BaseException:  # the text stays as it was; what lies behind the edit is computed again
            runner.rollback_cells(track, first)
            track.edited(len(track))
            raise
    finally:
        if branch is not None:
            runner.close_track(branch, park=False)
    exact = first if track.exact is None else min(track.exact, first)
    if exact == first == start:  # the new tokens follow an unedited text without a hole
        exact += len(new)
    track.tokens = [*tokens[:first], *new, *tokens[last:]]
    track.n_prompt = n_prompt
    track.has_images = ImageToken in map(type, track.tokens)
    track.exact = None
    track.edited(exact, mode)
    return len(new), n_moved


def _count_run(positions: list[int], most: int) -> int:
    """How many of the first positions, up to `most`, follow each other without a hole."""
    steps = np.abs(np.diff(positions[: most + 1]))
    gaps = np.flatnonzero(steps != 1)
    return min(most, len(positions), int(gaps[0]) + 1 if len(gaps) else most)


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
    track.edited(first, "shift")


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
