"""Speculative decoding: a drafter proposes tokens, one pass computes all, and sampling accepts or not.

The sampled tokens are those of a request without drafts, with the same random numbers: each row of the pass
has the logits that a step of its own would have given, bit for bit where the backend promises that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.backends.base import Backend, HasNextHead, NextHead, OpensHeads
from stretto.drafts.base import BranchProposer, CacheDrafter, Drafter, DraftLength, DraftTree, Proposer
from stretto.drafts.model import AutoDrafts, HeadDrafts, NextTokenDrafts
from stretto.engine.draft_costs import Odds, RowCosts, best_length
from stretto.engine.next_tokens import HeadCells, NextTokens
from stretto.engine.runner import Runner
from stretto.engine.track import Track
from stretto.errors import InvalidRequest, Unsupported
from stretto.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stretto.structured import Constraint

MAX_DRAFT_ROWS = 16  # that drafts may add to a pass, for all requests together
MAX_PAID_ROWS = 64  # the same where their cost is measured
MAX_REFUSALS = 64  # tokens, after which a head that does not pay is left out: its states slow passes down


@dataclass
class _Kind:
    """One way to draft for a text: how long drafts are, how often right, and what drafting takes."""

    proposer: Proposer
    length: DraftLength
    odds: Odds = field(default_factory=Odds)
    token_seconds: float = 0.0
    n_refused: int = 0  # tokens in a row for which it did not pay


class Speculation:
    """Proposes drafts for one text, as long as they pay: a line of tokens, or a tree of several branches."""

    def __init__(
        self, runner: Runner, drafter: Drafter, tokenizer: Tokenizer, track: Track, branches: int = 1
    ) -> None:
        if branches > 1:
            _check_trees(runner)
        self._runner = runner
        self._branches = branches
        self._domain = track.domain
        self._track = track
        self._costs: RowCosts | None = None  # where drafts have to pay
        self._lanes: list[int] = []
        self.n_drafted = self.n_accepted = 0  # tokens
        if isinstance(drafter, AutoDrafts):
            self._costs = runner.row_costs = runner.row_costs or RowCosts()
            self._kinds = self._begin_all(drafter, tokenizer)
        else:
            self._kinds = [self._begin(drafter, tokenizer)]
        self._used = self._kinds[0]
        proposer = self._used.proposer
        if branches > 1 and (self._costs is not None or not isinstance(proposer, BranchProposer)):
            self.close()
            name = type(drafter if self._costs is not None else proposer).__name__
            raise InvalidRequest(
                f"the proposer {name} drafts one continuation; "
                "leave draft_branches out, or give it a method propose_branches",
                param="draft_branches",
                value=branches,
            )
        self._lanes = [runner.borrowed.take(self) for _ in range(branches - 1)]

    def _begin(self, drafter: Drafter, tokenizer: Tokenizer) -> _Kind:
        """Drafts of one kind for the text."""
        proposer: Proposer
        if isinstance(drafter, NextTokenDrafts | HeadDrafts):
            path = drafter.path if isinstance(drafter, HeadDrafts) else None
            proposer = self._track.states = _follow(self._runner, self._track, path, tokenizer.end_ids)
        elif isinstance(drafter, CacheDrafter):
            proposer = drafter.begin_among(tokenizer, self._cached)
        else:
            proposer = drafter.begin(tokenizer)
        return _Kind(proposer, DraftLength(drafter.most))

    def _begin_all(self, drafter: AutoDrafts, tokenizer: Tokenizer) -> list[_Kind]:
        """Drafts of each kind that the model has, and that reads its texts."""
        kinds = [self._begin(drafter.suffix, tokenizer)]
        backend = self._runner.backend
        has_layer = isinstance(backend, HasNextHead) and backend.next_head is not None
        head = drafter.head or (NextTokenDrafts() if has_layer else None)
        if head is not None and not self._track.has_images:
            kinds.append(self._begin(head, tokenizer))
        return kinds

    def propose(self, track: Track, room: int, n_running: int, guide: Constraint | None = None) -> None:
        """Put a draft behind the track's last token, if one is worth a try; a grammar cuts it short."""
        if track is not self._track:  # a fork, in place of the track that it was made for
            track.states, self._track.states, self._track = self._track.states, None, track
        allowed = MAX_DRAFT_ROWS if self._costs is None else MAX_PAID_ROWS
        n_rows = min(allowed // max(1, n_running), self._runner.chunk - 1)
        for kind, most in self._choose(min(room, n_rows), n_running):
            draft = DraftTree()
            for continuation in self._continuations(kind, track.tokens, most):
                several = self._runner.check_tokens(continuation)[:most]
                if several and guide is not None:
                    several = several[: guide.n_valid(several)]
                draft.add(several, n_rows)
            if draft:
                self._used = kind
                track.propose(draft, self._lanes)
                return

    def _choose(self, room: int, n_running: int) -> list[tuple[_Kind, int]]:
        """The kinds to try, the one that promises most first, and how many tokens they are to draft."""
        found: list[tuple[float, _Kind, int]] = []
        for kind in list(self._kinds):
            most, gain = min(kind.length.next(), room), 1.0
            if most > 0 and self._costs is not None:
                odds = kind.odds.probability
                most, gain = best_length(self._costs, odds, most, n_running, kind.token_seconds)
                if not most:
                    self._refuse(kind)
            if most > 0:
                kind.n_refused = 0
                found.append((gain, kind, most))
        found.sort(key=lambda one: -one[0])
        return [(kind, most) for _, kind, most in found]

    def _refuse(self, kind: _Kind) -> None:
        """Note that a kind does not pay now."""
        kind.odds.fade()
        kind.token_seconds *= Odds.FADING  # it is not measured while nothing is drafted
        kind.n_refused += 1
        if isinstance(kind.proposer, NextTokens) and kind.n_refused > MAX_REFUSALS:
            self._track.states = None
            self._kinds.remove(kind)
            kind.proposer.close()

    def _continuations(self, kind: _Kind, tokens: list[int], most: int) -> Sequence[Sequence[int]]:
        if self._branches > 1 and isinstance(kind.proposer, BranchProposer):
            return kind.proposer.propose_branches(tokens, most, self._branches)[: self._branches]
        begun = time.thread_time()  # whatever else the machine does meanwhile
        draft = kind.proposer.propose(tokens, most)
        seconds = (time.thread_time() - begun) / max(1, len(draft))
        kind.token_seconds += 0.2 * (seconds - kind.token_seconds) if kind.token_seconds else seconds
        return (draft,)

    def _cached(self) -> Iterator[Sequence[object]]:
        """The cached texts that its text might share cells with, the last used first."""
        for entry in reversed(list(self._runner.prefixes.entries())):
            if entry.domain == self._domain:
                yield entry.items

    def learn(self, draft: DraftTree, node: int) -> None:
        """Note how a draft did: it was accepted down to a node."""
        n_accepted = draft.depths[node]
        self._used.length.learn(draft.depth, n_accepted)
        self._used.odds.learn(draft.depth, n_accepted)
        self.n_drafted += len(draft)
        self.n_accepted += n_accepted
        metrics = self._runner.metrics
        metrics.drafts += 1
        metrics.drafted_tokens += len(draft)
        metrics.accepted_tokens += n_accepted

    def close(self) -> None:
        """Close the drafter's state for this text."""
        self._track.states = None
        self._runner.borrowed.give_back(self, self._lanes)
        for kind in self._kinds:
            kind.proposer.close()


def _check_trees(runner: Runner) -> None:
    """Raise unless the branches of a draft can be computed side by side."""
    for wanted in ("merge", "fork"):
        runner.backend.capabilities.require(wanted, runner.backend.name)
    if runner.slots is not None:
        raise runner.slots.unsupported("a tree of drafts", "leave draft_branches out")


def _follow(runner: Runner, track: Track, path: Path | None, ends: frozenset[int]) -> NextTokens:
    """Drafts for one text, by the head in a file or by the model's own; `Unsupported` if there is none."""
    value = "mtp" if path is None else str(path)
    if track.has_images:
        raise Unsupported(
            "heads for drafts (MTP, EAGLE-3) read texts without images; leave draft out, or the images",
            param="draft",
            value=value,
        )
    with runner.lock:
        if path not in runner.heads:
            head = _model_head(runner.backend) if path is None else _open_head(runner.backend, path)
            runner.heads[path] = HeadCells(head, len(runner.cells), ends)
        return NextTokens(runner.heads[path], track.domain)


def _model_head(backend: Backend) -> NextHead:
    if not isinstance(backend, HasNextHead):
        raise _not_run(backend, "layers for drafts (MTP)", "mtp")
    if backend.next_head is None:
        raise Unsupported(
            "the model's file has no layer for drafts (MTP, nextn); draft='lookup' or 'suffix' needs none",
            param="draft",
            value="mtp",
        )
    return backend.next_head


def _open_head(backend: Backend, path: Path) -> NextHead:
    if not isinstance(backend, OpensHeads) or backend.open_head is None:
        raise _not_run(backend, "heads for drafts (EAGLE-3)", str(path))
    return backend.open_head(path)


def _not_run(backend: Backend, what: str, value: str) -> Unsupported:
    return Unsupported(
        f"the {backend.name} backend does not run {what}; backend='native' does, and draft='lookup' works "
        "with all",
        param="draft",
        value=value,
    )
