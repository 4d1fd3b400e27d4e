"""The server's load, second by second: rates, latencies, memory, CPU time. For `/stretto/live`.

Everything is made of counters that are kept anyway. `Load` compares them with those of the second before;
`server/history.py` shows the time before somebody watched.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from stretto.engine.metrics import NO_COUNTS, Counts
from stretto.hardware.limits import memory
from stretto.llm import LLM
from stretto.server.history import quantiles
from stretto.server.served_model import ServedModel
from stretto.server.state import State
from stretto.server.usage import cpu_seconds, resident

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
