"""Speculative decoding: a drafter proposes tokens, one pass computes all, and sampling accepts or not.

The sampled tokens are those of a request without drafts, with the same random numbers: each row of the pass
has the logits that a step of its own would have given, bit for bit where the backend promises that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.backends.base import Backend, HasNextHead, NextHead, OpensHeads
from stretto.drafts.base import BranchProposer, CacheDrafter, Drafter, DraftLength, DraftTree, Proposer
from stretto.drafts.model import HeadDrafts, NextTokenDrafts
from stretto.engine.next_tokens import HeadCells, NextTokens
from stretto.engine.runner import Runner
from stretto.engine.track import Track
from stretto.errors import InvalidRequest, Unsupported
from stretto.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stretto.structured import Constraint

MAX_DRAFT_ROWS = 16  # that drafts may add to a pass, for all requests together


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
        self.n_drafted = self.n_accepted = 0  # tokens
        self._proposer: Proposer
        if isinstance(drafter, NextTokenDrafts | HeadDrafts):
            path = drafter.path if isinstance(drafter, HeadDrafts) else None
            self._proposer = track.states = _follow(runner, track, path, tokenizer.end_ids)
        elif isinstance(drafter, CacheDrafter):
            self._proposer = drafter.begin_among(tokenizer, self._cached)
        else:
            self._proposer = drafter.begin(tokenizer)
        if branches > 1 and not isinstance(self._proposer, BranchProposer):
            self._proposer.close()
            raise InvalidRequest(
                f"the proposer {type(self._proposer).__name__} drafts one continuation; "
                "leave draft_branches out, or give it a method propose_branches",
                param="draft_branches",
                value=branches,
            )
        self._length = DraftLength(drafter.most)
        self._lanes = [runner.borrowed.take(self) for _ in range(branches - 1)]

    def propose(self, track: Track, room: int, n_running: int, guide: Constraint | None = None) -> None:
        """Put a draft behind the track's last token, if one is worth a try; a grammar cuts it short."""
        if track is not self._track:  # a fork, in place of the track that it was made for
            track.states, self._track.states, self._track = self._track.states, None, track
        n_rows = min(MAX_DRAFT_ROWS // max(1, n_running), self._runner.chunk - 1)
        most = min(self._length.next(), room, n_rows)
        if most <= 0:
            return
        draft = DraftTree()
        for continuation in self._continuations(track.tokens, most):
            several = self._runner.check_tokens(continuation)[:most]
            if several and guide is not None:
                several = several[: guide.n_valid(several)]
            draft.add(several, n_rows)
        if draft:
            track.propose(draft, self._lanes)

    def _continuations(self, tokens: list[int], most: int) -> Sequence[Sequence[int]]:
        if self._branches > 1 and isinstance(self._proposer, BranchProposer):
            return self._proposer.propose_branches(tokens, most, self._branches)[: self._branches]
        return (self._proposer.propose(tokens, most),)

    def _cached(self) -> Iterator[Sequence[object]]:
        """The cached texts that its text might share cells with, the last used first."""
        for entry in reversed(list(self._runner.prefixes.entries())):
            if entry.domain == self._domain:
                yield entry.items

    def learn(self, draft: DraftTree, node: int) -> None:
        """Note how a draft did: it was accepted down to a node."""
        n_accepted = draft.depths[node]
        self._length.learn(draft.depth, n_accepted)
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
        self._proposer.close()


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
