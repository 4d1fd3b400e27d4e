"""The last 15 minutes as columns, from counters that engines and answers leave behind by the second.

Nothing runs to keep it: seconds in which nothing happened have no entry, and are filled in here. CPU time and
memory are known where somebody watched, CPU time also around answers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.engine.metrics import HISTORY_SECONDS, SECONDS, Second
from stretto.llm import LLM
from stretto.server.answer_history import AnswerSecond
from stretto.server.state import State

Column = NDArray[np.float64]

STEP_SECONDS = 1
LATENCIES = {
    "first_token_p50": ("first_token", 0.5),
    "first_token_p90": ("first_token", 0.9),
    "gap_p50": ("gaps", 0.5),
    "gap_p99": ("gaps", 0.99),
}
BOUNDS = np.array([0.0, *SECONDS, SECONDS[-1]])


class Watched(NamedTuple):
    """What was sampled in a second while somebody watched."""

    second: int  # of time.perf_counter
    cpu: dict[str, float]  # shares of a core
    rss: int | None


def columns(state: State, watched: Iterable[Watched] = ()) -> dict[str, Any]:
    """The history as an event: a list for each column, None where nothing is known."""
    last = int(time.perf_counter())
    first = last - HISTORY_SECONDS
    offset = time.time() - time.perf_counter()
    found: dict[str, Column] = {"time": np.arange(first, last, dtype=np.float64) + round(offset)}
    found |= _engine_columns([second for past in _histories(state) for second in past], first)
    found |= _answer_columns(state.traffic.answers.seconds, first)
    for sample in watched:
        if 0 <= (at := sample.second - first) < HISTORY_SECONDS:
            for part, share in sample.cpu.items():
                found[f"cpu_{part}"][at] = share
            found["memory_rss"][at] = np.nan if sample.rss is None else sample.rss
    return {"step": STEP_SECONDS, "columns": {name: _listed(column) for name, column in found.items()}}


def _histories(state: State) -> Iterable[list[Second]]:
    for served in state.registry.models.values():
        yield served.past
        if isinstance(served.llm, LLM):
            yield served.llm.history.seconds()


def _engine_columns(seconds: list[Second], first: int) -> dict[str, Column]:
    sums = np.zeros((HISTORY_SECONDS, 7))
    times = {name: np.zeros((HISTORY_SECONDS, len(SECONDS) + 1)) for name in ("first_token", "gaps")}
    for one in seconds:
        if 0 <= (at := one.second - first) < HISTORY_SECONDS:
            counts = one.counts
            sums[at] += (*counts[:5], one.running, one.waiting)
            times["first_token"][at] += counts.first_token
            times["gaps"][at] += counts.gaps
    tokens, prompt, cached, passes, pass_tokens, running, waiting = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "tokens_per_second": tokens,
            "prompt_per_second": prompt,
            **{name: quantiles(times[kind], share) for name, (kind, share) in LATENCIES.items()},
            "running": running,
            "waiting": waiting,
            "width": np.where(passes > 0, pass_tokens / np.maximum(passes, 1), 0.0),
            "hit_rate": cached / (cached + prompt),
        }


def quantiles(counts: NDArray[Any], share: float) -> Column:
    """float64[n]: for each row of counts by the bounds `SECONDS` the value below which a share of them lies.

    Values are evenly spread within bounds; those above all bounds count as the last one. NaN: no values.

    >>> quantiles(np.eye(1, 15, 1), 0.5)  # one value between a millisecond and two and a half
    array([0.00175])
    """
    sums = counts.cumsum(axis=1)
    wanted = share * sums[:, -1]
    at = np.minimum((sums < wanted[:, np.newaxis]).sum(axis=1), counts.shape[1] - 1)
    rows = np.arange(len(counts))
    n = counts[rows, at]
    low, high = BOUNDS[at], BOUNDS[at + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = low + (high - low) * (wanted - (sums[rows, at] - n)) / n
    return np.where(wanted > 0, value, np.nan)


def _answer_columns(answers: deque[AnswerSecond], first: int) -> dict[str, Column]:
    names = "errors_4xx", "errors_5xx"
    found = {name: np.zeros(HISTORY_SECONDS) for name in names}
    unknown = "cpu_process", "cpu_steps", "cpu_loop", "cpu_helpers", "memory_rss"
    found |= {name: np.full(HISTORY_SECONDS, np.nan) for name in unknown}
    before: AnswerSecond | None = None
    for second in answers:
        at = second.second - first
        if at >= 0 and before is not None:  # CPU time since the answers before, spread evenly
            seconds = second.second - before.second
            spread = slice(max(0, at - seconds), at)
            found["cpu_process"][spread] = (second.process - before.process) / seconds
            found["cpu_loop"][spread] = (second.loop - before.loop) / seconds
        if 0 <= at < HISTORY_SECONDS:
            found["errors_4xx"][at], found["errors_5xx"][at] = second.n_4xx, second.n_5xx
        before = second
    return found


def _listed(column: Column) -> list[Any]:
    """Numbers for JSON: integers where all are, None for NaN."""
    unknown, numbers = np.isnan(column), np.round(column, 4).astype(object)
    if unknown.any():
        numbers[unknown] = None
    elif (column == np.floor(column)).all():
        numbers = column.astype(np.int64)
    found: list[Any] = numbers.tolist()
    return found
