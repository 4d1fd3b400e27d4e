"""The lattice of a parallel run: its members as nodes, and the paths through them.

An edge goes from each member of a set to each member of the next one. Its log-probability is the model's own,
of the second after the first, from the forward pass that computed the first. So a run has scored all of its
edges, and nothing is computed again.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import exp
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest
from stretto.parallel.types import Member, ParallelStep
from stretto.sampling.params import check_integer
from stretto.sampling.sampler import RandomStream


def as_html(lattice: dict[str, Any]) -> str:
    """One HTML file in which a lattice can be explored, given as `Lattice.to_dict` gives it.

    Text of tokens is never read as HTML, and nothing is fetched.
    """
    page = FilePath(__file__).with_name("lattice.html").read_text(encoding="utf-8")
    return page.replace("DATA", json.dumps(lattice, allow_nan=False).replace("<", "\\u003c"), 1)


Logs = NDArray[np.float64]  # float64[members before, members]
Way = tuple[float, int, int]  # to a member: its log-probability, the member before, which of the ways there

MAX_PATHS = 1024
MAX_DRAWS = 1000  # until a path fits the grammar


@dataclass(frozen=True)
class Path:
    """A path through the lattice: one member of each set.

    `logprob` is the sum of its edges' log-probabilities: the first token after the prompt, each later one
    after the one before it, as the model saw it in the run, that is with the whole sets before it in view.
    """

    text: str
    tokens: list[int]
    members: list[int]  # index in each set
    logprob: float


@dataclass(frozen=True)
class Lattice:
    """The members of a run as nodes (step, member), and the edges between sets that follow each other.

    `read(tokens)` gives the text of a path, `accepts(tokens)` says whether a grammar allows it.
    """

    steps: list[ParallelStep]
    read: Callable[[list[int]], str] = field(repr=False)
    accepts: Callable[[list[int]], bool] = field(repr=False, default=lambda tokens: True)

    # -- paths --

    def paths(self, k: int = 1) -> list[Path]:
        """The k most probable paths, the best first; fewer if there are fewer."""
        check_integer("k", k, 1, MAX_PATHS)
        most = k
        while True:
            found = [path for path in self._best(most) if self.accepts(self._tokens(path[0]))]
            if len(found) >= k or most >= min(MAX_PATHS, self.n_paths):
                return [self._path(members, logprob) for members, logprob in found[:k]]
            most = min(2 * most, MAX_PATHS)

    def sample(self, seed: int | None = None) -> Path:
        """A path drawn from the lattice's own distribution: each in proportion to its probability."""
        stream = RandomStream(seed)
        for _ in range(MAX_DRAWS):
            members = self._draw(stream)
            if self.accepts(self._tokens(members)):
                return self._path(members, self.logprob(members))
        raise InvalidRequest(f"none of {MAX_DRAWS} paths drawn fits the grammar; take `paths(1)`")

    def logprob(self, members: list[int]) -> float:
        """The log-probability of a path, given by the index of its member in each set."""
        total, before = 0.0, 0
        for logs, member in zip(self._logs, members, strict=True):
            total += float(logs[before, member])
            before = member
        return total

    @property
    def n_paths(self) -> int:
        """How many paths there are."""
        n = 1
        for step in self.steps:
            n *= step.width
        return n

    # -- as data --

    def edges(self) -> Iterator[tuple[tuple[int, int], tuple[int, int], float]]:
        """((step, member), (next step, member), log-probability of the second after the first), for all."""
        for at, logs in enumerate(self._logs[1:], 1):
            for i, row in enumerate(logs.tolist()):
                for j, logprob in enumerate(row):
                    yield (at - 1, i), (at, j), logprob

    def to_dict(self) -> dict[str, Any]:
        """Nodes, edges and the best path as plain data; an edge that a grammar forbids is left out."""
        nodes = [
            {"step": at, "member": j, "position": step.position, **asdict(member)}
            for at, step in enumerate(self.steps)
            for j, member in enumerate(step.members)
        ]
        edges = [
            {"from": list(start), "to": list(end), "logprob": logprob}
            for start, end, logprob in self.edges()
            if logprob > -np.inf
        ]
        return {"nodes": nodes, "edges": edges, "path": [step.chosen for step in self.steps]}

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_html(self) -> str:
        """A page that needs nothing else: sets side by side, the edges of the member that is selected."""
        return as_html(self.to_dict())

    def to_dot(self) -> str:
        """A graph in the DOT language, for Graphviz: pruned members are dashed, the run's path is bold."""
        lines = ["digraph parallel {", "  rankdir=LR;", "  node [shape=box];"]
        for at, step in enumerate(self.steps):
            for j, member in enumerate(step.members):
                style = "" if member.kept else ", style=dashed"
                bold = ", penwidth=2" if j == step.chosen else ""
                lines.append(f"  s{at}_{j} [label={_label(member)}{style}{bold}];")
        for (i, a), (k, b), logprob in self.edges():
            if logprob > -np.inf:
                lines.append(f'  s{i}_{a} -> s{k}_{b} [label="{exp(logprob):.2f}"];')
        return "\n".join([*lines, "}"]) + "\n"

    # -- by set --

    @cached_property
    def _logs(self) -> list[Logs]:
        """The edges into each set; the first from the prompt alone."""
        return [np.array(step.path_logs(), np.float64) for step in self.steps]

    def _tokens(self, members: list[int]) -> list[int]:
        return [step.members[member].id for step, member in zip(self.steps, members, strict=True)]

    def _path(self, members: list[int], logprob: float) -> Path:
        tokens = self._tokens(members)
        return Path(self.read(tokens), tokens, members, logprob)

    def _best(self, k: int) -> list[tuple[list[int], float]]:
        """The k best paths and their log-probabilities: each member keeps the k best that end there."""
        kept: list[list[Way]] = [[(0.0, 0, 0)]]
        history = []
        for logs in self._logs:
            following = []
            for j in range(logs.shape[1]):
                ways = (
                    (score + float(logs[i, j]), i, rank)
                    for i, ends in enumerate(kept)
                    for rank, (score, _, _) in enumerate(ends)
                    if logs[i, j] > -np.inf
                )
                following.append(heapq.nsmallest(k, ways, key=lambda way: (-way[0], way[1], way[2])))
            history.append(following)
            kept = following
        ends = [
            (score, j, rank) for j, several in enumerate(kept) for rank, (score, _, _) in enumerate(several)
        ]
        best = heapq.nsmallest(k, ends, key=lambda end: (-end[0], end[1], end[2]))
        return [(_traced(history, j, rank), score) for score, j, rank in best]

    def _draw(self, stream: RandomStream) -> list[int]:
        """Draw a path: sum up backwards what can follow each member, then draw members forwards."""
        ahead = [np.zeros(step.width) for step in self.steps]  # log of the sum over all ways on
        for at in range(len(self.steps) - 2, -1, -1):
            ahead[at] = _log_sum(self._logs[at + 1] + ahead[at + 1])
        members, before = [], 0
        for logs, rest in zip(self._logs, ahead, strict=True):
            row = logs[before] + rest
            shares = np.exp(row - row.max()).cumsum()
            before = int(np.searchsorted(shares, stream.uniform() * shares[-1], side="right"))
            members.append(before)
        return members


def _traced(history: list[list[list[Way]]], member: int, rank: int) -> list[int]:
    """The members of a path, from its end back to the first set."""
    members = []
    for kept in reversed(history):
        members.append(member)
        _, member, rank = kept[member][rank]
    return members[::-1]


def _log_sum(rows: Logs) -> NDArray[np.float64]:
    """log Σ exp of each row; −inf of a row without any way on."""
    most = rows.max(axis=1, keepdims=True)
    safe = np.where(most > -np.inf, most, 0.0)
    with np.errstate(divide="ignore"):
        summed: NDArray[np.float64] = np.log(np.exp(rows - safe).sum(axis=1)) + safe[:, 0]
    return summed


def _label(member: Member) -> str:
    text = member.text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\\\n")
    return f'"{text}\\n{member.probability:.2f}"'
