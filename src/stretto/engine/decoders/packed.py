"""Packed continuations: many ways to go on from one text, scored in one pass.

The continuations are a tree: those that begin alike share the tokens they begin with. Each branch has a lane,
a sequence that shares the text's cells, so that a token attends to the text and to the tokens of its own
branch alone; its logits are those of a fork that goes that way, bit for bit where the backend promises that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, DeviceRow
from stretto.drafts.base import ROOT, DraftTree
from stretto.engine.decoders.passes import Pass, grouped, rows_at_once
from stretto.engine.rows import Row, Rows, host_row, host_rows
from stretto.engine.runner import Runner
from stretto.engine.track import Source, Track
from stretto.engine.tree_cells import open_lanes
from stretto.sampling.transforms import log_probabilities

Floats = NDArray[np.float32]

MAX_LANES = 256  # branches that are computed together


class _Packed:
    """A source that computes a text, and behind it the trees of its continuations, one after the other."""

    step_tokens = 0  # none of it is decoding
    at_end = False

    def __init__(self, runner: Runner, track: Track) -> None:
        self.track = track
        self._runner = runner
        self._most = rows_at_once(runner)  # tokens in a pass
        self._tree = DraftTree()
        self._n_done = 0  # nodes of the tree that have been computed
        self._n_entered = 0  # nodes in the batch that is being computed
        self._lanes: list[int] = []
        self._through: list[list[int]] = []  # the branches of each node
        self._wanted: list[list[int]] = []  # the tokens behind each node that are scored
        self._scores: dict[tuple[int, int], float] = {}  # of a token behind a node of the tree

    @property
    def n_pending(self) -> int:
        """How many tokens the next pass may take."""
        return self.track.n_missing or min(len(self._tree) - self._n_done, self._most)

    @property
    def has_logits(self) -> bool:
        """Whether the text or the present tree has been computed."""
        return self.track.logits is not None and self._n_done == len(self._tree)

    def fill(self, batch: Batch, most: int) -> int:
        """Put tokens of the text into a batch, or up to `most` of the tree, each with a row."""
        track, first = self.track, self._n_done
        self._n_entered = 0
        if track.n_missing:
            return track.fill(batch, most)
        if not first:
            open_lanes(self._runner.cells, track.id, self._lanes)
        end = self._runner.cells.end(track.id)
        last = min(len(self._tree), first + min(most, self._most))
        for node in range(first + 1, last + 1):
            members = [self._lanes[branch] for branch in self._through[node]]
            position = end + self._tree.depths[node] - 1
            batch.add(self._tree.tokens[node - 1], position, members, logits=True)
        self._n_entered = last - first
        return self._n_entered

    def take(self, rows: Rows) -> None:
        """Take the logits of the text's last token, or keep what the tree's rows say of the next tokens."""
        if not self._n_entered:
            self.track.take(rows)
            return
        for node, row in enumerate(host_rows(rows), self._n_done + 1):
            self._note(node, row)
        self._n_done += self._n_entered
        self._n_entered = 0

    def take_row(self, row: Row | DeviceRow) -> None:
        """Take the logits of the text's last token."""
        self.track.take_row(host_row(row))

    def redo_last(self) -> None:
        """Make the text's last token pending again."""
        self.track.redo_last()

    def _note(self, node: int, row: Row) -> None:
        tokens = self._wanted[node]
        for token, logprob in zip(tokens, log_probabilities(row, tokens).tolist(), strict=True):
            self._scores[node, token] = logprob

    def start(self, continuations: list[list[int]]) -> None:
        """Begin with the next continuations; the last token of each is only predicted."""
        self.close()
        self._tree = DraftTree(tokens[:-1] for tokens in continuations)
        self._through = self._tree.branches_of()
        self._wanted = [[] for _ in self._through]
        for tokens in continuations:
            for node, token in self._followed(tokens):
                if token not in self._wanted[node]:
                    self._wanted[node].append(token)
        self._lanes = [self._runner.borrowed.take(self) for _ in self._tree.branches]
        self._note(ROOT, self.track.host_logits())

    def scores(self, continuation: list[int]) -> Floats:
        """float32[n]: the log-probability of each token of a continuation that has been computed."""
        found = [self._scores[node, token] for node, token in self._followed(continuation)]
        return np.array(found, np.float32)

    def _followed(self, tokens: list[int]) -> Iterator[tuple[int, int]]:
        """The tokens of a continuation, each with the node before it."""
        node = ROOT
        for token in tokens:
            yield node, token
            node = self._tree.child(node, token)

    def close(self) -> None:
        """Free the cells of the present tree."""
        self._runner.borrowed.give_back(self, self._lanes)
        self._lanes, self._tree, self._n_done, self._scores = [], DraftTree(), 0, {}


class PackedPass(Pass):
    """The log-probability of each token of many continuations of one text."""

    reuses_prefix = True

    def __init__(self, runner: Runner, track: Track, continuations: list[list[int]], park: bool) -> None:
        super().__init__(runner.metrics)
        track.running = True
        self._runner = runner
        self._park = park
        self._continuations = continuations
        self._found: list[Floats] = [np.empty(0, np.float32)] * len(continuations)
        room = min(runner.chunk, len(runner.cells) - len(track))
        self._groups = grouped([len(tokens) - 1 for tokens in continuations], room, _most_lanes(runner))
        self._group: list[int] = []
        self._source = _Packed(runner, track)

    @property
    def sources(self) -> Sequence[Source]:
        """The text, and then the present group of continuations."""
        return (self._source,)

    def advance(self, n_running: int) -> None:
        """Take the scores of a group, and begin with the next one or end."""
        for number in self._group:
            self._found[number] = self._source.scores(self._continuations[number])
        self._group = next(self._groups, [])
        if self._group:
            self._source.start([self._continuations[number] for number in self._group])
        else:
            super().advance(n_running)

    def result(self) -> list[Floats]:
        """Of each continuation, float32[its tokens]."""
        return self._found

    def close(self) -> None:
        """Free the cells of continuations; the text stays for prompts to come, if it was one."""
        self._source.close()
        self._runner.close_track(self._source.track, park=self._park)


def _most_lanes(runner: Runner) -> int:
    """How many continuations are computed together.

    With recurrent layers each needs a state, and some backends cannot have a cell in several lanes at once.
    """
    return MAX_LANES if runner.slots is None and runner.backend.capabilities.merge else 1
