"""What one step of the engine will do: the scheduler makes it, the engine applies it."""

from __future__ import annotations

from typing import Any

from stretto.engine.request import Request
from stretto.engine.runner import Match, Work
from stretto.engine.track import Source, Track

AnyRequest = Request[Any]


class Plan:
    """One step, before anything is done.

    - `admitted`: requests that start, each track with the prefix that it can share
    - `redo`: sources whose last token is computed again, as an interrupted step left them without logits
    - `copies`: (from, to): preempted hypotheses of one search share cells again
    - `work`: the tokens of the forward pass; `hidden`: those of a pass for final hidden states
    - `requests`: those that run, with the admitted ones
    - `only_decodes`: each source of `work` has just its last token pending, behind its last cell
    - `waiting_for_images`: tracks that have images among their pending tokens
    - `blocked`: no request can go on before an image is encoded
    - `missing_cells`, `missing_slots`: more than can be made free; then `victim` has to go, the rest waits
    - `repeats`: the next step is the same for the same requests, of which some may have ended; whoever took
      this one's tokens says so, and `work` stays as it was
    - `is_shared`: by calls of different sizes; `n_learned`: times that the costs of rows changed since
    """

    __slots__ = (
        "admitted",
        "blocked",
        "claimed",
        "copies",
        "hidden",
        "is_shared",
        "missing_cells",
        "missing_slots",
        "n_learned",
        "only_decodes",
        "redo",
        "repeats",
        "requests",
        "victim",
        "waiting_for_images",
        "work",
    )

    def __init__(self) -> None:
        self.requests: list[AnyRequest] = []
        self.admitted: list[tuple[AnyRequest, list[tuple[Track, Match]]]] = []
        self.redo: list[Source] = []
        self.copies: list[tuple[Track, Track]] = []
        self.work: list[Work] = []
        self.hidden: list[Work] = []
        self.waiting_for_images: list[Track] = []
        self.only_decodes = False
        self.blocked = False
        self.missing_cells = self.missing_slots = 0
        self.claimed: list[Match] = []  # prefixes that cannot be evicted for them
        self.victim: AnyRequest | None = None
        self.repeats = self.is_shared = False
        self.n_learned = 0

    @property
    def is_short(self) -> bool:
        """Whether cells or slots are missing, so that there is no pass."""
        return bool(self.missing_cells or self.missing_slots)
