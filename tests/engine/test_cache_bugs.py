"""What random operations on a full cache have found: each was wrong once."""

import gc
import threading

import numpy as np
import pytest

from stretto import Batch
from stretto.errors import CacheFull, InvalidRequest
from stretto.testing import mock_llm

GREEDY = {"temperature": 0}


@pytest.fixture
def llm():
    return mock_llm(lambda seen: len(seen), cells=64)


def computed(llm, text):
    seq = llm.sequence(text)
    seq.logits  # noqa: B018
    return seq


def test_a_step_leaves_closed_sequences_alone(llm):
    seq = computed(llm, "abcd")
    seq.close()
    with pytest.raises(InvalidRequest, match="is closed"):
        llm.step([seq], **GREEDY)
    assert llm.cells.n_used == 4
    assert llm.generate("abcde", max_tokens=1).usage.cached_tokens == 4
    seq = computed(llm, "xyz")
    seq.close(park=False)
    used = llm.cells.n_used
    with pytest.raises(InvalidRequest, match="is closed"):
        llm.step([seq], **GREEDY)
    assert llm.cells.n_used == used


def test_clearing_needs_no_room(llm):
    first, second = computed(llm, "a" * 30), computed(llm, "b" * 30)
    first.append("c" * 10)
    llm.cells.clear()
    assert (first.text, second.text, llm.cells.n_used) == ("", "", 0)


@pytest.mark.parametrize("wrong", ["x", True, -1, 1.5, None, [1]])
def test_who_is_kept_must_be_an_id(llm, wrong):
    seq = computed(llm, "abcd")
    with pytest.raises(InvalidRequest, match="sequence id must be an integer"):
        llm.cells.keep(wrong)
    assert (seq.text, llm.cells.n_used) == ("abcd", 4)


def test_a_forgotten_sequence_cannot_be_changed(llm):
    seq = computed(llm, "abcdefgh")
    forgotten = seq.id
    del seq
    gc.collect()
    with pytest.raises(InvalidRequest, match="is closed"):
        llm.cells.remove(forgotten, 1, 3)  # it would have been parked under the tokens it had before
    assert llm.cache.stats().held == 0
    assert llm.generate("abcdefghi", max_tokens=1).usage.cached_tokens == 8


def test_ids_of_sequences_to_come_are_not_yours(llm):
    seq = computed(llm, "abcd")
    batch = Batch()
    batch.extend(b"ab", 0, [seq.id + 1])
    for change in (lambda: llm.cells.copy(seq.id, seq.id + 1), lambda: llm.forward(batch)):
        with pytest.raises(InvalidRequest, match="ids of your own lie below 1,000,000"):
            change()
    assert computed(llm, "wxyz").n_pending == 0
    assert llm.cells.copy(seq.id, 999_999) == 4


def test_a_wrong_range_is_found_before_anything_is_computed(llm):
    seq = llm.sequence("abcd")
    for change in (llm.cells.remove, lambda i, *span: llm.cells.copy(i, 7, *span)):
        with pytest.raises(InvalidRequest, match="start 3 lies behind stop 1"):
            change(seq.id, 3, 1)
    assert llm.backend.batches == []


def test_closing_a_hole_without_room_changes_nothing(llm):
    seq = computed(llm, "a" * 40)
    twin = seq.fork()
    with pytest.raises(CacheFull):
        seq.remove(2, 4, close=True)  # 36 cells would have to be copied
    assert seq.positions == twin.positions == list(range(40))
    twin.close(park=False)
    seq.remove(2, 4, close=True)
    assert seq.positions == list(range(38))


def test_what_was_moved_is_not_taken_for_a_beginning(llm):
    computed(llm, "abc").close()
    seq = computed(llm, "a")
    seq.shift(0, by=8)
    llm.backend.forward, forward = failing, llm.backend.forward
    with pytest.raises(ZeroDivisionError):
        seq.logits  # noqa: B018
    llm.backend.forward = forward
    seq.append("bc")
    seq.logits  # noqa: B018
    assert (seq.text, seq.positions) == ("abc", [8, 9, 10])


def failing(batch):
    raise ZeroDivisionError


def test_what_is_being_restored_is_out_of_reach(llm, tmp_path):
    computed(llm, "abcdefgh").save(tmp_path / "saved")
    llm.cells.clear()
    write = llm.backend.write_cells

    def interfering(cells, data):
        llm.cells.clear()
        computed(llm, "x" * 8).close()
        write(cells, data)

    llm.backend.write_cells = interfering
    seq = llm.restore(tmp_path / "saved")
    assert (seq.text, seq.n_pending) == ("abcdefgh", 0)
    llm.backend.write_cells = write
    cells = llm.cells.view(seq.id)
    assert bytes(llm.backend.tokens[cells].tolist()) == b"abcdefgh"
    llm.cells.remove(seq.id, 4)  # and within reach again
    assert seq.text == "abcd"
    llm.cells.check()


def test_what_is_being_saved_stays(llm, tmp_path):
    seq, read = computed(llm, "abcdefgh"), llm.backend.read_cells

    def interfering(cells):
        llm.cells.clear()
        computed(llm, "x" * 8).close()
        return read(cells)

    llm.backend.read_cells = interfering
    seq.save(tmp_path / "saved")
    seq = llm.restore(tmp_path / "saved")
    assert bytes(llm.backend.tokens[llm.cells.view(seq.id)].tolist()) == b"abcdefgh"
    llm.cells.clear()
    assert llm.cells.n_used == 0


def test_two_threads_at_one_stream():
    llm = mock_llm(lambda seen: 97 + len(seen) % 26)
    stream, found = llm.stream("x", max_tokens=400, **GREEDY), []
    threads = [threading.Thread(target=lambda: found.extend(stream)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(token.id for token in found) == sorted(stream.result.tokens)


@pytest.mark.parametrize("by", [np.int8(1), np.int64(1)])
def test_numpy_integers_are_integers(by):
    seq = computed(mock_llm("Hi"), "a" * 300)
    seq.shift(np.int16(299), by=by)
    assert seq.positions == [*range(299), 300]
    with pytest.raises(InvalidRequest):
        seq.shift(0, by=np.int64(2**63 - 1))


def test_cells_of_a_dropped_sequence_are_there_for_the_next_request():
    llm = mock_llm(lambda seen: ord("x"), cells=64)

    def drop_a_sequence():
        seq = llm.sequence("abc")
        for _ in range(55):
            seq.step(temperature=0)

    drop_a_sequence()
    gc.collect()
    assert llm.generate("y" * 60, max_tokens=3).text == "xxx"
