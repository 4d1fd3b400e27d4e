"""The engine's cells in llama.cpp's sequences, with a stand-in whose K and V can be looked at.

An entry of the stand-in is a hash of its token, its position and all entries that it attends to. So two texts
have the same entry only if they were computed from the same past, and a wrong cell anywhere shows.
"""

import numpy as np
import pytest

from stretto.backends.batch import Batch
from stretto.backends.llama_cells import LlamaCells
from stretto.backends.llama_library import NoRoom
from stretto.backends.llamacpp import LlamaBackend
from stretto.cache.cells import Cells
from stretto.errors import CacheFull, Unsupported
from stretto.models.missing import EMPTY_LAYER
from stretto.models.spec import ModelSpec, Norm

N_CELLS = 48


def entry(token, position, past):
    return hash((token, position, tuple(past))) % 1_000_003


class Stand:
    """llama.cpp's cache: sequences of positions with entries, within limits."""

    def __init__(self, n_sequences=4, n_ctx=N_CELLS, is_recurrent=False):
        self.n_sequences, self.n_ctx, self.is_recurrent = n_sequences, n_ctx, is_recurrent
        self.n_batch, self.n_vocab, self.n_embd = 7, 1, 1
        self.sequences = {i: {} for i in range(n_sequences)}
        self.decoded = 0

    def copy(self, source, target, start, stop):
        assert not self.is_recurrent or (start, stop) == (-1, -1)
        chosen = {p: e for p, e in self.sequences[source].items() if stop < 0 or start <= p < stop}
        assert not chosen.keys() & self.sequences[target].keys()
        self.sequences[target] |= chosen

    def remove(self, sequence, start=0, stop=-1):
        held = self.sequences[sequence]
        assert not self.is_recurrent or (start, stop) == (0, -1)
        self.sequences[sequence] = {
            p: e for p, e in held.items() if not (start <= p and (stop < 0 or p < stop))
        }
        return True

    def decode(self, rows, hidden=False):
        assert 0 < len(rows) <= self.n_batch
        if len({id(e) for held in self.sequences.values() for e in held.values()}) + len(rows) > self.n_ctx:
            raise NoRoom("no room")
        wanted = []
        for token, position, sequence, is_wanted in rows:
            held = self.sequences[sequence]
            assert not held or position == max(held) + 1, "positions must follow"
            past = [e[0] for _, e in sorted(held.items())]
            held[position] = [entry(token, position, past)]  # a list: two of the same value are two entries
            self.decoded += 1
            if is_wanted:
                wanted.append(held[position][0])
        return np.array(wanted, np.float32).reshape(-1, 1)


class Twin:
    """An engine's table, and what each of its cells must hold."""

    def __init__(self, stand):
        self.stand, self.table = stand, Cells(N_CELLS)
        self.backend = LlamaBackend.__new__(LlamaBackend)
        layers = (EMPTY_LAYER,)
        self.backend.spec = ModelSpec("stand", 1, 1, N_CELLS, layers, Norm("output_norm", 1e-5))
        self.backend.llama, self.backend.passes = stand, 0
        self.backend.cells = LlamaCells(stand, N_CELLS)
        self.values = {}

    def run(self, *texts):
        """Append tokens to sequences, in one batch, and compare the rows."""
        batch = Batch()
        for sequence, tokens in texts:
            batch.extend(tokens, self.table.end(sequence), (sequence,), logits=True)
        batch.place(self.table)
        rows = self.backend.forward(batch)
        cells = iter(batch.placement.cells.tolist())
        expected = []
        for sequence, tokens in texts:
            past = [self.values[cell] for cell in self.table.view(sequence)[: -len(tokens)].tolist()]
            start = self.table.end(sequence) - len(tokens)
            for position, token in enumerate(tokens, start):
                self.values[next(cells)] = value = entry(token, position, past)
                past.append(value)
            expected.append(past[-1])
        assert rows[:, 0].tolist() == np.float32(expected).tolist()


@pytest.fixture
def twin():
    return Twin(Stand())


def test_a_sequence_goes_on_in_place(twin):
    twin.run((1, [5, 6, 7]))
    twin.run((1, [8]), (2, [5]))
    twin.run((1, [9]), (2, [6]))
    assert twin.stand.decoded == 7


def test_forks_share_what_was_computed(twin):
    twin.run((1, list(range(10))))
    twin.table.copy(1, 2)
    twin.table.copy(1, 3, 0, 4)
    twin.run((1, [11]), (2, [12]), (3, [13]))
    twin.run((2, [14]))
    assert twin.stand.decoded == 14


def test_a_truncated_sequence_is_cut_in_place_and_a_shared_one_is_copied(twin):
    twin.run((1, list(range(10))))
    twin.table.remove(1, 6)
    twin.run((1, [20, 21]))
    twin.table.copy(1, 2)
    twin.table.remove(1, 3)
    twin.run((1, [30]))
    twin.run((2, [31]))
    assert twin.stand.decoded == 14


def test_a_hole_stays_a_hole(twin):
    twin.run((1, list(range(10))))
    twin.table.remove(1, 3, 6)
    twin.run((1, [20]))
    twin.run((1, [21]))
    assert twin.stand.decoded == 12


def test_sequences_beyond_its_number_are_computed_again(twin):
    for sequence in range(8):
        twin.run((sequence, [sequence, 1, 2]))
    twin.run((0, [9]))
    assert twin.stand.decoded == 8 * 3 + 3 + 1


def test_an_edited_sequence_that_was_lost_is_refused(twin):
    twin.run((0, list(range(6))))
    twin.table.remove(0, 2, 4)
    for sequence in range(1, 6):
        twin.run((sequence, [sequence, 1, 2]))
    with pytest.raises(Unsupported, match="lost cells of a sequence that was edited"):
        twin.run((0, [9]))


def test_rows_may_follow_others_of_the_same_batch(twin):
    batch = Batch()
    batch.add(5, 0, (1, 2))
    batch.add(6, 1, (1,), logits=True)
    batch.add(7, 1, (2,), logits=True)
    batch.place(twin.table)
    rows = twin.backend.forward(batch)
    first = entry(5, 0, [])
    assert rows[:, 0].tolist() == np.float32([entry(6, 1, [first]), entry(7, 1, [first])]).tolist()


def test_freed_cells_are_given_back_when_room_is_short():
    twin = Twin(Stand(n_ctx=N_CELLS))
    for sequence in range(40):
        twin.run((sequence, list(range(15))))
        twin.table.remove(sequence)
    assert twin.stand.decoded == 40 * 15  # nothing was computed twice


def test_no_room_at_all_is_an_error():
    twin = Twin(Stand(n_ctx=8))
    with pytest.raises(CacheFull, match="no room for"):
        twin.run((1, list(range(20))))


def test_more_sequences_in_one_batch_than_it_has(twin):
    with pytest.raises(Unsupported, match="at most 4 sequences"):
        twin.run(*((i, [1]) for i in range(5)))


def test_what_has_no_meaning_there_is_named(twin):
    twin.run((1, [1, 2, 3]))
    for add, words in [
        (lambda b: b.add(4, 2, (1,), logits=True), "several tokens at one position"),
        (lambda b: b.add(4, 9, (1,), logits=True), "a position that does not follow"),
        (lambda b: b.add(4, 0, (1,), logits=True), "several tokens at one position"),
        (lambda b: b.add_vector([0.5], 3, (1,), logits=True), "vectors in place of tokens"),
        (lambda b: (b.add(4, 3, (1,), logits=True), b.probe([0])), "measuring attention"),
    ]:
        batch = Batch()
        add(batch)
        twin.table.hold()
        batch.place(twin.table)
        with pytest.raises(Unsupported, match=words):
            twin.backend.forward(batch)
        twin.table.rollback()
    twin.run((1, [4]))  # nothing was changed


@pytest.mark.parametrize("is_recurrent", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_random_edits_give_what_the_table_says(seed, is_recurrent):
    rng = np.random.default_rng(seed)
    twin, n_refused = Twin(Stand(is_recurrent=is_recurrent)), 0
    table = twin.table
    for _ in range(120):
        live = table.sequences
        pick = int(rng.integers(0, 6))
        match rng.integers(0, 5):
            case 0 if live and pick not in live:
                source = int(rng.choice(live))
                table.copy(source, pick, 0, int(rng.integers(1, table.end(source) + 1)))
            case 1 if pick in live:
                table.remove(pick, int(rng.integers(0, table.end(pick))))
            case 2 if pick in live:
                table.remove(pick)
            case 3 if pick in live and not is_recurrent and table.end(pick) > 3:
                table.remove(pick, 1, 2)
            case _:
                tokens = rng.integers(0, 3, int(rng.integers(1, 4))).tolist()
                if table.n_free < len(tokens) or table.end(pick) > 20:
                    table.remove(pick)
                    continue
                before = {i: table.view(i).copy() for i in table.sequences}
                try:
                    twin.run((pick, tokens))
                except Unsupported:
                    n_refused += 1
                    table.remove(pick)
                    del before
    table.check()
    assert n_refused < 20
