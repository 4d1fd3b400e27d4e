"""Which rows of a batch advance which recurrent state. For `Batch.place`, when the model has state slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto.cache.cells import Cells
from stretto.cache.checks import check_members
from stretto.cache.slots import Group

REMEDY = "give each sequence its tokens in order, one at each position, from the end of its cells on"


@dataclass
class StateRows:
    """The groups of sequences that advance together, with their ends, and the group of each row."""

    groups: list[Group] = field(default_factory=list)
    group_of: list[int] = field(default_factory=list)


def state_rows(sequences: Sequence[tuple[int, ...]], positions: Sequence[int], cells: Cells) -> StateRows:
    """Group the rows of a batch by the state that they advance; `Unsupported` if that has no exact meaning.

    The rows of a sequence must follow its last cell and each other. A row in several sequences advances the
    state that they share, so all rows of these sequences must be in all of them.
    """
    assert cells.slots is not None
    found: dict[tuple[int, ...], int] = {}  # the index of a group, by its sequences
    ends: list[int] = []
    members: list[tuple[int, ...]] = []
    rows = StateRows()
    for several, position in zip(sequences, positions, strict=True):
        index = found.get(several)
        if index is None:
            key = tuple(check_members(tuple(sorted(several))))
            index = found.get(key)
            if index is None:
                _check_group(key, members, cells)
                index = found[key] = len(members)
                members.append(key)
                ends.append(cells.end(key[0]))
            found[several] = index
        if position != ends[index]:
            raise cells.slots.unsupported(
                f"a token at position {position} where the state stands at {ends[index]}", REMEDY
            )
        ends[index] += 1
        rows.group_of.append(index)
    rows.groups = list(zip(members, ends, strict=True))
    return rows


def _check_group(key: tuple[int, ...], others: list[tuple[int, ...]], cells: Cells) -> None:
    """Raise unless some sequences share one state, or have none, and are in no other group."""
    slots = cells.slots
    assert slots is not None
    states = {slots.state(sequence) for sequence in key}
    if len(states) > 1 or any(not set(key).isdisjoint(other) for other in others):
        raise slots.unsupported(f"a token in the sequences {list(key)}, which have different pasts", REMEDY)
