"""The table of cells against the simplest thing that could be right: a dict of sets."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stretto.cache import Cells
from stretto.errors import CacheFull, InvalidRequest

N_CELLS = 24
SEQUENCES = st.integers(0, 4)
POSITIONS = st.integers(0, 12)
STOPS = st.none() | st.integers(0, 14)


class AgainstDictOfSets(RuleBasedStateMachine):
    """Random operations on both; afterwards they must tell the same."""

    def __init__(self):
        super().__init__()
        self.cells = Cells(N_CELLS)
        self.model = {}  # cell → (position, token, set of sequences)

    def of(self, sequence, start=0, stop=None):
        stop = 1 << 31 if stop is None else stop
        return [c for c, (p, _, s) in self.model.items() if sequence in s and start <= p < stop]

    def take_out(self, sequence, cells):
        for cell in cells:
            self.model[cell][2].discard(sequence)
            if not self.model[cell][2]:
                del self.model[cell]

    @rule(
        rows=st.lists(
            st.tuples(st.integers(0, 5), POSITIONS, st.sets(SEQUENCES, min_size=1, max_size=3)), max_size=8
        )
    )
    def place(self, rows):
        tokens, positions, sets = zip(*rows, strict=True) if rows else ((), (), ())
        if len(rows) > N_CELLS - len(self.model):
            with pytest.raises(CacheFull, match="cells are needed"):
                self.cells.place(tokens, positions, sets)
            return
        taken = self.cells.place(tokens, positions, sets)
        assert not set(taken.tolist()) & set(self.model)
        assert len(set(taken.tolist())) == len(rows)
        for cell, (token, position, members) in zip(taken.tolist(), rows, strict=True):
            self.model[cell] = (position, token, set(members))

    @rule(source=SEQUENCES, into=SEQUENCES, start=POSITIONS, stop=STOPS)
    def copy(self, source, into, start, stop):
        if stop is not None and stop < start:
            with pytest.raises(InvalidRequest, match="lies behind"):
                self.cells.copy(source, into, start, stop)
            return
        self.cells.copy(source, into, start, stop)
        for cell in self.of(source, start, stop):
            self.model[cell][2].add(into)

    @rule(sequence=SEQUENCES, start=POSITIONS, length=st.integers(0, 14))
    def remove(self, sequence, start, length):
        before = len(self.model)
        freed = self.cells.remove(sequence, start, start + length)
        self.take_out(sequence, self.of(sequence, start, start + length))
        assert freed == before - len(self.model)

    @rule(source=SEQUENCES, into=st.lists(SEQUENCES, max_size=4))
    def copy_to_each(self, source, into):
        self.cells.copy_to_each(source, into)
        for cell in self.of(source):
            self.model[cell][2].update(into)

    @rule(sequences=st.lists(SEQUENCES, max_size=4))
    def remove_each(self, sequences):
        self.cells.remove_each(sequences)
        for sequence in sequences:
            self.take_out(sequence, self.of(sequence))

    @rule(sequence=SEQUENCES, data=st.data())
    def remove_cells(self, sequence, data):
        mine = self.of(sequence)
        if mine:
            chosen = data.draw(st.lists(st.sampled_from(mine)))
            self.cells.remove_cells(sequence, np.array(chosen, np.int64))
            self.take_out(sequence, set(chosen))

    @rule(sequence=SEQUENCES)
    def keep(self, sequence):
        self.cells.keep(sequence)
        for other in range(5):
            if other != sequence:
                self.take_out(other, self.of(other))

    @rule(sequence=SEQUENCES, start=POSITIONS, delta=st.integers(-3, 3))
    def shift(self, sequence, start, delta):
        mine = self.of(sequence, start)
        wrong = any(len(self.model[c][2]) > 1 or self.model[c][0] + delta < 0 for c in mine)
        if delta and wrong:
            with pytest.raises(InvalidRequest):
                self.cells.shift(sequence, start, None, delta)
            return
        moved = self.cells.shift(sequence, start, None, delta)
        assert set(moved.tolist()) == (set(mine) if delta else set())
        for cell in mine:
            position, token, members = self.model[cell]
            self.model[cell] = (position + delta, token, members)

    @rule(sequence=SEQUENCES)
    def unshare(self, sequence):
        shared = [c for c in self.of(sequence) if len(self.model[c][2]) > 1]
        if len(shared) > N_CELLS - len(self.model):
            with pytest.raises(CacheFull):
                self.cells.unshare(sequence)
            return
        old, new = self.cells.unshare(sequence)
        assert set(old.tolist()) == set(shared)
        for before, after in zip(old.tolist(), new.tolist(), strict=True):
            position, token, members = self.model[before]
            members.discard(sequence)
            self.model[after] = (position, token, {sequence})

    @rule()
    def clear(self):
        self.cells.clear()
        self.model = {}

    @invariant()
    def agree(self):
        self.cells.check()
        assert self.cells.n_used == len(self.model)
        assert self.cells.n_free == N_CELLS - len(self.model)
        assert sorted(self.cells.sequences) == sorted(
            {s for _, _, members in self.model.values() for s in members}
        )
        for sequence in range(5):
            view = self.cells.view(sequence).tolist()
            assert set(view) == set(self.of(sequence))
            keys = [self.model[cell][:2] for cell in view]
            assert keys == sorted(keys)
            assert self.cells.sequence_positions(sequence).tolist() == [p for p, _ in keys]
            assert self.cells.end(sequence) == (keys[-1][0] + 1 if keys else 0)
        for cell, (_, _, members) in self.model.items():
            assert self.cells.members(cell) == members


TestAgainstDictOfSets = AgainstDictOfSets.TestCase
TestAgainstDictOfSets.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_placement_is_all_or_nothing():
    cells = Cells(4)
    cells.place([1, 2], [0, 1], [(0,), (0,)])
    with pytest.raises(CacheFull, match="3 cells are needed and 2 of 4 are free"):
        cells.place([1, 2, 3], [0, 1, 2], [(1,)] * 3)
    assert cells.sequences == [0]
    assert cells.n_used == 2
    cells.check()


def test_a_fork_costs_nothing_and_a_branch_one_cell():
    cells = Cells(100)
    cells.place(range(50), range(50), [(0,)] * 50)
    for fork in range(1, 10):
        cells.copy(0, fork)
    assert cells.n_used == 50
    cells.place([7], [50], [(3,)])
    assert cells.n_used == 51
    assert cells.end(3) == 51
    assert cells.end(4) == 50


def test_views_are_read_only():
    cells = Cells(4)
    cells.place([1], [0], [(0,)])
    with pytest.raises(ValueError, match="read-only"):
        cells.view(0)[0] = 3


def test_tokens_at_one_position_stand_in_order_of_id():
    cells = Cells(8)
    cells.place([5, 9, 2], [0, 1, 1], [(0,)] * 3)
    assert cells.tokens[cells.view(0)].tolist() == [5, 2, 9]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda c: Cells(0),
        lambda c: Cells(True),
        lambda c: Cells(2.0),
        lambda c: c.place([1], [-1], [(0,)]),
        lambda c: c.place([1], [0], [()]),
        lambda c: c.place([1], [0], [(-1,)]),
        lambda c: c.place([1], [0], [(True,)]),
        lambda c: c.place([1, 2], [0], [(0,)]),
        lambda c: c.place([1.5], [0], [(0,)]),
        lambda c: c.place([2**40], [0], [(0,)]),
        lambda c: c.remove(0, -1, 3),
        lambda c: c.remove(0, 3, 1),
        lambda c: c.remove(0, 0.5, 1),
        lambda c: c.remove(-1),
        lambda c: c.remove("0"),
        lambda c: c.copy(0, -2),
        lambda c: c.copy(0, 1, 5, 2),
        lambda c: c.remove_cells(0, [3]),
        lambda c: c.remove_cells(0, [99]),
        lambda c: c.remove_cells(0, [-1]),
        lambda c: c.shift(0, 0, None, -1),
        lambda c: c.shift(0, 0, None, 2**31),
        lambda c: c.shift(0, 0, None, 1.0),
        lambda c: c.is_shared([99]),
    ],
)
def test_wrong_arguments_change_nothing(wrong):
    cells = Cells(8)
    cells.place([4, 5], [0, 1], [(0,), (0,)])
    before = (cells.positions.copy(), cells.view(0).tolist(), cells.n_free)
    with pytest.raises(InvalidRequest):
        wrong(cells)
    cells.check()
    assert np.array_equal(before[0], cells.positions)
    assert before[1:] == (cells.view(0).tolist(), cells.n_free)


def test_check_finds_what_is_wrong():
    def broken(spoil):
        cells = Cells(8)
        cells.place([1, 2, 3], [0, 1, 2], [(0,), (0, 1), (0,)])
        spoil(cells)
        with pytest.raises(RuntimeError):
            cells.check()

    broken(lambda c: c.positions.__setitem__(c.view(0)[0], 9))
    broken(lambda c: c.shares.__setitem__(c.view(0)[0], 2))
    broken(lambda c: c._free.pop())
    broken(lambda c: c._free.append(int(c.view(0)[0])))
    broken(lambda c: c.views.pop(1))


def test_append_is_place_for_single_rows():
    one, other = Cells(20), Cells(20)
    for cells in (one, other):
        cells.place([1, 2, 3], [0, 1, 0], [(5,), (5,), (6,)])
    taken, places, stores, counts, edits = one.append([7, 8, 9], [5, 6, 7])
    assert places == [2, 1, 0]
    assert taken == other.place([7, 8, 9], [2, 1, 0], [(5,), (6,), (7,)]).tolist()
    assert counts == [3, 2, 1]
    assert edits == [one.edits(sequence) for sequence in (5, 6, 7)]
    for sequence, store, n in zip((5, 6, 7), stores, counts, strict=True):
        assert store[:n].tolist() == one.view(sequence).tolist()
        assert one.view(sequence).tolist() == other.view(sequence).tolist()
    one.check()
    with pytest.raises(CacheFull, match="15 cells are needed and 14 of 20 are free"):
        one.append([1] * 15, list(range(10, 25)))
    assert one.n_free == 14
    one.check()


def test_views_count_their_edits_but_not_what_is_appended():
    cells = Cells(40)
    cells.place([1, 2, 3], [0, 1, 2], [(5,)] * 3)
    first = cells.edits(5)
    cells.append([4], [5])
    cells.place([5, 6], [4, 5], [(5,)] * 2)
    assert cells.edits(5) == first > cells.edits(6) == 0
    cells.copy(5, 6)
    assert cells.edits(6) > first
    seen = {first, cells.edits(6)}
    for edit in (
        lambda: cells.remove(5, 5),
        lambda: cells.place([1], [2], [(5,)]),  # between the others
        lambda: cells.unshare(5, 0, 2),
        lambda: cells.shift(5, 0, 1, 10),
        lambda: cells.remove(5, 1, 2),
        lambda: (cells.remove(5), cells.place([1], [0], [(5,)])),
    ):
        edit()
        assert cells.edits(5) not in seen
        seen.add(cells.edits(5))
