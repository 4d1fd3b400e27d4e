"""ONNX decoders give what torch gives, and the engine's cells mean over them what they mean elsewhere."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.batch import Batch
from stretto.cache.cells import Cells
from stretto.errors import Unsupported

pytest.importorskip("onnxruntime")

from onnx_decoders import FREE, GENAI, NAMES, TOLERANCE, Plain, backend, expected


class Bench:
    """A backend and the plain way side by side: what each batch gives is compared."""

    def __init__(self, name, cells=64):
        self.backend = backend(name, cells)
        self.plain = Plain(self.backend)
        self.cells = Cells(cells)
        self.rng = np.random.default_rng(1)
        self.worst = 0.0

    def go(self, rows):
        """Run rows of (position, sequences); return the largest difference so far."""
        batch = Batch()
        for position, sequences in rows:
            batch.add(int(self.rng.integers(0, 256)), position, sequences, logits=True)
        self.cells.hold()
        batch.place(self.cells)
        try:
            logits = self.backend.forward(batch)
        except BaseException:
            self.cells.rollback()
            raise
        self.cells.commit()
        self.worst = max(self.worst, float(np.abs(logits - self.plain.forward(batch)).max()))
        return self.worst

    @property
    def reuse(self):
        return self.backend.presents.n_gathered, self.backend.presents.n_reused


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunks", [(24,), (11, 1, 12), (1,) * 24], ids=["whole", "chunks", "tokens"])
def test_logits_are_those_of_torch(name, chunks):
    model, want, cells = backend(name), expected(name), Cells(64)
    rows, at = [], 0
    for n in chunks:
        batch = Batch()
        for i in range(at, at + n):
            batch.add(int(want["tokens"][i]), i, [0], logits=True)
        batch.place(cells)
        rows.append(model.forward(batch))
        at += n
    assert np.abs(np.concatenate(rows) - want["logits"]).max() <= 1e-5
    assert model.presents.n_gathered == 0


@pytest.mark.parametrize("name", NAMES)
def test_forks_and_many_sequences_are_exact(name):
    bench = Bench(name)
    bench.go([(i, [0]) for i in range(12)])
    bench.cells.copy(0, 1)
    bench.cells.copy(0, 2)
    bench.go([(12, [0]), (12, [1]), (12, [2])])
    bench.go([(13, [1])])
    bench.go([(13, [2]), (14, [2]), (13, [0])])
    bench.go([(i, [3]) for i in range(5)])
    for _ in range(3):
        ends = [bench.cells.end(sequence) for sequence in range(4)]
        bench.go([(end, [sequence]) for sequence, end in enumerate(ends)])
    assert bench.worst <= TOLERANCE


@pytest.mark.parametrize("name", FREE)
def test_holes_isolated_sets_and_merges_are_exact(name):
    bench = Bench(name)
    bench.go([(i, [0]) for i in range(12)])
    bench.cells.copy(0, 1)
    bench.cells.remove(1, 4, 8)
    bench.go([(12, [1]), (12, [0])])
    for i in (7, 8, 9):
        bench.cells.copy(0, i)
    bench.go([(13, [7]), (13, [8]), (13, [9])])
    for i in (7, 8, 9):
        bench.cells.copy(i, 0, 13, 14)
        bench.cells.remove(i)
    bench.go([(14, [0])])
    bench.go([(15, [0]), (13, [1])])
    assert bench.worst <= TOLERANCE


@pytest.mark.parametrize("name", FREE)
def test_rows_that_need_each_others_cells_run_in_waves(name):
    bench = Bench(name)
    bench.go([(i, [0, 1]) for i in range(4)])
    bench.go([(4, [0, 1]), (5, [1]), (5, [0]), (6, [1])])
    bench.go([(9, [0]), (7, [1])])  # a gap that is filled later
    bench.go([(7, [0]), (10, [0])])
    assert bench.worst <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_tokens_that_see_each_other_are_unsupported(name):
    bench = Bench(name)
    bench.go([(i, [0]) for i in range(4)])
    with pytest.raises(Unsupported, match=r"see each other.*backend='native'"):
        bench.go([(4, [0]), (4, [0])])
    bench.cells.check()
    assert bench.go([(4, [0])]) <= TOLERANCE


@pytest.mark.parametrize("name", ["gemma3", GENAI])
def test_without_position_ids_tokens_must_follow_each_other(name):
    bench = Bench(name)
    bench.go([(i, [0]) for i in range(12)])
    bench.cells.copy(0, 1)
    bench.cells.remove(1, 4, 8)
    with pytest.raises(Unsupported, match="has no position_ids"):
        bench.go([(12, [1])])
    assert not bench.backend.capabilities.merge
    assert bench.go([(12, [0])]) <= TOLERANCE


def windowed(name, size):
    """A model that has position_ids, and is taken for one with a window."""
    bench = Bench(name, 128)
    bench.backend.decoder = replace(bench.backend.decoder, windows=None if size is None else (size,))
    return bench


def test_holes_within_a_window_are_unsupported_and_behind_it_exact():
    bench = windowed("llama", 8)
    bench.go([(i, [0]) for i in range(12)])
    bench.cells.remove(0, 5, 8)
    with pytest.raises(Unsupported, match="within a window of 8 tokens"):
        bench.go([(12, [0])])
    bench = windowed("llama", 8)
    bench.go([(i, [0]) for i in range(20)])
    bench.cells.remove(0, 2, 5)
    assert bench.go([(20, [0]), (21, [0])]) <= TOLERANCE  # (this graph sees all; the check lets it)
    bench = windowed("llama", None)
    bench.go([(i, [0]) for i in range(20)])
    bench.cells.remove(0, 2, 5)
    with pytest.raises(Unsupported, match="may have a window"):
        bench.go([(20, [0])])


def test_merged_tokens_within_a_window_are_unsupported():
    bench = windowed("llama", 8)
    bench.go([(i, [0]) for i in range(12)])
    bench.cells.copy(0, 1)
    bench.go([(12, [0]), (12, [1])])
    bench.cells.copy(1, 0, 12, 13)
    with pytest.raises(Unsupported, match="window"):
        bench.go([(13, [0])])


@pytest.mark.parametrize("name", NAMES)
def test_a_text_that_only_grows_is_never_gathered(name):
    bench = Bench(name)
    bench.go([(i, [0]) for i in range(5)])
    for position in range(5, 40):
        bench.go([(position, [0])])
    assert bench.reuse == (0, 35)
    assert bench.worst <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_that_only_grows_is_gathered_once(name):
    bench = Bench(name, 128)
    for sequence in range(3):
        bench.go([(i, [sequence]) for i in range(7)])
    for position in range(7, 27):
        order = [0, 1, 2] if position % 2 else [2, 0, 1]
        bench.go([(position, [sequence]) for sequence in order])
    assert bench.reuse[0] == 1
    assert bench.worst <= TOLERANCE


@pytest.mark.parametrize("name", ["llama", GENAI])
def test_rows_of_different_length_run_together(name):
    bench = Bench(name, 128)
    for sequence, n in enumerate((9, 5, 12)):
        bench.go([(i, [sequence]) for i in range(n)])
    for step in range(10):
        bench.go([(n + step, [sequence]) for sequence, n in enumerate((9, 5, 12))])
    assert bench.reuse[0] == 1
    assert bench.worst <= TOLERANCE


@pytest.mark.parametrize("name", ["llama", GENAI])
def test_long_prompts_run_in_parts_whose_logits_fit(name, monkeypatch):
    monkeypatch.setattr("stretto.backends.onnx.backend.MAX_LOGITS", 258 * 5)
    bench, sizes = Bench(name, 128), []
    run = bench.backend.caller.run

    def counted(*call):
        logits = run(*call)
        sizes.append(logits.size)
        return logits

    monkeypatch.setattr(bench.backend.caller, "run", counted)
    bench.go([(i, [0]) for i in range(12)])
    assert sizes == [5 * 258, 5 * 258, 2 * 258]
    bench.go([(12, [0]), (13, [0]), *((i, [1]) for i in range(9))])
    bench.go([(14, [0]), (9, [1])])
    assert bench.worst <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_cells_that_are_used_again_are_not_taken_for_what_they_were(name):
    bench = Bench(name, 16)
    for _ in range(3):  # the same cells each time, other tokens
        bench.go([(i, [0]) for i in range(8)])
        bench.go([(8, [0])])
        bench.cells.remove(0)
    bench.go([(i, [0]) for i in range(8)])
    bench.cells.copy(0, 1, 0, 6)
    bench.cells.remove(0)
    bench.go([(i, [2]) for i in range(8)])
    bench.go([(6, [1])])
    assert bench.worst <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_truncated_texts_go_on_from_where_they_were_cut(name):
    bench = Bench(name)
    bench.go([(i, [0]) for i in range(10)])
    bench.cells.copy(0, 1)
    bench.cells.remove(0, 6)
    bench.go([(6, [0]), (7, [0])])
    bench.go([(10, [1])])
    bench.cells.remove(1, 3)
    bench.go([(3, [1]), (8, [0])])
    assert bench.worst <= TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_cells_can_be_copied_saved_and_restored(name):
    bench = Bench(name)
    bench.go([(i, [0]) for i in range(6)])
    bench.go([(6, [0])])
    model, cells = bench.backend, bench.cells.view(0).copy()
    data = model.read_cells(cells)
    assert data.shape == (7, model.cell_bytes)
    new = np.arange(40, 47, dtype=np.int32)
    model.copy_cells(cells, new)
    assert np.array_equal(model.read_cells(new), data)
    other = backend(name)
    other.write_cells(new, data)
    assert np.array_equal(other.read_cells(new), data)
    assert other.cell_layout == model.cell_layout


@pytest.mark.parametrize("name", NAMES)
def test_random_edits_are_exact_or_unsupported(name):
    bench, rng = Bench(name, 96), np.random.default_rng(7)
    n_unsupported = 0
    for sequence in range(3):
        bench.go([(i, [sequence]) for i in range(4 + sequence)])
    for _ in range(60):
        chosen = sorted(rng.choice(3, rng.integers(1, 4), replace=False).tolist())
        for sequence in chosen:
            kind = rng.integers(0, 10)
            end = bench.cells.end(sequence)
            if end > 20 or kind == 0:
                bench.cells.remove(sequence, int(rng.integers(1, max(2, end))))
            elif kind == 1 and end > 4:
                start = int(rng.integers(1, end - 2))
                bench.cells.remove(sequence, start, start + 1)
            elif kind == 2:
                other = int(rng.integers(0, 3))
                bench.cells.remove(sequence)
                bench.cells.copy(other, sequence)
        if bench.cells.n_free < 12:
            continue
        rows = []
        for sequence in chosen:
            end = bench.cells.end(sequence)
            rows += [(end + i, [sequence]) for i in range(rng.integers(1, 4))]
        try:
            bench.go(rows)
        except Unsupported:
            n_unsupported += 1
            for sequence in chosen:
                bench.cells.remove(sequence)
    assert bench.worst <= TOLERANCE
    assert n_unsupported == 0 or name not in FREE


@pytest.mark.parametrize("name", FREE)
def test_keys_are_rotated_as_the_graph_rotates_them(name):
    model, cells = backend(name), Cells(64)
    tokens = expected(name)["tokens"][:8]
    batch = Batch()
    for i, token in enumerate(tokens):
        batch.add(int(token), i, [0], logits=True)
        batch.add(int(token), i + 30, [1], logits=True)
    batch.place(cells)
    moved = model.forward(batch)
    assert np.abs(moved[0::2] - moved[1::2]).max() <= TOLERANCE  # a rope is relative
    first, second = cells.view(0).copy(), cells.view(1).copy()
    model.rotate_cells(first, 30)
    halves = [model.read_cells(each).view(np.float32) for each in (first, second)]
    assert np.abs(halves[0] - halves[1]).max() <= TOLERANCE


def test_without_a_rope_in_config_nothing_is_rotated():
    model = backend(GENAI)
    assert not model.capabilities.shift
    with pytest.raises(Unsupported, match="shift"):
        model.rotate_cells(np.arange(2, dtype=np.int32), 1)


def test_vectors_probes_and_hidden_states_are_unsupported():
    model, cells = backend("llama"), Cells(64)
    for change, words in (
        (lambda batch: batch.set_vector(0, np.zeros(24)), "not vectors or images"),
        (lambda batch: batch.probe([0]), "attention weights"),
        (lambda batch: batch.watch(0), "attention weights"),
    ):
        batch = Batch()
        batch.add(1, 0, [0], logits=True)
        change(batch)
        cells.hold()
        batch.place(cells)
        with pytest.raises(Unsupported, match=words):
            model.forward(batch)
        cells.rollback()
    with pytest.raises(Unsupported, match="hidden"):
        model.hidden(Batch())
    assert not model.capabilities.attention
    assert not model.capabilities.embeddings


@pytest.mark.parametrize("name", ["llama", GENAI])
def test_a_call_that_fails_loses_nothing(name, monkeypatch):
    bench = Bench(name)
    bench.go([(i, [0]) for i in range(6)])
    bench.go([(6, [0])])
    with monkeypatch.context() as patch:
        patch.setattr(type(bench.backend.session.raw), "run_with_iobinding", lambda *_: 1 / 0)
        with pytest.raises(Exception, match="cannot compute it: division by zero"):
            bench.go([(7, [0])])
    assert bench.go([(7, [0])]) <= TOLERANCE
    bench.cells.copy(0, 1, 0, 5)
    assert bench.go([(5, [1])]) <= TOLERANCE
