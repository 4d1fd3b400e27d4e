"""Where a track's recurrent states stay as checkpoints, from which it or others can be continued again.

They are taken every so many tokens, near the end of prompts, and where a prompt parts from an earlier one. A
pass over a prompt ends there, since the state behind a token is there only at the end of a pass.
"""

from __future__ import annotations

from stretto.cache.slots import Slots

CHECKPOINT_TOKENS = 256  # from a checkpoint of a text that goes on to the next, at least
TAIL_TOKENS = 8  # of a prompt behind its checkpoint: templates often rewrite the last few in the next turn
MIN_REPLAY_TOKENS = 32  # that a checkpoint must save to be worth a pass that ends there


class Checkpoints:
    """The checkpoints of one track."""

    __slots__ = ("_due", "_last", "_sequence", "_slots", "_wanted")

    def __init__(self, slots: Slots, sequence: int) -> None:
        self._slots = slots
        self._sequence = sequence
        self._wanted: set[int] = set()  # positions where another prompt parts from this one
        self._last = self._due = 0  # the position after the last pass, and where the next checkpoint is due

    def want(self, position: int) -> None:
        """Have one taken at a position that is still to come, if it is worth one."""
        if position > self._slots.position(self._sequence):
            self._wanted.add(position)

    def limit(self, n_placed: int, n_tokens: int, most: int) -> int:
        """Of `most` tokens behind the first `n_placed` those up to the next checkpoint."""
        last = self._slots.last_checkpoint(self._sequence)
        stops = {stop for stop in self._wanted if stop - last >= MIN_REPLAY_TOKENS}
        tail = n_tokens - TAIL_TOKENS
        if tail - max(n_placed, last) >= MIN_REPLAY_TOKENS:
            stops.add(tail)
        return min((stop - n_placed for stop in stops if n_placed < stop < n_placed + most), default=most)

    def mark(self, position: int, n_tokens: int) -> None:
        """After a pass that ended at a position: have the state stay, where a checkpoint is due."""
        if self._last <= position < self._due and position == n_tokens and not self._wanted:  # a decode step
            self._last = position
            return
        slots, sequence = self._slots, self._sequence
        last = slots.last_checkpoint(sequence)
        self._last, self._due = position, last + CHECKPOINT_TOKENS
        n = position - last
        is_stop = position == n_tokens - TAIL_TOKENS or position in self._wanted
        if n >= CHECKPOINT_TOKENS or (n >= MIN_REPLAY_TOKENS and is_stop):
            slots.mark(sequence)
        if self._wanted:
            self._wanted = {wanted for wanted in self._wanted if wanted > position}
