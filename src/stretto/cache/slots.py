"""State slots: the states of recurrent layers, each with a position and the sequences that share it.

    slots = Slots(16)
    moves = slots.advance([((7,), 12)])     # sequence 7 goes to position 12, in place or in a new slot
    slots.copy(7, 8)                        # a fork: 8 joins 7's slots; no state is copied
    slots.cut(7, 8)                         # back to the last state at or before position 8

A recurrent layer (gated delta net, short convolution, Mamba-2) keeps no K and V of each token, but a *state*
that sums up all tokens before a position. A sequence's slots stand in order of position: the last one is its
state, which the next tokens advance; those before it are its *checkpoints*, from which it can be continued
again. A slot that others share, or that is to stay as a checkpoint, is copied before it is advanced. A slot
without sequences is free.

This is bookkeeping only: `advance` tells which states the backend must copy and clear. `Cells` keeps cells
and slots at one position; the prefix cache evicts checkpoints, the least recently used first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from stretto.errors import CacheFull, Unsupported

# The state of a table of slots, and its repair after a change that an exception interrupted.

Args = ParamSpec("Args")
Result = TypeVar("Result")
Table = TypeVar("Table", bound="SlotState")


def change(
    method: Callable[Concatenate[Table, Args], Result],
) -> Callable[Concatenate[Table, Args], Result]:
    """A method that leaves a note if an exception that it does not raise itself ends it."""

    @wraps(method)
    def noted(self: Table, /, *args: Args.args, **options: Args.kwargs) -> Result:
        self.is_interrupted = True
        result = method(self, *args, **options)
        self.is_interrupted = False
        return result

    return noted


class SlotState:
    """The position of each slot, the sequences' slots, which of them stay, and which are free.

    The sequences' slots and the positions are the truth; `repair` counts all else from them.
    """

    def __init__(self, n_slots: int, max_checkpoints: int = 0, kind: str = "recurrent") -> None:
        self.n_slots = n_slots
        self.max_checkpoints = max_checkpoints  # that stay beside the states of sequences in use
        self.kind = kind  # of the layers, for messages
        self.positions = [-1] * n_slots
        self.members: list[set[int]] = [set() for _ in range(n_slots)]
        self.views: dict[int, list[int]] = {}  # the slots of each sequence, in order of position
        self.parked: set[int] = set()  # sequences that may lose their states
        self._free = list(range(n_slots - 1, -1, -1))  # a stack; low slots are handed out first
        self._marked: set[int] = set()  # to stay as checkpoints
        self._pins: dict[int, set[int]] = {}  # slots that a sequence may have to return to
        self._used = [0] * n_slots  # when each was last taken or shared
        self._clock = 0
        self.is_interrupted = False  # in a change that came to no end
        self.has_changed = False  # whether there may be more checkpoints since this was last set to False

    def check(self) -> None:
        """Raise `RuntimeError` if the table contradicts itself anywhere."""
        members: list[set[int]] = [set() for _ in range(self.n_slots)]
        for sequence, view in self.views.items():
            places = [self.positions[slot] for slot in view]
            if not view or places != sorted(set(places)) or places[0] <= 0:
                raise RuntimeError(f"sequence {sequence} has slots at positions {places}")
            for slot in view:
                members[slot].add(sequence)
        if members != self.members:
            raise RuntimeError("the sets of sequences are not those of the slots")
        free = {slot for slot in range(self.n_slots) if not members[slot]}
        if len(self._free) != len(free) or free != set(self._free):
            raise RuntimeError("the free slots are not those without a sequence")
        if any((self.positions[slot] == -1) != (slot in free) for slot in range(self.n_slots)):
            raise RuntimeError("positions must be −1 in free slots and only there")
        if (self._marked | set(self._pins)) & free or not self.parked <= set(self.views):
            raise RuntimeError("a free slot is marked or pinned, or a sequence without slots is parked")

    def repair(self) -> None:
        """Count anew all that follows from the sequences' slots and their positions."""
        members: list[set[int]] = [set() for _ in range(self.n_slots)]
        for sequence, view in list(self.views.items()):
            kept: list[int] = []
            for slot in view:
                if self.positions[slot] > (self.positions[kept[-1]] if kept else 0):
                    kept.append(slot)
                    members[slot].add(sequence)
            if kept:
                self.views[sequence] = kept
            else:
                del self.views[sequence]
        self.members = members
        self.positions = [at if members[slot] else -1 for slot, at in enumerate(self.positions)]
        self._free = [slot for slot in range(self.n_slots - 1, -1, -1) if not members[slot]]
        self._marked = {slot for slot in self._marked if members[slot]}
        pins = {slot: pinned & members[slot] for slot, pinned in self._pins.items()}
        self._pins = {slot: pinned for slot, pinned in pins.items() if pinned}
        self.parked &= self.views.keys()
        self.has_changed = True
        self.is_interrupted = False


Group = tuple[Sequence[int], int]  # sequences that share a state, and the position that they advance to


@dataclass(frozen=True)
class Moves:
    """What a pass does to slots: row by row of the groups, and what has to be copied or cleared before it."""

    slots: list[int] = field(default_factory=list)  # of each group
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)  # copied from `sources`, in order
    cleared: list[int] = field(default_factory=list)  # of sequences that have no state yet


class Slots(SlotState):
    """A fixed number of slots and the sequences that use them.

    `positions` has an entry for every slot: how many tokens its state sums up, −1 where it is free.
    """

    def __repr__(self) -> str:
        return f"<Slots: {self.n_used} of {self.n_slots} used by {len(self.views)} sequences>"

    @property
    def n_free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """How many slots belong to at least one sequence."""
        return self.n_slots - len(self._free)

    # -- reading --

    def state(self, sequence: int) -> int | None:
        """The slot with a sequence's state; None if it has no tokens yet."""
        view = self.views.get(sequence)
        return None if view is None else view[-1]

    def position(self, sequence: int) -> int:
        """How many tokens a sequence's state sums up."""
        view = self.views.get(sequence)
        return 0 if view is None else self.positions[view[-1]]

    def nearest(self, sequence: int, position: int) -> int:
        """The position of a sequence's last state at or before a position; 0 if there is none."""
        view = self.views.get(sequence, ())
        at = bisect_right(view, position, key=self.positions.__getitem__)
        return self.positions[view[at - 1]] if at else 0

    def last_checkpoint(self, sequence: int) -> int:
        """The position of the last state that stays when the sequence is continued; 0 if there is none."""
        view = self.views.get(sequence, [])
        for slot in view[::-1]:
            if slot in self._marked or (slot != view[-1] and slot not in self._pins):
                return self.positions[slot]
        return 0

    def required(self) -> set[int]:
        """The slots that cannot be evicted: states of sequences that are not parked, and pinned ones."""
        parked = self.parked
        return {view[-1] for sequence, view in self.views.items() if sequence not in parked} | set(self._pins)

    def checkpoints(self) -> list[int]:
        """The slots that can be evicted, the least recently used first."""
        required = self.required()
        found = [slot for slot, members in enumerate(self.members) if members and slot not in required]
        return sorted(found, key=self._used.__getitem__)

    def users(self, slot: int) -> list[int]:
        """The sequences in use whose state is in a slot."""
        return [s for s in self.members[slot] if s not in self.parked and self.views[s][-1] == slot]

    def n_needed(self, groups: Iterable[Sequence[int]], *, hard: bool = False) -> int:
        """How many free slots it takes to advance these groups of sequences.

        `hard`: if checkpoints and parked sequences give up the slots that they share with them.
        """
        needed, users, on = 0, Counter[int](), Counter[int]()
        for group in groups:
            slot = self.state(group[0])
            if slot is None:
                needed += 1
            else:
                users[slot] += len(group)
                on[slot] += 1
        for slot, n in on.items():
            if hard:
                alone = slot not in self._pins and len(self.users(slot)) == users[slot]
            else:
                alone = not self._is_kept(slot) and len(self.members[slot]) == users[slot]
            needed += n - alone
        return needed

    def as_data(self) -> list[dict[str, Any]]:
        """The slots in use, as plain data."""
        return [
            {"slot": slot, "position": self.positions[slot], "sequences": sorted(members)}
            for slot, members in enumerate(self.members)
            if members
        ]

    # -- changing --

    def advance(self, groups: Sequence[Group]) -> Moves:
        """Advance the states of groups of sequences; all or nothing: without enough slots `CacheFull`.

        The sequences of a group share one state, or have none, and share it afterwards.
        """
        self.check_room([members for members, _ in groups])
        moves = Moves()
        for members, position in groups:
            slot = self._own(members, moves)
            self.positions[slot] = position
            moves.slots.append(slot)
        return moves

    def advance_each(self, sequences: Sequence[int], positions: Sequence[int]) -> Moves:
        """`advance` for a decode step: each sequence by the token at its position. There must be room."""
        moves, states = Moves(), self.positions
        for sequence, position in zip(sequences, positions, strict=True):
            view = self.views.get(sequence)
            slot = -1 if view is None else view[-1]
            if slot < 0 or len(self.members[slot]) > 1 or slot in self._marked or slot in self._pins:
                slot = self._own((sequence,), moves)
            states[slot] = position + 1
            moves.slots.append(slot)
        return moves

    def put(self, sequence: int, position: int) -> int:
        """Give a sequence a slot behind those that it has, for a state that comes from elsewhere."""
        if not self._free:
            raise self.full(1, 0)
        self.is_interrupted = True
        slot = self._take((sequence,))
        self.positions[slot] = position
        self.is_interrupted = False
        return slot

    @change
    def settle(self, sequence: int, position: int) -> None:
        """Note that a sequence's state, which is its alone, stands at another position than was planned."""
        view = self.views[sequence]
        self.positions[view[-1]] = position
        before = self.positions[view[-2]] if len(view) > 1 else 0
        if position <= before:  # nothing was computed: the checkpoint is the same state
            self._leave(sequence, view.pop())
            self._drop_if_empty(sequence)

    @change
    def copy(self, source: int, target: int, stop: int | None = None) -> None:
        """Put the slots of `source` at positions up to `stop` also into `target`, where it has none."""
        if source == target:
            return
        mine = self.views.get(target, [])
        for slot in self.views.get(source, ()):
            position = self.positions[slot]
            if stop is not None and position > stop:
                break
            at = bisect_left(mine, position, key=self.positions.__getitem__)
            if at == len(mine) or self.positions[mine[at]] != position:
                mine.insert(at, slot)
                self.members[slot].add(target)
                self.touch(slot)
        if mine:
            self.views[target] = mine

    @change
    def cut(self, sequence: int, position: int = 0) -> None:
        """Take a sequence out of its slots behind a position; without one, out of all of them."""
        view = self.views.get(sequence)
        while view and self.positions[view[-1]] > position:
            self._leave(sequence, view.pop())
        self._drop_if_empty(sequence)

    def mark(self, sequence: int) -> None:
        """Have a sequence's state stay as a checkpoint when the sequence goes on."""
        slot = self.state(sequence)
        if slot is not None and self.max_checkpoints:
            self._marked.add(slot)

    @change
    def pin(self, sequence: int) -> int | None:
        """Keep a sequence's state, whatever comes, until `unpin`; return its slot."""
        slot = self.state(sequence)
        if slot is not None:
            self._pins.setdefault(slot, set()).add(sequence)
        return slot

    @change
    def unpin(self, sequence: int, slot: int) -> None:
        """Undo `pin`; the state goes, unless it is the sequence's last or is to stay."""
        self._unpin(sequence, slot)
        view = self.views.get(sequence, [])
        if slot in view[:-1] and not self._is_kept(slot):
            view.remove(slot)
            self._leave(sequence, slot)

    def touch(self, slot: int) -> None:
        """Note that a slot was used: it is evicted last."""
        self._clock += 1
        self._used[slot] = self._clock
        self.has_changed = True

    @change
    def evict(self, slot: int, keep: Collection[int] = ()) -> list[int]:
        """Take all sequences but `keep` out of a slot; return those whose state it was."""
        lost = []
        for sequence in self.members[slot] - set(keep):
            view = self.views[sequence]
            if view[-1] == slot:
                lost.append(sequence)
            view.remove(slot)
            self._leave(sequence, slot)
            self._drop_if_empty(sequence)
        self._marked.discard(slot)
        return lost

    # -- errors --

    def full(self, needed: int, free: int) -> CacheFull:
        """The error that says how many slots there are, and what to do."""
        return CacheFull(
            f"{needed} state slots are needed for {self.kind} layers and {free} of {self.n_slots} are free; "
            "close sequences, or load the model with a larger max_running in limits=stretto.Limits(…)",
            n_needed=needed,
            n_free=free,
        )

    def unsupported(self, what: str, remedy: str) -> Unsupported:
        """The error for an edit without an exact meaning."""
        return Unsupported(
            f"{what} has no exact meaning for {self.kind} layers, whose state sums up all tokens before it; "
            f"{remedy}"
        )

    def check_room(self, groups: Sequence[Sequence[int]]) -> None:
        """Raise `CacheFull` unless there are free slots to advance these groups."""
        if len(groups) > len(self._free) and (needed := self.n_needed(groups)) > len(self._free):
            raise self.full(needed, len(self._free))

    def check_copy(self, source: int, start: int, end: int, into_used: bool) -> None:
        """Raise unless positions start to end of a sequence end at one of its states and begin a new one."""
        if start or into_used or self.nearest(source, end) != end:
            raise self.unsupported(
                f"copying positions {start} to {end} of sequence {source}",
                "copy all of it, or from 0 up to a checkpoint, into an empty sequence",
            )

    def check_removal(self, is_tail: bool) -> None:
        """Raise unless tokens are removed from the end of a sequence."""
        if not is_tail:
            raise self.unsupported(
                "removing tokens from the middle", "truncate the sequence and append what should follow"
            )

    # -- within --

    def _is_kept(self, slot: int) -> bool:
        return slot in self._marked or slot in self._pins

    def _take(self, members: Sequence[int]) -> int:
        slot = self._free.pop()
        self.members[slot] = set(members)
        for sequence in members:
            self.views.setdefault(sequence, []).append(slot)
        self.touch(slot)
        return slot

    def _own(self, members: Sequence[int], moves: Moves) -> int:
        """The slot that some sequences alone advance: theirs, a copy of it, or a cleared one."""
        slot = self.state(members[0])
        if slot is None:
            slot = self._take(members)
            moves.cleared.append(slot)
        elif self._is_kept(slot) or len(self.members[slot]) > len(members):
            moves.sources.append(slot)
            slot = self._replace(slot, members)
            moves.targets.append(slot)
        return slot

    def _replace(self, old: int, members: Sequence[int]) -> int:
        """Take a slot for the state of some sequences, which leave the old one unless it is to stay."""
        if self._is_kept(old):
            self.touch(old)
        else:
            for sequence in members:
                self.views[sequence].pop()
                self.members[old].discard(sequence)
        return self._take(members)

    def _leave(self, sequence: int, slot: int) -> None:
        """Take a sequence out of a slot's set; its view has been changed."""
        self._unpin(sequence, slot)
        self.members[slot].discard(sequence)
        self.has_changed = True
        if not self.members[slot]:
            self.positions[slot] = -1
            self._marked.discard(slot)
            self._free.append(slot)

    def _unpin(self, sequence: int, slot: int) -> None:
        pins = self._pins.get(slot)
        if pins is not None:
            self.has_changed = True
            pins.discard(sequence)
            if not pins:
                del self._pins[slot]

    def _drop_if_empty(self, sequence: int) -> None:
        if not self.views.get(sequence, (sequence,)):
            del self.views[sequence]
            self.parked.discard(sequence)
