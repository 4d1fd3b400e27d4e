"""Frames: a model's table of cells as a page gets it, whole or what has changed since the frame it has.

A `Lens` is one caller's sight of a table. It knows when each cell, set and sequence was last shown otherwise,
so the frame for a reader that has missed some is as exact as for one that has not. Other callers' cells are
in use, and nothing else is told of them. There are never tokens in a frame.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.server.mirror import FREE, UNNAMED, Ints, Members, Mirror, Numbers

MAX_REMEMBERED = 4096  # sets and sequences that are gone
FULL_SHARE = 0.6  # of the cells: if more have changed, a whole frame is smaller

IsMine = Callable[[int], bool]
Facts = dict[str, Any]


class Changing:
    """Values by key, and the version at which each changed last; None stands for one that is gone."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.forgotten = 0  # what went before this version is not known
        self._stamps: dict[int, int] = {}
        self._gone: dict[int, int] = {}

    def update(self, values: dict[int, Any], version: int) -> bool:
        """Take new values over, all of them; return whether anything has changed."""
        old, self.values = self.values, values
        changed = [key for key, value in values.items() if old.get(key) != value]
        gone = old.keys() - values.keys()
        for key in changed:
            self._stamps[key] = version
            self._gone.pop(key, None)
        for key in gone:
            self._stamps.pop(key, None)
            self._gone[key] = version
        if len(self._gone) > MAX_REMEMBERED:
            self._gone, self.forgotten = {}, version
        return bool(changed or gone)

    def since(self, version: int) -> dict[int, Any]:
        """What changed after a version."""
        found = {key: self.values[key] for key, stamp in self._stamps.items() if stamp > version}
        return found | {key: None for key, stamp in self._gone.items() if stamp > version}


class Lens:
    """A table as one caller sees it: all of it (an admin), or the caller's own part."""

    def __init__(self, model: str, sees_all: bool) -> None:
        self.model = model
        self.version = 0  # of the last frame in which anything was different
        self._sees_all = sees_all
        self._since = 0  # deltas are known from this version on
        self._epoch = -1
        self._positions: Ints = np.empty(0, np.int32)
        self._sets: Numbers = np.empty(0, np.uint16)
        self._images: NDArray[np.bool_] = np.empty(0, bool)
        self._stamps: NDArray[np.int64] = np.empty(0, np.int64)  # when each cell changed last
        self._last: tuple[int, NDArray[np.int64]] = (0, np.empty(0, np.int64))  # version before, and changes
        self._members, self._sequences = Changing(), Changing()

    def update(self, mirror: Mirror, changed_cells: NDArray[np.int64], version: int, is_mine: IsMine) -> bool:
        """Look at the table again, where these cells have changed; return whether anything is different."""
        positions, sets, images, members = self._shown(mirror, is_mine)
        sequences = {
            i: (state, is_mine(i), mirror.counts[i])
            for i, state in mirror.states.items()
            if self._sees_all or is_mine(i)
        }
        if mirror.epoch != self._epoch or len(positions) != len(self._positions):
            self._epoch, self._since = mirror.epoch, version
            self._stamps = np.full(len(positions), version, np.int64)
            self._members, self._sequences, changed = Changing(), Changing(), True
            at = np.arange(len(positions))
        else:
            at = changed_cells
            if not self._sees_all:  # what is whose may have changed too
                differs = (positions != self._positions) | (sets != self._sets) | (images != self._images)
                at = np.flatnonzero(differs)
            self._stamps[at] = version
            changed = bool(len(at))
        self._positions, self._sets, self._images = positions, sets, images
        changed |= self._members.update(members, version)
        changed |= self._sequences.update(sequences, version)
        if changed:
            self._last, self.version = (self.version, at), version
        return changed

    def _shown(
        self, mirror: Mirror, is_mine: IsMine
    ) -> tuple[Ints, Numbers, NDArray[np.bool_], dict[int, Members]]:
        """The columns, and the sequences of each set."""
        if self._sees_all:
            members = {number: found for number, found in mirror.members.items() if number != FREE}
            return mirror.positions, mirror.sets, mirror.images, members
        mine = {i for i in mirror.states if is_mine(i)}
        parts = ((number, tuple(i for i in found if i in mine)) for number, found in mirror.members.items())
        members = {number: found for number, found in parts if found}
        hidden = np.full(UNNAMED + 1, True)
        hidden[[FREE, *members]] = False
        is_hidden = hidden[mirror.sets]
        positions = np.where(is_hidden, np.int32(-1), mirror.positions)
        sets = np.where(is_hidden, np.uint16(UNNAMED), mirror.sets)
        return positions, sets, mirror.images & ~is_hidden, members

    def frame(self, since: int) -> Facts | None:
        """The frame for a reader that has one of this version, 0 for none; None if it has the last one."""
        if since == self.version:
            return None
        oldest = max(self._since, self._members.forgotten, self._sequences.forgotten)
        if not oldest <= since < self.version:
            since = 0
        return self._made(since)

    def _made(self, since: int) -> Facts:
        head = {"model": self.model, "version": self.version, "n": len(self._positions)}
        at = self._last[1] if since == self._last[0] else np.flatnonzero(self._stamps > since)
        if not since or len(at) > FULL_SHARE * len(self._positions):
            return {
                **head,
                "full": True,
                "positions": encoded(self._positions, "<i4"),
                "set": encoded(self._sets, "<u2"),
                "sets": self._members.values,
                "sequences": _named(self._sequences.values),
                "images": encoded(np.flatnonzero(self._images), "<u4"),
            }
        return {
            **head,
            "full": False,
            "at": encoded(at, "<u4"),
            "positions": encoded(self._positions[at], "<i4"),
            "set": encoded(self._sets[at], "<u2"),
            "sets": self._members.since(since),
            "sequences": _named(self._sequences.since(since)),
            "images": encoded(at[self._images[at]], "<u4"),
        }


def empty_frame(model: str, version: int) -> Facts:
    """The frame of a model that is not loaded: no cells."""
    columns = {"positions": "", "set": "", "sets": {}, "sequences": {}, "images": ""}
    return {"model": model, "version": version, "n": 0, "full": True, **columns}


def encoded(numbers: NDArray[Any], kind: str) -> str:
    """Numbers as base64, little-endian."""
    return base64.b64encode(np.ascontiguousarray(numbers, kind).tobytes()).decode("ascii")


def _named(sequences: dict[int, Any]) -> dict[int, Facts | None]:
    return {
        i: None if facts is None else dict(zip(("state", "mine", "n"), facts, strict=True))
        for i, facts in sequences.items()
    }
