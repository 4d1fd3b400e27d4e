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

from stretto.engine.metrics import HISTORY_SECONDS, NO_COUNTS, SECONDS, Counts, Second
from stretto.hardware.limits import memory
from stretto.llm import LLM
from stretto.server.http.served_model import ServedModel
from stretto.server.http.state import AnswerSecond, State
from stretto.server.http.usage import cpu_seconds, resident

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


# The server's load, second by second: rates, latencies, memory, CPU time. For `/stretto/live`.
#
# Everything is made of counters that are kept anyway. `Load` compares them with those of the second before;
# `server/http/history.py` shows the time before somebody watched.

FREE_SECONDS = 5.0  # between two looks at the machine's memory, which take longer than all else
WINDOW_SECONDS = 10  # of latencies and the hit rate

CPU_PARTS = ("process", "steps", "loop", "helpers")


class Sample(NamedTuple):
    """Counters at one time."""

    time: float  # of time.perf_counter
    counts: dict[str, Counts]  # of the loaded models
    cpu: dict[str, float]
    errors: tuple[int, int]  # answers with 4xx and 5xx


class Load:
    """Figures of the last second, made of two samples; of the last few for what is rare."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._free: int | None = None
        self._free_known = -FREE_SECONDS  # when
        self._samples: deque[Sample] = deque([self._sample()], maxlen=WINDOW_SECONDS + 1)

    def figures(self) -> dict[str, Any]:
        """Take a sample and say what happened since the last one."""
        now, before, oldest = self._sample(), self._samples[-1], self._samples[0]
        self._samples.append(now)
        seconds = max(1e-3, now.time - before.time)
        last, window = _changes(now, before), _changes(now, oldest)
        registry = self._state.registry
        models = {
            name: _model(served, last.get(name, NO_COUNTS), seconds)
            for name, served in registry.models.items()
        }
        loaded = [facts for facts in models.values() if facts["loaded"]]
        return {
            "time": round(time.time(), 3),
            **rates(_sum(last), seconds),
            **latencies(_sum(window)),
            "running": sum(facts["running"] for facts in loaded),
            "waiting": sum(facts["waiting"] for facts in loaded),
            "memory": self._memory(),
            "cpu": {
                part: round(max(0.0, now.cpu[part] - before.cpu[part]) / seconds, 4) for part in CPU_PARTS
            },
            "errors": {"4xx": now.errors[0] - before.errors[0], "5xx": now.errors[1] - before.errors[1]},
            "models": models,
        }

    def _sample(self) -> Sample:
        models, answers = self._state.registry.models, self._state.traffic.answers
        counts = {n: s.llm.metrics.counts() for n, s in models.items() if isinstance(s.llm, LLM)}
        return Sample(time.perf_counter(), counts, cpu_seconds(), (answers.n_4xx, answers.n_5xx))

    def _memory(self) -> dict[str, int | None]:
        registry = self._state.registry
        limit = None if registry.limit >= 1 << 62 else registry.limit
        if time.perf_counter() > self._free_known + FREE_SECONDS:
            self._free, self._free_known = memory()[1], time.perf_counter()
        return {"rss": resident(), "loaded": registry.loaded_bytes, "limit": limit, "free": self._free}


def rates(counts: Counts, seconds: float) -> dict[str, Any]:
    """Tokens a second, and the mean width of the forward passes."""
    width = counts.pass_tokens / counts.passes if counts.passes else 0.0
    return {
        "tokens_per_second": round(counts.tokens / seconds, 1),
        "prompt_per_second": round(counts.prompt / seconds, 1),
        "width": round(width, 1),
    }


def latencies(counts: Counts) -> dict[str, Any]:
    """Quantiles of times in seconds, and the share of prompt tokens that were cached; None for nothing."""
    prompt = counts.prompt + counts.cached
    return {
        "first_token": {f"p{n}": _quantile(counts.first_token, n / 100) for n in (50, 90)},
        "gap": {f"p{n}": _quantile(counts.gaps, n / 100) for n in (50, 99)},
        "hit_rate": round(counts.cached / prompt, 3) if prompt else None,
    }


def _changes(now: Sample, before: Sample) -> dict[str, Counts]:
    return {name: counts.since(before.counts.get(name, NO_COUNTS)) for name, counts in now.counts.items()}


def _sum(counts: dict[str, Counts]) -> Counts:
    total = NO_COUNTS
    for one in counts.values():
        total = total.plus(one)
    return total


def _model(served: ServedModel, counts: Counts, seconds: float) -> dict[str, Any]:
    facts: dict[str, Any] = {"loaded": served.llm is not None, "loading": served.loading is not None}
    facts |= {"users": served.users, "running": 0, "waiting": served.waiting}
    if served.loading is not None and served.need and (now := resident()) is not None:
        done = min(max(0, now - served.loading_from), served.need)
        facts["progress"] = {"done": done, "total": served.need}  # bytes in memory, of what it will take
    llm = served.llm
    if isinstance(llm, LLM):
        metrics = llm.metrics
        facts |= {"running": metrics.running, "waiting": metrics.waiting, **rates(counts, seconds)}
        facts["cells"] = {"n": len(llm.cells), "used": llm.cells.n_used}
    return facts


def _quantile(counts: tuple[int, ...], share: float) -> float | None:
    return round(float(quantiles(np.array([counts]), share)[0]), 5) if any(counts) else None
