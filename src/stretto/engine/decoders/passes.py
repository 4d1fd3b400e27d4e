"""Passes without a text: the logits of sequences, the score of a text, embeddings.

They are scheduled like generations: batched with them, cancellable, within the same limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, DeviceRow, Head, Pooling, Projects, Row, Rows, host_row, host_rows
from stretto.drafts.base import ROOT, DraftTree
from stretto.engine.metrics import Metrics
from stretto.engine.output import Ending, Output
from stretto.engine.params import Hook
from stretto.engine.runner import Runner
from stretto.engine.track import Source, Track, open_lanes
from stretto.engine.types import Logprob
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import RandomStream, shaped
from stretto.sampling.transforms import log_probabilities, measure

Floats = NDArray[np.float32]
Measured = tuple[float, tuple[Logprob, ...]]  # of a token, and of the most probable ones in its place

MAX_LOGITS = 1 << 24  # held at once by a pass that scores: 64 MB


class Pass:
    """The parts that all of them have in common: no hooks, no drafts, no events."""

    hooks: tuple[Hook, ...] = ()
    can_preempt = False
    reuses_prefix = False
    hidden = False
    number = 0
    is_exact = True

    def __init__(self, metrics: Metrics) -> None:
        self.output: Output[object] = Output(metrics)

    @property
    def sources(self) -> Sequence[Source]:
        """The sources that are computed."""
        raise NotImplementedError  # each kind of pass has its own

    def hook_rows(self) -> list[tuple[Row, list[int]]]:
        """None: hooks are for texts."""
        return []

    def hooks_wrote(self) -> bool:
        """False: there are none."""
        return False

    def advance(self, n_running: int) -> None:
        """All of it has been computed."""
        self.output.end(Ending("stop"))

    def result(self) -> Any:
        """What the caller gets."""
        return None

    def end_early(self, ending: Ending) -> None:
        """End from outside."""
        self.output.end(ending)

    def forget_logits(self) -> None:
        """No hook changes them."""

    def drop_draft(self) -> bool:
        """There are none."""
        return False

    def preempt(self) -> None:
        """It keeps its cells: `can_preempt` is False."""

    def close(self) -> None:
        """Free the cells."""


class LogitsPass(Pass):
    """The logits behind the last token of some sequences, which belong to their callers and stay theirs."""

    reuses_prefix = True

    def __init__(self, runner: Runner, tracks: Sequence[Track]) -> None:
        super().__init__(runner.metrics)
        self._tracks = list(tracks)

    @property
    def sources(self) -> Sequence[Source]:
        """The sequences; one that its caller has closed or emptied meanwhile is left out."""
        return [track for track in self._tracks if track.tokens and not track.closed]


class _AllRows:
    """A source that wants a row for every token of a text, and computes it from the start."""

    step_tokens = 0  # none of it is decoding
    at_end = False

    def __init__(self, track: Track, most: int) -> None:
        self.track = track
        self._most = most  # tokens in a pass

    @property
    def n_pending(self) -> int:
        """How many tokens the next pass may take."""
        return min(self.track.n_missing, self._most)

    @property
    def has_logits(self) -> bool:
        """Whether all rows have been taken."""
        return not self.track.n_missing

    def fill(self, batch: Batch, most: int) -> int:
        """Put up to `most` tokens into a batch, each with a row."""
        track, n = self.track, self.track.n_placed
        several = track.tokens[n : n + min(most, self._most)]
        for position, token in enumerate(several, track.start):
            batch.add(token, position, (track.id,), logits=True)
        return len(several)

    def take(self, rows: Rows) -> None:
        """Take the rows of the last tokens that got cells."""
        raise NotImplementedError  # scores and embeddings do it differently

    def take_row(self, row: Row | DeviceRow) -> None:
        """Take a single row."""
        self.take(host_row(row)[np.newaxis])

    def redo_last(self) -> None:
        """Nothing is ever redone: a pass that fails takes its cells back."""


class _Scored(_AllRows):
    def __init__(
        self, track: Track, tokens: list[int], most: int, sampling: SamplingParams | None = None
    ) -> None:
        super().__init__(track, most)
        self._tokens = tokens
        self._sampling = sampling
        self.scores = np.empty(len(tokens) - 1, np.float32)

    def take(self, rows: Rows) -> None:
        """Keep the log-probability of the token behind each row."""
        first = self.track.n_placed - len(rows)
        for i, row in enumerate(host_rows(rows), first):
            if self._sampling is not None:
                row = shaped(row, self._sampling, self._tokens[: i + 1], i + 1)
            self.scores[i] = log_probabilities(row, [self._tokens[i + 1]])[0]


class _Measured(_Scored):
    """Scores with the most probable tokens beside each."""

    def __init__(self, track: Track, tokens: list[int], most: int, n_top: int) -> None:
        super().__init__(track, tokens, most)
        self._n_top = n_top
        self.measured: list[Measured] = []

    def take(self, rows: Rows) -> None:
        """Keep the log-probabilities of the token behind each row and of the best ones."""
        first = self.track.n_placed - len(rows)
        for i, row in enumerate(host_rows(rows), first + 1):
            logprob, best = measure(row, self._tokens[i], self._n_top)
            self.measured.append((logprob, tuple(Logprob(*one) for one in best)))


OneSource = TypeVar("OneSource", bound=Source)


class _OneSourcePass(Pass, Generic[OneSource]):
    """A pass over one source."""

    def __init__(self, runner: Runner, source: OneSource) -> None:
        super().__init__(runner.metrics)
        source.track.running = True
        self._runner = runner
        self._source = source

    @property
    def sources(self) -> Sequence[Source]:
        """The source."""
        return (self._source,)


class ScorePass(_OneSourcePass[_Scored]):
    """The log-probability of each token of a text after its first, given those before it."""

    def __init__(
        self, runner: Runner, track: Track, tokens: list[int], sampling: SamplingParams | None = None
    ) -> None:
        track.checkpoints = None  # nothing of it stays
        super().__init__(runner, _Scored(track, tokens, rows_at_once(runner), sampling))

    def result(self) -> Floats:
        """float32[n-1]."""
        return self._source.scores

    def close(self) -> None:
        """Free the cells: a text that was scored is not kept for prompts to come."""
        self._runner.close_track(self._source.track, park=False)


class MeasurePass(_OneSourcePass[_Measured]):
    """As `ScorePass`, with the `n_top` most probable tokens at each place; the cells stay for prompts."""

    def __init__(self, runner: Runner, track: Track, tokens: list[int], n_top: int) -> None:
        track.checkpoints = None
        super().__init__(runner, _Measured(track, tokens, rows_at_once(runner), n_top))

    def result(self) -> list[Measured]:
        """Of each token after the first."""
        return self._source.measured

    def close(self) -> None:
        """Park the cells: the text is usually continued next."""
        whole = not self._source.track.n_missing and self._runner.prefix_cache and self._runner.slots is None
        self._runner.close_track(self._source.track, park=whole)


def rows_at_once(runner: Runner) -> int:
    """How many rows of logits a pass may have."""
    return max(1, min(runner.chunk, MAX_LOGITS // runner.spec.n_vocab))


class _Embedded(_AllRows):
    """A text whose hidden states are pooled, in one pass where tokens attend to later ones."""

    def __init__(
        self, track: Track, pooling: Pooling, most: int, types: list[int] | None, whole: bool
    ) -> None:
        super().__init__(track, len(track) if whole else most)
        self._pooling = pooling
        self._types = types
        self._whole = whole
        self._sum: NDArray[np.floating] = np.zeros((0, 0))  # [1, n_embd]; a mean is a sum in one order

    def fill(self, batch: Batch, most: int) -> int:
        """Put the whole text into a batch, or up to `most` tokens of it."""
        if not self._whole:
            return super().fill(batch, most)
        batch.add_text(self.track.tokens, self.track.id, self._types)
        return len(self.track)

    def take(self, rows: Rows) -> None:
        """Add the hidden states to the sum, or keep the first or the last."""
        rows = host_rows(rows)
        if not len(rows):
            return
        if self._pooling == "mean":
            before = self._sum if len(self._sum) else np.zeros((1, rows.shape[1]), np.float64)
            self._sum = np.add.reduce(np.concatenate((before, rows)), axis=0, keepdims=True)
        elif self._pooling == "last" or not len(self._sum):
            self._sum = rows[-1:] if self._pooling == "last" else rows[:1]

    @property
    def pooled(self) -> Floats:
        """float32[n_embd], once all rows have been taken."""
        n = len(self.track) if self._pooling == "mean" else 1
        vector: Floats = (self._sum[0] / n).astype(np.float32)
        return vector


class _States(_Embedded):
    """A text whose hidden states are all kept."""

    def take(self, rows: Rows) -> None:
        """Keep the hidden states behind those before."""
        rows = host_rows(rows)
        self._sum = np.concatenate((self._sum, rows)) if len(self._sum) else np.array(rows)

    @property
    def pooled(self) -> Floats:
        """float32[n_tokens, n_embd]."""
        return self._sum.astype(np.float32)


class EmbedPass(Pass):
    """What a head makes of texts: their final hidden states, pooled and projected. Texts share passes."""

    hidden = True
    source: type[_Embedded] = _Embedded

    def __init__(
        self,
        runner: Runner,
        texts: Sequence[list[int]],
        head: Head,
        normalize: bool,
        types: Sequence[list[int]] | None = None,
    ) -> None:
        super().__init__(runner.metrics)
        self._runner = runner
        self._texts = texts
        self._types = types
        self._head = head
        self._normalize = normalize
        self._made = np.zeros((len(texts), head.n_out(runner.spec.n_embd)), np.float32)
        most = len(texts) if runner.slots is None else max(1, runner.slots.n_slots // 4)
        room = min(runner.chunk, len(runner.cells))
        self._groups = grouped([len(text) for text in texts], room, most)
        self._group: list[int] = []
        self._sources: list[_Embedded] = []
        self._start(next(self._groups))

    @property
    def sources(self) -> Sequence[Source]:
        """The texts of the present group."""
        return self._sources

    def advance(self, n_running: int) -> None:
        """Finish this group of texts, and start the next one or end."""
        if self._sources:
            self._keep([source.pooled for source in self._sources])
        self.close()
        group = next(self._groups, None)
        if group is None:
            super().advance(n_running)
        else:
            self._start(group)

    def _keep(self, pooled: list[Floats]) -> None:
        """Keep what the head makes of the texts of the present group."""
        made = np.stack(pooled)
        for projection in self._head.projections:
            backend = self._runner.backend
            assert isinstance(backend, Projects)  # embed_request has asked for it
            made = backend.project(projection.name, made)
        self._made[self._group] = made

    def _start(self, group: list[int]) -> None:
        self._group = group
        runner, whole = self._runner, not self._runner.spec.causal
        for number in group:
            track = runner.new_track(self._texts[number], RandomStream(0))
            track.make_private()
            track.running = True
            track.checkpoints = None
            types = None if self._types is None else self._types[number]
            self._sources.append(self.source(track, self._head.pooling, runner.chunk, types, whole))

    def result(self) -> Any:
        """float32[n_texts, numbers of the head], L2-normalised if asked for."""
        if not self._normalize:
            return self._made
        return normalized(self._made)

    def close(self) -> None:
        """Free the cells."""
        sources, self._sources = self._sources, []
        for source in sources:
            self._runner.close_track(source.track, park=False)


class StatesPass(EmbedPass):
    """The final hidden states of texts, of each token; nothing is pooled."""

    source = _States

    def __init__(self, runner: Runner, texts: Sequence[list[int]]) -> None:
        self._states: dict[int, Floats] = {}
        super().__init__(runner, texts, Head("mean"), False)

    def _keep(self, pooled: list[Floats]) -> None:
        self._states.update(zip(self._group, pooled, strict=True))

    def result(self) -> list[Floats]:
        """float32[n_tokens, n_embd] of each text."""
        return [self._states[number] for number in range(len(self._states))]


def normalized(vectors: Floats) -> Floats:
    """float32[n, size]: the vectors, each divided by its length."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt(np.square(wide).sum(axis=1, keepdims=True))
    divided: Floats = (wide / np.maximum(lengths, 1e-12)).astype(np.float32)
    return divided


def grouped(lengths: list[int], room: int, most: int) -> Iterator[list[int]]:
    """Numbers of up to `most` texts that fit into one pass together; a longer text has passes of its own."""
    group: list[int] = []
    total = 0
    for number, length in enumerate(lengths):
        if group and (total + length > room or len(group) == most):
            yield group
            group, total = [], 0
        group.append(number)
        total += length
    yield group


# Packed continuations: many ways to go on from one text, scored in one pass.
#
# The continuations are a tree: those that begin alike share the tokens they begin with. Each branch has a
# lane, a sequence that shares the text's cells, so that a token attends to the text and to the tokens of
# its own branch alone; its logits are those of a fork that goes that way, bit for bit where the backend
# promises that.

MAX_LANES = 256  # branches that are computed together


class _Packed:
    """A source that computes a text, and behind it the trees of its continuations, one after the other."""

    step_tokens = 0  # none of it is decoding
    at_end = False

    def __init__(self, runner: Runner, track: Track, sampling: SamplingParams | None = None) -> None:
        self.track = track
        self._runner = runner
        self._sampling = sampling
        self._most = rows_at_once(runner)  # tokens in a pass
        self._tree = DraftTree()
        self._n_done = 0  # nodes of the tree that have been computed
        self._n_entered = 0  # nodes in the batch that is being computed
        self._lanes: list[int] = []
        self._through: list[list[int]] = []  # the branches of each node
        self._wanted: list[list[int]] = []  # the tokens behind each node that are scored
        self._before: list[list[int]] = []  # those from the root to each node
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
        if self._sampling is not None:
            text, n_prompt = self.track.text_tokens
            row = shaped(row, self._sampling, [*text, *self._before[node]], n_prompt)
        for token, logprob in zip(tokens, log_probabilities(row, tokens).tolist(), strict=True):
            self._scores[node, token] = logprob

    def start(self, continuations: list[list[int]]) -> None:
        """Begin with the next continuations; the last token of each is only predicted."""
        self.close()
        self._tree = DraftTree(tokens[:-1] for tokens in continuations)
        self._through = self._tree.list_branches()
        self._wanted = [[] for _ in self._through]
        self._before = [[] for _ in self._through]
        for tokens in continuations:
            for n_before, (node, token) in enumerate(self._followed(tokens)):
                self._before[node] = tokens[:n_before]
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


class PackedPass(_OneSourcePass[_Packed]):
    """The log-probability of each token of many continuations of one text."""

    reuses_prefix = True

    def __init__(
        self,
        runner: Runner,
        track: Track,
        continuations: list[list[int]],
        park: bool,
        sampling: SamplingParams | None = None,
    ) -> None:
        super().__init__(runner, _Packed(runner, track, sampling))
        self._park = park
        self._continuations = continuations
        self._found: list[Floats] = [np.empty(0, np.float32)] * len(continuations)
        room = min(runner.chunk, len(runner.cells) - len(track))
        self._groups = grouped([len(tokens) - 1 for tokens in continuations], room, _most_lanes(runner))
        self._group: list[int] = []

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
