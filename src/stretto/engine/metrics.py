"""What the engine has done and is doing, as plain numbers that a page or Prometheus can read.

`Metrics` counts since the model was loaded, `History` by the second, `StepLog` step by step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from operator import add, sub
from typing import Any, NamedTuple

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
LONG_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LENGTHS = (1, 10, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000)
# Of now, not since the start.
GAUGES = ("waiting", "running", "held_cells", "threads", "slots", "slots_used", "slot_bytes")


@dataclass
class Histogram:
    """How often values up to each of the bounds were seen; the last count is for those beyond.

    >>> histogram = Histogram((1, 2))
    >>> histogram.add(1.5)
    >>> histogram.counts
    [0, 1, 0]
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def n(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Their mean, 0 if there was none."""
        return self.total / self.n if self.n else 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, or several that are the same."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += times * value

    def plus(self, other: Histogram) -> Histogram:
        """The values of both; the bounds are the same."""
        return Histogram(self.bounds, list(map(add, self.counts, other.counts)), self.total + other.total)


class Counts(NamedTuple):
    """Counters at one time, or their differences between two times.

    `tokens` were given out, `prompt` tokens computed, `cached` ones found in the prefix cache. `first_token`
    and `gaps` count times by the bounds `SECONDS`.
    """

    tokens: int
    prompt: int
    cached: int
    passes: int
    pass_tokens: float
    first_token: tuple[int, ...]
    gaps: tuple[int, ...]

    def since(self, before: Counts) -> Counts:
        """The differences to earlier ones; all of them if the counters have begun anew meanwhile."""
        if self.tokens < before.tokens or self.passes < before.passes:
            return self
        return self._with_each(sub, before)

    def plus(self, other: Counts) -> Counts:
        """The sums with those of another model, or of another time."""
        return self._with_each(add, other)

    def _with_each(self, operator: Callable[[Any, Any], Any], other: Counts) -> Counts:
        numbers: Any = map(operator, self[:5], other[:5])
        times = zip(self[5:], other[5:], strict=True)
        return Counts(*numbers, *[tuple(map(operator, one, two)) for one, two in times])


NO_TIMES = (0,) * (len(SECONDS) + 1)
NO_COUNTS = Counts(0, 0, 0, 0, 0.0, NO_TIMES, NO_TIMES)


@dataclass
class Metrics:
    """Counters since the model was loaded, and gauges of the last step. Times are in seconds.

    - `added`, `finished` (by reason), `failed`, `refused`, `preempted`: requests
    - `waiting`, `running`: requests now; `threads` that the backend uses for a pass, 0 before the first one
    - `held_cells`: cells in use that cannot be evicted, seen once a second
    - `slots` of recurrent states, how many are used, and the bytes of each; 0 without recurrent layers
    - `steps`; `prompt_tokens` and `decoded_tokens` that were computed; `cached_tokens` that were not
    - `stored_tokens` that were read from disk (they are among `cached_tokens` of prompts that shared them),
      and `stored_bytes` that were written there
    - `longest`: tokens of the longest text that was generated, with its prompt; `pass_requests`: texts in
      forward passes, summed up over them; `short_prompts`: prompts of which one token was computed, which
      counts among `decoded_tokens`
    - `drafts` of speculative decoding (`draft=`), their tokens, and how many of these were accepted
    - `forward`, `encoding` (of images), `sampling`, `python`: where the time of the steps went;
      `forward_cpu`: processor time of the thread that steps, in the backend
    - `first_token`, `between_tokens`: latencies of requests; `width`: tokens in a forward pass
    - `queue`, `prefill`, `decode`, `total`: from a request to its first admission, from there to its first
      token, from there to its last token, and from the request to its end, whatever ended it
    - `prompt_length`, `text_length`: tokens of the prompts, with cached ones, and of the texts
    """

    added: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    refused: int = 0
    preempted: int = 0
    waiting: int = 0
    running: int = 0
    held_cells: int = 0
    threads: int = 0
    slots: int = 0
    slots_used: int = 0
    slot_bytes: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    decoded_tokens: int = 0
    cached_tokens: int = 0
    stored_tokens: int = 0
    stored_bytes: int = 0
    longest: int = 0
    pass_requests: int = 0
    short_prompts: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    forward: float = 0.0
    forward_cpu: float = 0.0
    encoding: float = 0.0
    sampling: float = 0.0
    python: float = 0.0
    first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    width: Histogram = field(default_factory=lambda: Histogram(WIDTHS))
    queue: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))
    prefill: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))
    decode: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))
    total: Histogram = field(default_factory=lambda: Histogram(LONG_SECONDS))
    prompt_length: Histogram = field(default_factory=lambda: Histogram(LENGTHS))
    text_length: Histogram = field(default_factory=lambda: Histogram(LENGTHS))

    @property
    def accounted(self) -> float:
        """Seconds of steps that did not pass in Python."""
        return self.forward + self.sampling + self.encoding

    def count_pass(self, n_tokens: int, n_texts: int) -> None:
        """Count a forward pass with tokens of some texts."""
        self.width.add(n_tokens)
        self.pass_requests += n_texts

    def counts(self) -> Counts:
        """The counters that rates and latencies are made of."""
        first, gaps = tuple(self.first_token.counts), tuple(self.between_tokens.counts)
        return Counts(
            sum(first) + sum(gaps),
            self.prompt_tokens,
            self.cached_tokens,
            self.width.n,
            self.width.total,
            first,
            gaps,
        )

    def plus(self, later: Metrics) -> Metrics:
        """The counters of both; gauges are those of `later`."""
        sums = {one.name: _sum(getattr(self, one.name), getattr(later, one.name)) for one in fields(self)}
        gauges = {name: getattr(later, name) for name in GAUGES}
        return Metrics(**{**sums, **gauges, "longest": max(self.longest, later.longest)})

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return asdict(self)


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, Histogram):
        return one.plus(other)
    return dict(Counter(one) + Counter(other)) if isinstance(one, dict) else one + other


# The engine's counters by the second, for the last minutes: its steps write them, so idling is free.

HISTORY_SECONDS = 900


class Second(NamedTuple):
    """What the steps did that began within a second, and how many requests ran and waited at its end."""

    second: int  # of time.perf_counter
    counts: Counts
    running: int
    waiting: int


class History:
    """The last `HISTORY_SECONDS` seconds in which there were steps; reading needs no lock."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._seconds: deque[Second] = deque(maxlen=HISTORY_SECONDS)
        self._now = -1
        self._before = NO_COUNTS

    def tick(self, now: float) -> None:
        """Note the time, before anything is counted."""
        second = int(now)
        if second != self._now:
            if self._now >= 0:
                self._seconds.append(self._open())
            self._before, self._now = self._metrics.counts(), second

    def seconds(self) -> list[Second]:
        """The seconds, the last one so far."""
        return [*self._seconds, self._open()] if self._now >= 0 else []

    def _open(self) -> Second:
        metrics = self._metrics
        return Second(self._now, metrics.counts().since(self._before), metrics.running, metrics.waiting)


# A bounded record of the last steps, for a page or a debugger to read while the engine runs.

MAX_EVENTS = 1024


class StepEvent(NamedTuple):
    """One step: when it ended, how long it took, its tokens, the requests that ran and waited."""

    number: int
    ended: float  # seconds, of time.perf_counter
    seconds: float
    n_tokens: int
    running: int
    waiting: int


class StepLog:
    """The last `MAX_EVENTS` steps; reading needs no lock."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, float, float, int, int, int]] = deque(maxlen=MAX_EVENTS)
        self._n = 0

    def add(self, ended: float, seconds: float, n_tokens: int, running: int, waiting: int) -> None:
        """Record a step."""
        self._events.append((self._n, ended, seconds, n_tokens, running, waiting))
        self._n += 1

    def since(self, number: int = 0) -> list[StepEvent]:
        """The steps from this number on that are still recorded."""
        return [StepEvent(*event) for event in list(self._events) if event[0] >= number]
