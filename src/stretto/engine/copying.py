"""Copies of the table of cells, small enough to be made within a step: for a page that shows it.

What is made of a copy (sets of sequences, frames, JSON) is made elsewhere, without the engine's lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stretto.cache.following import NOTHING, Follower, TableDelta
from stretto.engine.runner import Runner

SequenceState = Literal["running", "held", "parked", "pinned"]


@dataclass(frozen=True)
class TableCopy:
    """What has changed in a table since a follower last looked, and the states of all its sequences.

    A sequence is "running" for a request, "held" by a caller, or in the prefix cache: "parked" until its
    cells are needed, or "pinned".

    - `images`: bool[n], for each of the changed cells whether it holds a token of an image
    - `salts`: of the sequences that have one (`cache_salt`)
    - `slots`: those in use, if there are recurrent layers and all of the table was copied
    - `seconds`: CPU time that copying took
    """

    n_cells: int
    delta: TableDelta
    images: NDArray[np.bool_]
    states: dict[int, SequenceState]
    salts: dict[int, str]
    slots: list[dict[str, Any]] | None
    seconds: float


@dataclass(frozen=True)
class CellCopy:
    """One cell: its position and token (−1 if it is free), its sequences' states, and salts as above."""

    position: int
    token: int
    states: dict[int, SequenceState]
    salts: dict[int, str]


def copy_table(runner: Runner, follower: Follower) -> TableCopy:
    """Copy what has changed since a follower last looked; under the runner's lock."""
    begun = time.thread_time()
    cells, delta = runner.cells, follower.take(runner.cells)
    placeholder = None if runner.images is None else runner.images.placeholder
    return TableCopy(
        n_cells=len(cells),
        delta=delta,
        images=np.zeros(len(delta.cells), bool) if placeholder is None else delta.tokens == placeholder,
        states=_states(runner),
        salts=salts_of(runner),
        slots=cells.slots.as_data() if delta.complete and cells.slots is not None else None,
        seconds=time.thread_time() - begun,
    )


def copy_cell(runner: Runner, cell: int) -> CellCopy:
    """Copy one cell of the table; under the runner's lock."""
    cells, states = runner.cells, _states(runner)
    found = {i: states[i] for i in sorted(cells.members(cell))}
    return CellCopy(int(cells.positions[cell]), int(cells.tokens[cell]), found, salts_of(runner))


def _states(runner: Runner) -> dict[int, SequenceState]:
    """The states of all sequences that have cells."""
    states: dict[int, SequenceState] = dict.fromkeys(runner.cells.views, "held")
    for entry in runner.prefixes.entries():
        states[entry.id] = "pinned" if entry.pins else "parked"
    for track in runner.tracks.values():
        if track.running and track.id in states:
            states[track.id] = "running"
    return states


def salts_of(runner: Runner) -> dict[int, str]:
    """The salts of all sequences that have one."""
    salts = {track.id: track.domain.salt for track in runner.tracks.values() if track.domain.salt}
    for entry in runner.prefixes.entries():
        if entry.domain.salt:
            salts[entry.id] = entry.domain.salt
    return salts


def as_data(copied: TableCopy, is_shown: Callable[[int], bool] | None = None) -> dict[str, Any]:
    """A copy of a whole table as plain data: the cells in use and the sequences with their cells.

    With `is_shown`, only the sequences that it tells, and their cells.
    """
    delta, sequences = copied.delta, copied.delta.each_grown()
    cells, positions, tokens = delta.cells, delta.positions, delta.tokens
    if is_shown is not None:
        sequences = {i: view for i, view in sequences.items() if is_shown(i)}
        chosen = np.isin(cells, np.concatenate([NOTHING, *sequences.values()]))
        cells, positions, tokens = cells[chosen], positions[chosen], tokens[chosen]
    columns = zip(cells.tolist(), positions.tolist(), tokens.tolist(), strict=True)
    slots = {} if copied.slots is None else {"slots": _of(copied.slots, sequences)}
    return slots | {
        "cells": copied.n_cells,
        "free": copied.n_cells - len(delta.cells),
        "used": [{"cell": cell, "position": position, "token": token} for cell, position, token in columns],
        "sequences": [
            {"id": i, "state": copied.states[i], "cells": view.tolist()} for i, view in sequences.items()
        ],
    }


def _of(slots: list[dict[str, Any]], shown: Container[int]) -> list[dict[str, Any]]:
    """The slots of these sequences, without others' names."""
    found = [{**slot, "sequences": [i for i in slot["sequences"] if i in shown]} for slot in slots]
    return [slot for slot in found if slot["sequences"]]
