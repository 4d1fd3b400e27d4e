"""`stretto bench loops`: the ways to decode one token at a time, and where a step's time goes.

The parts are timed by wrapping the calls, in runs of their own, so that the speeds stand without it. What is
left of a step after its parts is the loop itself: scheduling, events, the sequence's own books.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from statistics import median
from typing import Any, Literal

from stretto.backends.base import Batch, Decoding, DrawsRows
from stretto.bench.speed import TEMPERATURES, Sampling
from stretto.engine.track import Track
from stretto.llm import LLM
from stretto.sampling.params import check_integer

PARTS = ("forward", "sampling", "detokenizing", "cells and batch")
REST = "rest"
FUSED = "fused"


@dataclass
class Loop:
    """A loop and how its tokens are chosen: tokens a second, one sample a round, and its parts.

    `parts` are microseconds a step, one sample a round: `forward`, `sampling`, `detokenizing`,
    `cells and batch` and the `rest`. The fused loop has none: it does not come back to Python.
    """

    loop: str
    sampling: Sampling
    samples: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Tokens a second."""
        return median(self.samples)

    def part(self, name: str) -> float:
        """The median of a part, in microseconds a step."""
        return median(self.parts[name])

    @property
    def python(self) -> float:
        """The cost of a step without the forward pass, in microseconds."""
        return sum(self.part(name) for name in self.parts if name != "forward")

    @property
    def sampling_share(self) -> float:
        """Sampling as a share of the forward pass; 0 where it was not measured."""
        return self.part("sampling") / self.part("forward") if self.parts else 0.0


def loops(
    llm: LLM, *, tokens: int = 128, rounds: int = 5, note: Callable[[str], None] = lambda text: None
) -> list[Loop]:
    """Compare the loops, greedy and with the default sampler; they take turns within a round.

    >>> [loop.loop for loop in loops(llm)]
    ['llm.stream', 'seq.step', 'fused', 'llm.stream', 'seq.step', 'fused']
    """
    check_integer("tokens", tokens, 1, 1 << 20)
    check_integer("rounds", rounds, 1, 1 << 20)
    ways: dict[str, Callable[[LLM, int, Sampling], float]] = {"llm.stream": _stream, "seq.step": _step}
    if llm.backend.capabilities.fused:
        ways[FUSED] = partial(_stream, loop="fused")
    results = [Loop(name, sampling) for sampling in TEMPERATURES for name in ways]
    for run in ways.values():
        run(llm, min(8, tokens), "default")  # warms up
    for number in range(1, rounds + 1):
        for each in results:
            note(f"round {number} of {rounds}: {each.loop}, {each.sampling}")
            run = ways[each.loop]
            each.samples.append(tokens / run(llm, tokens, each.sampling))
            if each.loop == FUSED:
                continue
            with _clocked(llm) as clock:
                whole = run(llm, tokens, each.sampling)
            clock[REST] = whole - sum(clock[part] for part in PARTS)
            for part in (*PARTS, REST):
                each.parts.setdefault(part, []).append(1e6 * clock[part] / tokens)
    return results


def _stream(llm: LLM, tokens: int, sampling: Sampling, loop: Literal["python", "fused"] = "python") -> float:
    """The seconds of a stream; its prompt is a token, so every step is a pass over one."""
    begun = time.perf_counter()
    for _ in llm.stream(
        [0], max_tokens=tokens, temperature=TEMPERATURES[sampling], ignore_eos=True, seed=0, loop=loop
    ):
        pass
    return time.perf_counter() - begun


def _step(llm: LLM, tokens: int, sampling: Sampling) -> float:
    """The seconds of as many steps of a sequence."""
    temperature = TEMPERATURES[sampling]
    begun = time.perf_counter()
    with llm.sequence([0], seed=0) as sequence:
        for _ in range(tokens):
            step = sequence.step(temperature=temperature)
            if step.is_end:
                sequence.append(step.token)
    return time.perf_counter() - begun


@contextmanager
def _clocked(llm: LLM) -> Iterator[dict[str, float]]:
    """Count the seconds spent in each part; calls of one part do not nest."""
    clock: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    calls: list[tuple[str, Any, str]] = [
        ("forward", type(llm.backend), "forward"),
        ("sampling", Track, "sample"),
        ("detokenizing", type(llm.tokenizer.detokenizer()), "push"),
        *(("cells and batch", Batch, name) for name in ("extend", "check", "place")),
        ("cells and batch", Decoding, "__init__"),
    ]
    if isinstance(llm.backend, DrawsRows):
        calls.append(("sampling", type(llm.backend), "draw_rows"))
    with ExitStack() as stack:
        for part, owner, name in calls:
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, _timed(getattr(owner, name), part, clock))
        yield clock


def _timed(function: Callable[..., Any], part: str, clock: dict[str, float]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*args: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            clock[part] += time.perf_counter() - begun

    return timed
