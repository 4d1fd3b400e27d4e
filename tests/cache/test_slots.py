"""The table of state slots: against what the states must sum up, under random operations, and one by one."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stretto.backends.batch import Batch, Decoding
from stretto.cache import Cells
from stretto.cache.prefix import PrefixCache
from stretto.cache.slots import Slots
from stretto.errors import CacheFull, Unsupported

N_SLOTS = 6
SEQUENCES = st.integers(0, 4)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=5)  # few, so that texts meet again


class AgainstTexts(RuleBasedStateMachine):
    """Every slot holds the tokens that it sums up: always those of all its sequences."""

    def __init__(self):
        super().__init__()
        self.slots = Slots(N_SLOTS, max_checkpoints=3)
        self.cells = Cells(64, self.slots)
        self.prefixes = PrefixCache(self.cells)
        self.contents = [None] * N_SLOTS  # the tokens of each
        self.pins = {}
        self.next_id = 100

    def tokens(self, sequence):
        return self.cells.tokens[self.cells.view(sequence)].tolist()

    def carry_out(self, moves, rows):
        """What the backend does: copies, then one token after the other."""
        for slot in moves.cleared:
            self.contents[slot] = ()
        copied = [self.contents[slot] for slot in moves.sources]
        for slot, content in zip(moves.targets, copied, strict=True):
            self.contents[slot] = content
        for slot, position, token in rows:
            assert len(self.contents[slot]) == position
            self.contents[slot] += (token,)

    @rule(texts=st.dictionaries(SEQUENCES, TOKENS, min_size=1, max_size=3), fails=st.booleans())
    def advance(self, texts, fails):
        batch = Batch()
        for sequence, tokens in texts.items():
            batch.extend(tokens, self.cells.end(sequence), (sequence,))
        groups = [members for members, _ in batch.states(self.cells).groups]
        free, needed = self.slots.n_free, self.slots.n_needed(groups)
        if needed > free or len(batch) > self.cells.n_free:
            with pytest.raises(CacheFull):
                batch.place(self.cells)
            return
        self.cells.hold()
        batch.place(self.cells)
        assert self.slots.n_free == free - needed
        placed = batch.placement.slots.tolist()
        self.carry_out(batch.moves, zip(placed, batch.positions.tolist(), batch.tokens.tolist(), strict=True))
        if not fails:
            self.cells.commit()
        else:
            for slot in placed:
                self.contents[slot] = "spoilt"
            self.cells.rollback()
            assert all(self.slots.position(sequence) <= self.cells.end(sequence) for sequence in texts)

    @rule(sequences=st.lists(SEQUENCES, min_size=1, max_size=3, unique=True), token=st.integers(0, 1))
    def decode(self, sequences, token):
        needed = self.slots.n_needed([(sequence,) for sequence in sequences])
        if needed > self.slots.n_free or len(sequences) > self.cells.n_free:
            return
        batch = Decoding(self.cells, [token] * len(sequences), sequences)
        self.carry_out(batch.moves, zip(batch.slots, batch.places, batch.ids, strict=True))

    @rule(source=SEQUENCES, into=SEQUENCES)
    def fork(self, source, into):
        if source != into:
            self.cells.remove(into)
            self.cells.copy(source, into)
            assert self.tokens(into) == self.tokens(source)
            assert self.slots.state(into) == self.slots.state(source)

    @rule(sequence=SEQUENCES, back=st.integers(1, 4))
    def go_back(self, sequence, back):
        start = max(0, self.cells.end(sequence) - back)
        nearest = self.slots.nearest(sequence, start)
        self.cells.remove(sequence, start)
        assert self.cells.end(sequence) == self.slots.position(sequence) == nearest

    @rule(sequence=SEQUENCES)
    def mark(self, sequence):
        self.slots.mark(sequence)

    @rule(sequence=SEQUENCES)
    def pin(self, sequence):
        if sequence not in self.pins and self.cells.count(sequence):
            self.pins[sequence] = self.slots.pin(sequence)

    @rule(sequence=SEQUENCES)
    def unpin(self, sequence):
        if sequence in self.pins:
            self.slots.unpin(sequence, self.pins.pop(sequence))

    @rule(sequence=SEQUENCES)
    def park(self, sequence):
        self.unpin(sequence)
        parked, self.next_id = self.next_id, self.next_id + 1
        items = self.tokens(sequence)
        self.cells.copy(sequence, parked)
        self.cells.remove(sequence)
        self.prefixes.park(parked, items)

    @rule(sequence=SEQUENCES, text=st.lists(st.integers(0, 1), max_size=12))
    def share(self, sequence, text):
        self.cells.remove(sequence)
        source, n = self.prefixes.find_state(text)
        if source is not None:
            self.cells.copy(source, sequence, 0, n)
            assert self.tokens(sequence) == text[:n]
            assert self.slots.position(sequence) == n

    @rule(wanted=st.integers(1, N_SLOTS))
    def evict(self, wanted):
        required = self.slots.required()
        assert self.prefixes.evict_states(wanted) == (wanted <= N_SLOTS - len(required))
        assert self.slots.required() == required

    @rule()
    def trim(self):
        self.prefixes.trim_states()
        assert len(self.slots.checkpoints()) <= 3

    @rule(n=st.integers(1, 64))
    def evict_cells(self, n):
        self.prefixes.evict(n)

    @invariant()
    def agree(self):
        self.cells.check()
        for sequence, view in self.slots.views.items():
            tokens = tuple(self.tokens(sequence))
            for slot in view:
                assert self.contents[slot] == tokens[: self.slots.positions[slot]]
        for entry in self.prefixes.entries():
            assert list(entry.items) == self.tokens(entry.id)
            assert entry.id in self.slots.parked
        assert self.slots.parked <= {entry.id for entry in self.prefixes.entries()}


TestAgainstTexts = AgainstTexts.TestCase
TestAgainstTexts.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture
def slots():
    return Slots(4, max_checkpoints=2, kind="Mamba-2")


@pytest.fixture
def cells(slots):
    return Cells(32, slots)


def place(cells, sequence, n, *others):
    batch = Batch()
    batch.extend(range(n), cells.end(sequence), (sequence, *others))
    batch.place(cells)
    return batch.moves


def test_a_state_that_is_one_sequences_alone_advances_in_place(cells, slots):
    assert place(cells, 7, 3).cleared == [0]
    moves = place(cells, 7, 2)
    assert (moves.slots, moves.targets, moves.cleared) == ([0], [], [])
    assert slots.position(7) == 5
    assert slots.n_used == 1


def test_a_fork_is_copied_when_one_of_the_two_goes_on(cells, slots):
    place(cells, 7, 3)
    cells.copy(7, 8)
    assert slots.members[0] == {7, 8}
    moves = place(cells, 8, 1)
    assert (moves.sources, moves.targets) == ([0], [1])
    assert place(cells, 7, 1).targets == []


def test_of_several_forks_in_one_batch_the_last_goes_on_in_place(cells, slots):
    place(cells, 7, 3)
    cells.copy(7, 8)
    cells.copy(7, 9)
    batch = Decoding(cells, [1, 2, 3], [7, 8, 9])
    assert (batch.moves.sources, batch.moves.targets, batch.slots) == ([0, 0], [1, 2], [1, 2, 0])


def test_a_marked_state_stays_as_a_checkpoint(cells, slots):
    place(cells, 7, 3)
    slots.mark(7)
    place(cells, 7, 4)
    assert [slots.positions[slot] for slot in slots.views[7]] == [3, 7]
    assert slots.checkpoints() == [0]
    cells.remove(7, 5)
    assert cells.end(7) == slots.position(7) == 3


def test_without_a_checkpoint_all_of_it_goes(cells, slots):
    place(cells, 7, 3)
    cells.remove(7, 2)
    assert cells.end(7) == 0
    assert slots.n_free == 4


def test_a_pinned_state_is_never_evicted_and_goes_when_it_is_not_needed(cells, slots):
    place(cells, 7, 3)
    slot = slots.pin(7)
    place(cells, 7, 2)
    assert slots.checkpoints() == []
    slots.unpin(7, slot)
    assert slots.n_used == 1


def test_tokens_in_several_sequences_advance_the_state_that_they_share(cells, slots):
    place(cells, 1, 3, 2)
    assert slots.members[0] == {1, 2}
    place(cells, 2, 1, 1)
    assert slots.n_used == 1
    with pytest.raises(Unsupported, match="Mamba-2"):
        place(cells, 1, 1, 3)


@pytest.mark.parametrize("positions", [[3, 3], [4], [0], [3, 5], [4, 3]])
def test_rows_that_do_not_follow_are_refused(cells, slots, positions):
    place(cells, 7, 3)
    batch = Batch()
    for position in positions:
        batch.add(1, position, (7,))
    with pytest.raises(Unsupported, match=r"Mamba-2 layers.*one at each position"):
        batch.place(cells)
    assert cells.count(7) == 3


def test_edits_without_an_exact_meaning_are_refused(cells):
    place(cells, 7, 6)
    for edit in (
        lambda: cells.remove(7, 1, 3),
        lambda: cells.remove_cells(7, [0]),
        lambda: cells.shift(7, 2, None, 1),
        lambda: cells.copy(7, 8, 2),
        lambda: cells.copy(7, 8, 0, 4),
    ):
        with pytest.raises(Unsupported, match="no exact meaning for Mamba-2 layers"):
            edit()
    cells.check()


def test_without_a_free_slot_nothing_changes(cells, slots):
    for sequence in range(4):
        place(cells, sequence, 2)
    with pytest.raises(CacheFull, match="1 state slots are needed for Mamba-2 layers and 0 of 4") as caught:
        place(cells, 9, 1)
    assert (caught.value.n_needed, caught.value.n_free) == (1, 0)
    assert cells.count(9) == 0
    cells.check()


def test_a_sequence_that_begins_like_a_parked_one_leaves_its_states_to_it(cells, slots):
    prefixes = PrefixCache(cells)
    place(cells, 7, 6)
    place(cells, 8, 4)
    prefixes.park(7, range(6))
    prefixes.park(8, range(4))
    assert len(prefixes) == 1
    assert [slots.positions[slot] for slot in slots.views[7]] == [4, 6]
    assert prefixes.find_state([0, 1, 2, 3, 9]) == (7, 4)


def test_the_latest_state_is_found_even_if_another_text_has_more_in_common(cells, slots):
    prefixes = PrefixCache(cells)
    place(cells, 7, 6)
    place(cells, 8, 3)
    cells.tokens[cells.view(8)[-1]] = 9
    prefixes.park(7, range(6))
    prefixes.park(8, [0, 1, 9])
    assert prefixes.find([0, 1, 9, 3])[1] == 3
    assert prefixes.find_state([0, 1, 2, 3, 8]) == (None, 0)
    assert prefixes.find_state([0, 1, 9, 3]) == (8, 3)


def test_the_least_recently_used_checkpoint_is_evicted_and_its_sequence_cut(cells, slots):
    prefixes = PrefixCache(cells)
    place(cells, 7, 2)
    slots.mark(7)
    place(cells, 7, 4)
    prefixes.park(7, range(6))
    slots.touch(slots.views[7][0])
    assert prefixes.evict_states(3)
    assert prefixes.find(range(6)) == (7, 2)
    assert prefixes.evict_states(4)
    assert len(prefixes) == 0
    assert cells.n_used == 0
