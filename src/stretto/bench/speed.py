"""`stretto bench`: prefill, decode, decode at depth and many sequences, as llama-bench names them.

Everything goes through public calls and includes sampling. Prompts are random tokens, different in every
round, so that no cache of prefixes can help. Tests take turns within a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from functools import partial
from statistics import median
from typing import Literal

import numpy as np

from stretto.backends.base import Settles
from stretto.bench.limits import Cost, Limit, Machine, cache_bytes, limit
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.sampling.params import SamplingParams, check_integer

Sampling = Literal["greedy", "default"]
TEMPERATURES: dict[Sampling, float] = {"greedy": 0.0, "default": SamplingParams().temperature}


@dataclass(frozen=True)
class Plan:
    """The sizes of the tests. A depth of 0, or fewer than 2 sequences, skips that test."""

    prompt: int = 512
    tokens: int = 128
    depth: int = 2048
    sequences: int = 16
    rounds: int = 5

    def __post_init__(self) -> None:
        for each in fields(self):
            least = 0 if each.name in ("depth", "sequences") else 1
            check_integer(each.name, getattr(self, each.name), least, 1 << 20)

    @property
    def cells(self) -> int:
        """The cells that the tests need; prefixes of depth and sequences stay while the others run."""
        together = 2 * self.sequences * (self.tokens + 1) if self.sequences > 1 else 0
        return max(self.prompt, self.tokens) + self.depth + self.tokens + 2 + together

    def check(self, context_length: int) -> None:
        """Raise `InvalidRequest` unless the tests fit into a context."""
        longest = max(self.prompt + 1, self.depth + self.tokens + 2, 2 * self.tokens + 2)
        if longest > context_length:
            raise InvalidRequest(
                f"the tests need {longest} tokens and the context has {context_length}; "
                "choose smaller sizes (a depth of 0 leaves that test out)"
            )


@dataclass
class Row:
    """One test: `samples` are tokens a second, one a round.

    A pass of it has `batch` tokens, each with `seen` tokens before it on average, and gives `wanted` logits.
    """

    test: str
    sampling: Sampling
    call: str  # the public call
    tokens: int  # counted in a round
    batch: int
    wanted: int
    seen: int
    limit: Limit | None = None
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return median(self.samples)

    @property
    def share(self) -> float | None:
        """The median's share of the limit, if that is known."""
        return self.median / self.limit.tokens_per_second if self.limit else None


def speed(
    llm: LLM,
    plan: Plan,
    note: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Run the tests of a plan; `note` is called with progress notes.

    >>> [row.test for row in speed(llm, Plan(depth=0, sequences=0))]
    ['pp512', 'tg128', 'tg128']
    """
    plan.check(llm.context_length)
    with ExitStack() as open_sequences:
        note("computing prefixes")
        tests = list(_Tests(llm, plan, open_sequences))
        for number in range(1, plan.rounds + 1):
            for row, seconds in tests:
                note(f"round {number} of {plan.rounds}: {row.test}, {row.sampling}")
                row.samples.append(row.tokens / seconds())
    return [row for row, _ in tests]


def set_limits(rows: list[Row], llm: LLM, cost: Cost, machine: Machine, kv: str) -> None:
    """Give each row its limit."""
    for row in rows:
        # Each sequence of a pass wants logits once; the tokens of a prompt read K and V together.
        seen_bytes = row.wanted * cache_bytes(llm, kv, row.seen)
        row.limit = limit(cost, machine, tokens=row.batch, wanted=row.wanted, seen_bytes=seen_bytes)


class _Tests:
    """The tests in order, each with the function that runs it once and returns the seconds."""

    def __init__(self, llm: LLM, plan: Plan, open_sequences: ExitStack) -> None:
        self.llm = llm
        self.plan = plan
        self.open_sequences = open_sequences
        self.rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[tuple[Row, Callable[[], float]]]:
        llm, n, prompt, depth = self.llm, self.plan.tokens, self.plan.prompt, self.plan.depth
        if isinstance(llm.backend, Settles):
            llm.backend.settle()
        llm.generate(self._ids(min(32, prompt)), max_tokens=2, ignore_eos=True)  # warms up
        yield Row(f"pp{prompt}", "greedy", "llm.generate", prompt, prompt, 1, prompt), self._prefill
        for sampling in TEMPERATURES:
            row = Row(f"tg{n}", sampling, "llm.stream", n, 1, 1, n // 2)
            yield row, partial(self._decode, sampling)
        if depth:
            deep = self._behind([self._ids(depth)])
            row = Row(f"tg{n} @ d{depth}", "greedy", "llm.step", n, 1, 1, depth + n // 2)
            yield row, partial(deep, "greedy")
        if (n_sequences := self.plan.sequences) > 1:
            wide = self._behind([self._ids(n) for _ in range(n_sequences)])
            for sampling in TEMPERATURES:
                name, seen = f"tg{n} x{n_sequences}", n + n // 2
                row = Row(name, sampling, "llm.step", n * n_sequences, n_sequences, n_sequences, seen)
                yield row, partial(wide, sampling)

    def _ids(self, count: int) -> list[int]:
        known = min(self.llm.spec.n_vocab, self.llm.tokenizer.n_vocab)
        drawn: list[int] = self.rng.integers(0, known, count).tolist()
        return drawn

    def _prefill(self) -> float:
        prompt = self._ids(self.plan.prompt)
        begun = time.perf_counter()
        self.llm.generate(prompt, max_tokens=1, temperature=0, ignore_eos=True)
        return time.perf_counter() - begun

    def _decode(self, sampling: Sampling) -> float:
        prompt, temperature = self._ids(1), TEMPERATURES[sampling]
        begun = time.perf_counter()
        for _ in self.llm.stream(
            prompt, max_tokens=self.plan.tokens, temperature=temperature, ignore_eos=True, seed=0
        ):
            pass
        return time.perf_counter() - begun

    def _behind(self, prompts: list[list[int]]) -> Callable[[Sampling], float]:
        """A test that decodes after prompts, which are computed once and forked in every round."""
        prefixes = [self.open_sequences.enter_context(self.llm.sequence(prompt)) for prompt in prompts]

        def measure(sampling: Sampling) -> float:
            with ExitStack() as forks:
                sequences = [forks.enter_context(p.fork(seed=i)) for i, p in enumerate(prefixes)]
                for turn in range(self.plan.tokens + 1):
                    if turn == 1:  # the first took the prefix's logits; from here on, every step is a pass
                        begun = time.perf_counter()
                    steps = self.llm.step(sequences, temperature=TEMPERATURES[sampling])
                    for sequence, step in zip(sequences, steps, strict=True):
                        if step.is_end:  # is not appended, but this is about speed
                            sequence.append(step.token)
                return time.perf_counter() - begun

        for prefix in prefixes:
            prefix.fork().close()  # computes it
        return measure
