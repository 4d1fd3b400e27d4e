"""Speculative decoding: a drafter proposes tokens, one pass computes all, and sampling accepts or not.

The sampled tokens are those of a request without drafts, with the same random numbers: each row of the pass
has the logits that a step of its own would have given, bit for bit where the backend promises that.
"""

from __future__ import annotations

from stretto.drafts.base import Drafter, DraftLength
from stretto.engine.runner import Runner
from stretto.engine.track import Track
from stretto.structured import Constraint
from stretto.text.tokenizer import Tokenizer

MAX_DRAFT_ROWS = 16  # that drafts may add to a pass, for all requests together


class Speculation:
    """Proposes drafts for one text, as long as they pay."""

    def __init__(self, runner: Runner, drafter: Drafter, tokenizer: Tokenizer) -> None:
        self._runner = runner
        self._proposer = drafter.begin(tokenizer)
        self._length = DraftLength(drafter.most)

    def propose(self, track: Track, room: int, n_running: int, guide: Constraint | None = None) -> None:
        """Put a draft behind the track's last token, if one is worth a try; a grammar cuts it short."""
        most = min(self._length.next(), room, MAX_DRAFT_ROWS // max(1, n_running), self._runner.chunk - 1)
        if most <= 0:
            return
        draft = self._runner.check_tokens(self._proposer.propose(track.tokens, most))[:most]
        if draft and guide is not None:
            draft = draft[: guide.n_valid(draft)]
        if draft:
            track.propose(draft)

    def learn(self, n_draft: int, n_accepted: int) -> None:
        """Note how a draft did."""
        self._length.learn(n_draft, n_accepted)
        self._runner.metrics.drafted_tokens += n_draft
        self._runner.metrics.accepted_tokens += n_accepted

    def close(self) -> None:
        """Close the drafter's state for this text."""
        self._proposer.close()
