"""The state of a table of slots, and its repair after a change that an exception interrupted."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

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
