"""What came of a parallel run, and the ways to show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from stretto.engine.types import FinishReason, Timings, Usage
from stretto.parallel.lattice import Lattice, Path
from stretto.parallel.types import ParallelStep

MIN_REPEATED = 12  # tokens: shorter repetitions are ordinary language
MAX_PERIOD = 64


@dataclass(frozen=True)
class Loop:
    """The end of a run that says the same again and again: from which step on, how many steps each time."""

    start: int
    period: int
    times: int


@dataclass
class ParallelText:
    """A parallel run: `steps[i].members[j]` are its tokens.

    `text` is the best path through them, `paths(k)` are the k best, `sample_path(seed)` draws one.
    `brackets` shows the sets (`sat[ on/ under/ beside] the`), `raw` is everything in a row. `lattice` has
    nodes and edges. `cells_freed` are those that pruning has given back.
    """

    steps: list[ParallelStep]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    lattice: Lattice = field(repr=False)
    cells_freed: int = 0
    rest: str = field(default="", repr=False)  # of a character that was never finished

    def __repr__(self) -> str:
        return f"<ParallelText {self.brackets!r}: {len(self.steps)} steps, {self.finish_reason}>"

    def __str__(self) -> str:
        return self.brackets

    # -- as text --

    @property
    def text(self) -> str:
        """The best path: the most probable way through the sets, not the most probable member of each."""
        return "".join(step.text for step in self.steps) + self.rest

    @property
    def brackets(self) -> str:
        r"""The sets in brackets. Where `[` is text, and in a set `/` and `]` too, a `\` stands before it."""
        return "".join(step.brackets for step in self.steps) + self.rest

    @property
    def raw(self) -> str:
        """All members of all sets, one after the other."""
        return "".join(
            step.text if step.width == 1 or step.cut else "".join(member.text for member in step.members)
            for step in self.steps
        )

    @property
    def tokens(self) -> list[int]:
        """The ids of the best path."""
        return [step.token for step in self.steps if step.token is not None]

    @property
    def logprob(self) -> float:
        """The log-probability of the best path, as the model saw its tokens in the run."""
        return self.lattice.logprob([step.chosen or 0 for step in self.steps])

    def paths(self, k: int = 1) -> list[Path]:
        """The k most probable paths, the best first. The first is `text`, unless `delay` decided sooner."""
        return self.lattice.paths(k)

    def sample_path(self, seed: int | None = None) -> Path:
        """A path drawn by its probability among all paths of the lattice."""
        return self.lattice.sample(seed)

    # -- as numbers --

    @property
    def mean_width(self) -> float:
        """Members a step, on average; 0 without steps."""
        return sum(step.width for step in self.steps) / len(self.steps) if self.steps else 0.0

    @property
    def parallel_share(self) -> float:
        """Which part of the steps has more than one member."""
        return sum(step.width > 1 for step in self.steps) / len(self.steps) if self.steps else 0.0

    @property
    def n_pruned(self) -> int:
        """How many members were removed from the cache."""
        return sum(not member.kept for step in self.steps for member in step.members)

    @property
    def loop(self) -> Loop | None:
        """The repetition that the run ended in, if it did."""
        return find_loop([tuple(member.id for member in step.members) for step in self.steps])

    # -- as data --

    def to_dict(self) -> dict[str, Any]:
        """All of it but the attention, as plain data. An edge goes from [step, member] to [step, member]."""
        return {
            "text": self.text,
            "logprob": self.logprob,
            "brackets": self.brackets,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "steps": [
                {
                    "position": step.position,
                    "text": step.text,
                    "chosen": step.chosen,
                    "threshold": step.threshold,
                    "members": [asdict(member) for member in step.members],
                }
                for step in self.steps
            ],
            "edges": [
                {"from": list(start), "to": list(end), "probability": probability}
                for start, end, probability in self.edges()
            ],
            "usage": {
                "prompt_tokens": self.usage.prompt_tokens,
                "cached_tokens": self.usage.cached_tokens,
                "steps": len(self.steps),
                "members": sum(step.width for step in self.steps),
                "pruned": self.n_pruned,
                "cells_freed": self.cells_freed,
            },
            "timings": {**asdict(self.timings), "tokens_per_second": self.timings.tokens_per_second},
            "loop": None if self.loop is None else asdict(self.loop),
        }

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def edges(self) -> Iterator[tuple[tuple[int, int], tuple[int, int], float]]:
        """((step, member), (next step, member), probability of the second after the first), for all."""
        for step in self.steps[1:]:
            for i, row in enumerate(step.edges):
                for j, probability in enumerate(row):
                    yield (step.index - 1, i), (step.index, j), probability

    def graph(self) -> str:
        """The run as a graph in the DOT language, for Graphviz."""
        return self.lattice.to_dot()


def find_loop(items: list[tuple[int, ...]]) -> Loop | None:
    """The repetition at the end of a list: the shortest period that comes three times and is long enough."""
    for period in range(1, min(MAX_PERIOD, len(items) // 3) + 1):
        n = period
        while n < len(items) and items[-n - 1] == items[-n - 1 + period]:
            n += 1
        if n >= 3 * period and n >= MIN_REPEATED:
            return Loop(len(items) - n, period, n // period)
    return None
