"""Prompts that are a cached text with parts cut out or replaced: its cells are edited, not computed anew.

Agents cut old results out of the middle of a conversation, or have the server do it. Where a request allows
it (`edits="shift"` or "heal") the cells of the nearest cached text are copied, and the edits made on them
that turn it into the prompt (`editing.py`). Such cells are approximate: they are parked in a domain of their
own, where only requests that allow this find them, and never go to disk. A request that waits holds none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stretto.cache.items import ImageToken
from stretto.cache.prefix import Domain, Parked
from stretto.cache.radix import common
from stretto.engine import editing
from stretto.engine.pool import MIN_COMMON_TOKENS
from stretto.engine.runner import Runner
from stretto.engine.track import Track
from stretto.engine.types import EditMode
from stretto.errors import CacheFull, ContextOverflow
from stretto.sampling.sampler import RandomStream

MIN_RUN_TOKENS = 64  # that two texts have in common, to be kept; shorter runs are computed
MIN_SAVED_TOKENS = 64  # more than an unedited prefix saves
MAX_TEXTS = 8  # cached ones that are compared with a prompt
ANCHOR_TOKENS = MIN_RUN_TOKENS // 2  # a run has one that begins at a multiple of this in the older text
HEALED_TOKENS = editing.HEAL_NEXT_TOKENS + editing.HEAL_LAST_TOKENS


class Run(NamedTuple):
    """Tokens that an old text and a new one have in common: where they are in each, and how many."""

    old: int
    new: int
    n: int


def find_runs(old: Sequence[int], new: Sequence[int]) -> list[Run]:
    """The common prefix of two texts, then longer runs that both have, in the order of both.

    >>> [tuple(run) for run in find_runs(range(300), [*range(100), *range(200, 300)])]
    [(0, 0, 100), (200, 100, 100)]
    """
    n = common(old, new)
    runs, end_old, end_new = [Run(0, 0, n)], n, n
    data, wanted = _as_bytes(old), _as_bytes(new)
    places: dict[bytes, list[int]] = {}
    for at in range(-(-n // ANCHOR_TOKENS) * ANCHOR_TOKENS, len(old) - ANCHOR_TOKENS + 1, ANCHOR_TOKENS):
        places.setdefault(data[4 * at : 4 * (at + ANCHOR_TOKENS)], []).append(at)
    at_new = n
    while at_new + ANCHOR_TOKENS <= len(new):
        found = places.get(wanted[4 * at_new : 4 * (at_new + ANCHOR_TOKENS)], [])
        if (index := bisect_left(found, end_old)) == len(found):
            at_new += 1
            continue
        start, at_old = at_new, found[index]
        while start > end_new and at_old > end_old and old[at_old - 1] == new[start - 1]:
            start, at_old = start - 1, at_old - 1
        n = common(old[at_old:], new[start:])
        at_new = start + n
        if n >= MIN_RUN_TOKENS:
            runs.append(Run(at_old, start, n))
            end_old, end_new = at_old + n, at_new
    return runs


def _within_a_pass(runs: list[Run], mode: EditMode, most: int) -> list[Run]:
    """The first runs, with no more tokens to compute for the edits between them than one pass takes.

    All other requests wait while they are computed; behind those runs the prompt is computed in turns.
    """
    n = 0
    for number, (before, after) in enumerate(pairwise(runs), 1):
        n += after.new - before.new - before.n + (editing.HEAL_NEXT_TOKENS if mode == "heal" else 0)
        if n > most:
            return runs[:number]
    return runs


def _as_bytes(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def reuse_edited(runner: Runner, track: Track, compute: editing.Compute) -> None:
    """Let a track find the cells of the cached text that its own is an edit of, if that saves enough.

    Nothing is changed where they, or a text between two edits, find no room. Called under the lock, before
    the track is queued.
    """
    mode = track.edits
    if mode == "recompute" or track.has_images or runner.shift_obstacle:
        return
    if (match := runner.lookup(track)) is None:
        return
    items = tuple(track.tokens[:-1])
    n_saved, entry, runs = match.n + MIN_SAVED_TOKENS - 1, None, [Run(0, 0, 0)]
    for other in _nearest(runner, items, track.domain):
        found = find_runs(other.items, items)  # type: ignore[arg-type]  # without images they are tokens
        found = _within_a_pass(found, mode, runner.chunk)
        if mode == "heal":
            while len(found) > 1 and found[-1].n <= HEALED_TOKENS:
                found.pop()
        n = sum(run.n for run in found)
        if mode == "heal" and len(found) > 1:
            n -= editing.HEAL_LAST_TOKENS + editing.HEAL_NEXT_TOKENS * (len(found) - 1)
        if n > n_saved:
            n_saved, entry, runs = n, other, found
    if entry is not None:
        _take(runner, track, entry, runs, compute)


def _nearest(runner: Runner, items: tuple[int, ...], domain: Domain) -> Iterator[Parked]:
    """The cached texts that begin as the prompt does, the longest beginnings first."""
    domains = (domain, domain._replace(is_edited=True))
    begun = [
        (common(entry.items, items), number, entry)
        for number, entry in enumerate(runner.prefixes.entries())
        if entry.domain in domains and ImageToken not in map(type, entry.items)
    ]
    for n, _, entry in sorted(begun, key=lambda one: one[:2], reverse=True)[:MAX_TEXTS]:
        if n:
            yield entry


def _take(runner: Runner, track: Track, entry: Parked, runs: list[Run], compute: editing.Compute) -> None:
    """Have a cached text edited into the beginning of a track's own, and parked where the track finds it."""
    domain = track.domain._replace(is_edited=True)
    if len(runs) > 1:
        stop = runs[-1].old + runs[-1].n
        copy = runner.new_track(list(entry.items[:stop]), RandomStream(0))  # type: ignore[arg-type]
        copy.domain, copy.mix = domain, track.mix
        try:
            runner.prefixes.touch(entry.id)
            runner.cells.copy(entry.id, copy.id, 0, stop)
            if entry.domain.is_edited:
                copy.exact = 0
            for before, after in pairwise(runs):
                start, end = before.new + before.n, after.old + before.new - before.old
                new = track.tokens[start : after.new]
                edit = editing.replace(runner, copy, start, end, new, track.edits, compute)
                track.n_edited += copy.n_placed - edit.kept
        except (CacheFull, ContextOverflow):  # texts between two edits may be longer than both
            track.n_edited = 0
            runner.close_track(copy, park=False)
            return
        finally:
            runner.close_track(copy)
        if runs[0].n >= MIN_COMMON_TOKENS:
            track.differs_at = runs[0].n
    track.domain = domain
