"""States of recurrent layers in the runner's hands: room for them, and copies before a pass.

A model without recurrent layers has no `States`, and nothing here is called.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.backends.base import Backend
from stretto.cache.prefix import PrefixCache
from stretto.cache.slots import Moves, Slots

Groups = Sequence[Sequence[int]]  # of sequences, each with one state


class States:
    """The slots of a backend."""

    def __init__(self, backend: Backend, slots: Slots, prefixes: PrefixCache) -> None:
        self.slots = slots
        self._backend = backend
        self._prefixes = prefixes

    def make_room(self, groups: Groups) -> None:
        """See that there are slots to advance these groups: checkpoints go, then `CacheFull` is raised."""
        slots = self.slots
        wanted = slots.n_needed(groups)
        if wanted <= slots.n_free or self._prefixes.evict_states(wanted):
            return
        for group in groups:  # parked sequences and checkpoints give up the states that they share with these
            slot = slots.state(group[0])
            if slot is not None:
                self._prefixes.forget_state(slot, keep=slots.users(slot))
        wanted = slots.n_needed(groups)
        if wanted > slots.n_free:
            raise slots.full(wanted, slots.n_free)

    def n_missing(self, groups: Groups, n_drafts: int = 0) -> int:
        """How many slots it takes to advance these groups, if that is more than can be had; else 0."""
        slots = self.slots
        if len(groups) + n_drafts <= slots.n_free:
            return 0
        wanted = slots.n_needed(groups, hard=True) + n_drafts
        return wanted if wanted > slots.n_free + len(slots.checkpoints()) else 0

    def apply(self, moves: Moves) -> None:
        """Clear and copy states, before the pass that advances them."""
        if moves.cleared:
            self._backend.clear_slots(np.array(moves.cleared, np.int32))
        if moves.targets:
            self._backend.copy_slots(np.array(moves.sources, np.int32), np.array(moves.targets, np.int32))
        self._prefixes.trim_states()

    def own(self, sequence: int, position: int) -> int:
        """Give a sequence a state of its own to advance to a position outside of a batch; return its slot."""
        self.make_room([(sequence,)])
        moves = self.slots.advance([((sequence,), position)])
        self.apply(moves)
        return moves.slots[0]
