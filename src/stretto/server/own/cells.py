"""A model's cells, for those who look: a snapshot, one cell, and frames for pages that watch.

A frame is all of the table, made of a copy of it: for each cell its position and the number of its set of
sequences, so that a page needs two small numbers a cell. Nothing is kept between two frames but the last one.
Other callers' cells are in use, and nothing else is told of them. There are never tokens in a frame.

Copies wait for the end of a step, so they are made in a thread, one after the other; so is all that takes
longer than a moment.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Query, Request
from numpy.typing import NDArray
from starlette.responses import Response

from stretto.engine.table import Ints, TableCopy
from stretto.llm import LLM
from stretto.server.generation.answer import long_json
from stretto.server.generation.fields import ModelName
from stretto.server.http.bodies import make_router
from stretto.server.http.errors import ApiError, Json
from stretto.server.http.served_model import ServedModel
from stretto.server.http.state import Caller, State, get_caller, get_state
from stretto.server.http.streaming import event
from stretto.server.own.requests import find_owned

router = make_router("Stretto")

FREE = 0  # the number of the empty set
UNNAMED = 0xFFFF  # of a cell in use whose sequences are not told
MAX_SETS = UNNAMED - 1
COMPRESSION = 1  # of zlib; more takes longer and gains little

Value = TypeVar("Value")


@router.get("/stretto/cells")
async def cells(request: Request, model: ModelName) -> Response:
    """A snapshot of a model's cells: those in use with position and token, and the sequences.

    Only an admin sees those of other callers.
    """
    state, caller = get_state(request), get_caller(request)
    llm = state.registry.find(model).llm
    if not isinstance(llm, LLM):
        return Json({"model": model, "loaded": False, "cells": 0, "free": 0, "used": [], "sequences": []})
    copied, _ = await _read(state, llm.cells.copied)
    is_shown = (lambda sequence: True) if caller.admin else find_owned(state, caller, copied.salts)
    snapshot = await asyncio.to_thread(copied.as_data, is_shown)
    return await long_json({"model": model, "loaded": True, **snapshot}, 4 * len(snapshot["used"]))


@router.get("/stretto/cells/at")
async def cell_at(
    request: Request, model: ModelName, cell: Annotated[int, Query(ge=0, lt=1 << 30)]
) -> Response:
    """A cell's position, token and sequences; of others' cells only that they are in use."""
    state = get_state(request)
    llm = state.registry.find(model).llm
    if not isinstance(llm, LLM) or cell >= len(llm.cells):
        n = len(llm.cells) if isinstance(llm, LLM) else 0
        raise ApiError(404, f"{model} has no cell {cell}; it has {n:,}", param="cell", code="not_found")
    found, _ = await _read(state, lambda: llm.cells.at(cell))
    caller = get_caller(request)
    is_mine = find_owned(state, caller, found.salts)
    shown = sorted(i for i in found.states if caller.admin or is_mine(i))
    token = found.token if shown else None
    return Json(
        {
            "model": model,
            "cell": cell,
            "used": bool(found.states),
            "position": found.position if shown else None,
            "token": token,
            "piece": None if token is None else llm.tokenizer.spelled(token),
            "sequences": [{"id": i, "state": found.states[i], "mine": is_mine(i)} for i in shown],
        }
    )


@dataclass(frozen=True)
class Shown:
    """What a caller was shown last: the event, its number, and what it was made of."""

    number: int
    event: str
    copied: TableCopy | None
    mine: frozenset[int]


class CellEvents:
    """The cells of a model, loaded or not, as events: `look` while somebody watches, then `news` for each."""

    def __init__(self, state: State, served: ServedModel) -> None:
        self._state = state
        self._served = served
        self._llm: LLM | None = None
        self._copied: TableCopy | None = None
        self._shown: dict[Caller, Shown] = {}

    async def look(self, callers: Iterable[Caller]) -> float:
        """See what has changed, for these callers; returns the CPU time of all of it."""
        last, spent = self._copied, 0.0
        llm = self._served.llm if isinstance(self._served.llm, LLM) else None
        if llm is not self._llm:
            self._llm, last = llm, None
        self._copied = None
        if llm is not None:
            self._copied, spent = await _read(self._state, lambda: llm.cells.copied(last))
        shown = {}
        for caller in callers:
            shown[caller], seconds = await self._show(caller, self._copied)
            spent += seconds
        self._shown = shown
        return spent

    async def _show(self, caller: Caller, copied: TableCopy | None) -> tuple[Shown, float]:
        mine: frozenset[int] = frozenset()
        if copied is not None:
            mine = frozenset(filter(find_owned(self._state, caller, copied.salts), copied.views))
        last = self._shown.get(caller)
        if last is not None and last.copied is copied and last.mine == mine:
            return last, 0.0
        name = self._served.name
        text, seconds = await _read(
            self._state, lambda: event({"cells": frame(name, copied, mine, caller.admin)})
        )
        number = 1 if last is None else last.number + (text != last.event)
        return Shown(number, text, copied, mine), seconds

    def news(self, caller: Caller, seen: int) -> tuple[int, str]:
        """The number of a caller's last event and the event; "" for a reader that has seen it."""
        shown = self._shown.get(caller)
        if shown is None or shown.number == seen:
            return seen, ""
        return shown.number, shown.event


def frame(model: str, copied: TableCopy | None, mine: Iterable[int], sees_all: bool) -> dict[str, Any]:
    """A table as one caller sees it: all of it (an admin), or the caller's own part; no cells without one."""
    if copied is None:
        return {"model": model, "n": 0, "columns": _packed(), "sets": {}, "sequences": {}}
    own = set(mine)
    views = {i: view for i, view in copied.views.items() if sees_all or i in own}
    numbers, members = number_sets(len(copied.positions), views)
    is_told = (numbers != FREE) & (numbers != UNNAMED)
    images = is_told & (copied.tokens == (-1 if copied.placeholder is None else copied.placeholder))
    positions = np.where(is_told, copied.positions, -1)
    sets = np.where(copied.positions < 0, FREE, np.where(is_told, numbers, UNNAMED))
    return {
        "model": model,
        "n": len(positions),
        "columns": _packed(positions.astype("<i4"), sets.astype("<u2"), images.astype("u1")),
        "sets": members,
        "sequences": {
            i: {"state": copied.states[i], "mine": i in own, "n": len(view)} for i, view in views.items()
        },
    }


def number_sets(n_cells: int, views: dict[int, Ints]) -> tuple[NDArray[np.intp], dict[int, list[int]]]:
    """The number of each cell's set of sequences, and the sequences of each set; from these views alone.

    Each sequence splits the sets that it has a part of in two. Beyond 65,534 sets they are `UNNAMED`.
    """
    sets = np.zeros(n_cells, np.intp)
    parts = [(0, 0)]  # of each set: the one that it was split from, and the sequence that did it
    for sequence, cells in views.items():
        before = sets[cells]
        split = np.flatnonzero(np.bincount(before))
        after = np.empty(split[-1] + 1, np.intp)
        after[split] = np.arange(len(parts), len(parts) + len(split))
        sets[cells] = after[before]
        parts += [(number, sequence) for number in split.tolist()]
    is_used = np.bincount(sets, minlength=len(parts)) > 0  # others were split completely
    is_used[FREE] = False
    numbers = np.where(is_used, np.minimum(np.cumsum(is_used), UNNAMED), FREE)
    members: dict[int, list[int]] = {}
    for number, part in enumerate(np.flatnonzero(is_used)[:MAX_SETS].tolist(), 1):
        found: list[int] = []
        while part:
            part, sequence = parts[part]
            found.append(sequence)
        members[number] = sorted(found)
    return numbers[sets], members


def _packed(*columns: NDArray[Any]) -> str:
    """Columns one after the other, compressed, in base64."""
    return b64encode(zlib.compress(b"".join(each.tobytes() for each in columns), COMPRESSION)).decode("ascii")


async def _read(state: State, work: Callable[[], Value]) -> tuple[Value, float]:
    """The value of some work in the thread that reads tables, and the CPU time that it took."""

    def timed() -> tuple[Value, float]:
        begun = time.thread_time()
        value = work()
        return value, time.thread_time() - begun

    return await asyncio.get_running_loop().run_in_executor(state.reader, timed)
