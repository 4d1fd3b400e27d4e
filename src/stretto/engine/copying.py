"""Copies of the table of cells, small enough to be made within a step: for a page that shows it.

What is made of a copy (sets of sequences, frames, JSON) is made elsewhere, without the engine's lock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stretto.cache.changes import CellChanges
from stretto.engine.runner import Runner

SequenceState = Literal["running", "held", "parked", "pinned"]


@dataclass(frozen=True)
class TableCopy:
    """What has changed in a table since a version, and the states of all its sequences.

    A sequence is "running" for a request, "held" by a caller, or in the prefix cache: "parked" until its
    cells are needed, or "pinned".

    - `images`: bool[n], for each of the changed cells whether it holds a token of an image
    - `salts`: of the sequences that have one (`cache_salt`)
    - `slots`: those in use, if there are recurrent layers and all of the table was asked for
    - `seconds`: CPU time that copying took
    """

    n_cells: int
    changes: CellChanges
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


def copy_cell(runner: Runner, cell: int) -> CellCopy:
    """Copy one cell of the table; under the runner's lock."""
    cells, members = runner.cells, runner.cells.members(cell)
    states = {i: state_of(runner, i) for i in sorted(members)}
    return CellCopy(int(cells.positions[cell]), int(cells.tokens[cell]), states, {})


def state_of(runner: Runner, sequence: int) -> SequenceState:
    """The state of a sequence that has cells."""
    if (entry := runner.prefixes.entry(sequence)) is not None:
        return "pinned" if entry.pins else "parked"
    track = runner.tracks.get(sequence)
    return "running" if track is not None and track.running else "held"


def copy_table(runner: Runner, since: int = 0) -> TableCopy:
    """Copy what has changed since a version of the table, all of it since 0; under the runner's lock."""
    begun = time.thread_time()
    cells = runner.cells
    changes = cells.changes(since)
    states = {i: state_of(runner, i) for i in cells.views}
    placeholder = None if runner.images is None else runner.images.placeholder
    no_images = placeholder is None or changes.tokens.size == 0
    return TableCopy(
        n_cells=len(cells),
        changes=changes,
        images=np.zeros(len(changes.cells), bool) if no_images else changes.tokens == placeholder,
        states=states,
        salts={},
        slots=None if since or cells.slots is None else cells.slots.as_data(),
        seconds=time.thread_time() - begun,
    )


def as_data(copied: TableCopy) -> dict[str, Any]:
    """A copy of a whole table as plain data: the cells in use and the sequences with their cells."""
    found = copied.changes
    columns = zip(found.cells.tolist(), found.positions.tolist(), found.tokens.tolist(), strict=True)
    slots = {} if copied.slots is None else {"slots": copied.slots}
    return slots | {
        "cells": copied.n_cells,
        "free": copied.n_cells - len(found.cells),
        "used": [{"cell": cell, "position": position, "token": token} for cell, position, token in columns],
        "sequences": [
            {"id": i, "state": copied.states[i], "cells": cells.tolist()}
            for i, cells in found.sequences.items()
        ],
    }
