"""Cells that are used for a while under ids of their own, and what an exception interrupted.

A sequence of cells has a track, is parked, or is borrowed by something: a file that is being written, the
lanes of parallel tokens. Cells that none of these has are free; the runner finds them when it tidies up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from weakref import WeakKeyDictionary

from stretto.cache.cells import Cells
from stretto.cache.prefix import PrefixCache


class Borrower:
    """An owner of borrowed ids, where there is no other."""


class Borrowed:
    """Ids by their owners."""

    def __init__(self, cells: Cells, numbers: Iterator[int]) -> None:
        self._cells = cells
        self._numbers = numbers  # that no sequence has had
        self._owners: WeakKeyDictionary[object, set[int]] = WeakKeyDictionary()

    def take(self, owner: object) -> int:
        """An id for cells that `owner` uses for a while; they are free once it is gone."""
        sequence = next(self._numbers)
        self._owners.setdefault(owner, set()).add(sequence)
        return sequence

    def take_several(self, owner: object, n: int) -> list[int]:
        """`take` n times."""
        several = list(islice(self._numbers, n))
        self._owners.setdefault(owner, set()).update(several)
        return several

    def give_back(self, owner: object, sequences: Iterable[int]) -> None:
        """Free the cells of borrowed ids."""
        several = list(sequences)
        self._cells.remove_each(several)
        self._owners.get(owner, set()).difference_update(several)

    def ids(self) -> set[int]:
        """All of them."""
        return set().union(*self._owners.values())


def recover(cells: Cells, prefixes: PrefixCache) -> None:
    """Undo what an exception interrupted in the cache, if any did."""
    slots = cells.slots
    is_broken = prefixes.is_interrupted or (slots is not None and slots.is_interrupted)
    if is_broken or cells.is_interrupted:
        cells.repair(anyway=True)
        prefixes.repair()
