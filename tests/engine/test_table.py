"""`llm.cells`: changes by hand reach the sequences, and nothing else can be touched."""

import numpy as np
import pytest

from stretto import Batch
from stretto.errors import InvalidRequest
from stretto.testing import mock_llm


@pytest.fixture
def llm():
    return mock_llm(lambda seen: len(seen))


def test_removing_cells_removes_the_tokens(llm):
    seq = llm.sequence("abcdef")
    llm.cells.remove(seq.id, 1, 3)
    assert (seq.text, seq.positions) == ("adef", [0, 3, 4, 5])
    assert seq.logits.argmax() == 4
    seq.append("x")
    assert seq.positions == [0, 3, 4, 5, 6]
    llm.cells.remove(seq.id)
    assert (seq.tokens, seq.position) == ([], 0)
    with pytest.raises(InvalidRequest, match="an empty sequence has no logits"):
        seq.logits  # noqa: B018
    seq.append("new")
    assert seq.logits.argmax() == 3
    llm.cells.check()


def test_copying_into_a_sequence(llm):
    a, b = llm.sequence("abc"), llm.sequence("xyzuvw")
    assert llm.cells.copy(b.id, a.id, 3) == 3
    assert (a.text, a.positions) == ("abcuvw", [0, 1, 2, 3, 4, 5])
    assert a.logits.argmax() == 6
    llm.cells.check()


def test_removing_single_cells(llm):
    seq = llm.sequence("abcd")
    seq.logits  # noqa: B018
    llm.cells.remove_cells(seq.id, llm.cells.view(seq.id)[1:2])
    assert (seq.text, seq.positions) == ("acd", [0, 2, 3])
    with pytest.raises(InvalidRequest, match="do not belong"):
        llm.cells.remove_cells(seq.id, [900])


def test_keep_and_clear(llm):
    a, b = llm.sequence("abc"), llm.sequence("xyz")
    a.logits, b.logits  # noqa: B018
    llm.generate("parked", max_tokens=2)
    llm.cells.keep(a.id)
    assert (a.text, b.text, llm.cells.n_used) == ("abc", "", 3)
    assert llm.cells.sequences == [a.id]
    llm.cells.clear()
    assert (a.text, llm.cells.n_used) == ("", 0)


def test_running_requests_are_out_of_reach(llm):
    with llm.stream("abc", max_tokens=50, ignore_eos=True) as stream:
        next(stream)
        (running,) = llm.cells.sequences
        for change in (
            lambda: llm.cells.remove(running),
            lambda: llm.cells.copy(5, running),
            lambda: llm.forward(batch_for(running)),
        ):
            with pytest.raises(InvalidRequest, match="belongs to a request that is running"):
                change()
        llm.cells.clear()
        assert llm.cells.n_used > 0
        next(stream)


def test_parked_sequences_are_out_of_reach(llm):
    seq = llm.sequence("abc")
    seq.logits  # noqa: B018
    seq.close()
    for change in (
        lambda: llm.cells.remove(seq.id),
        lambda: llm.cells.copy(5, seq.id),
        lambda: llm.forward(batch_for(seq.id)),
    ):
        with pytest.raises(InvalidRequest, match="is closed; its cells are parked"):
            change()


def batch_for(sequence):
    batch = Batch()
    batch.add(1, 10, [sequence])
    return batch


def test_a_batch_by_hand_reaches_the_sequence(llm):
    seq = llm.sequence("abc")
    batch = Batch()
    batch.extend(b"de", 3, [seq.id], logits=True)
    assert llm.forward(batch).argmax() == 5
    assert seq.text == "abcde"
    seq.close()
    assert llm.generate("abcdef", max_tokens=1).usage.cached_tokens == 3  # what came by hand is not matched


@pytest.mark.parametrize("name", ["copy", "remove"])
@pytest.mark.parametrize("wrong", [(-1, 5), (5, 2), (0, -1), (1.5, 2), (True, 2), ("0", 2), (2**70, 1)])
def test_wrong_ranges(llm, name, wrong):
    seq = llm.sequence("abcdefgh")
    seq.logits  # noqa: B018
    before = llm.cells.view(seq.id)
    target = (seq.id,) if name == "remove" else (seq.id, 7)
    with pytest.raises(InvalidRequest, match=r"start|stop"):
        getattr(llm.cells, name)(*target, *wrong)
    assert np.array_equal(llm.cells.view(seq.id), before)
    assert seq.text == "abcdefgh"
    llm.cells.check()


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.remove(-1, 2),
        lambda s: s.remove(3, 2),
        lambda s: s.remove("0", 1),
        lambda s: s.truncate(-1),
        lambda s: s.shift(-1, by=1),
        lambda s: s.shift(0, by=0.5),
        lambda s: s.shift(0, 3, by=1),
        lambda s: s.shift(2, by=-3),
        lambda s: s.shift(2, by=-1),
        lambda s: s.shift(0, by=2**40),
        lambda s: s.shift(5, 2**80, by=-(2**70)),
    ],
)
def test_wrong_edits_change_nothing(llm, edit):
    seq = llm.sequence("abcdefgh")
    seq.logits  # noqa: B018
    with pytest.raises(InvalidRequest):
        edit(seq)
    assert (seq.text, seq.positions) == ("abcdefgh", list(range(8)))
    llm.cells.check()


def test_shift_and_clear(llm):
    seq = llm.sequence("abcdef")
    seq.shift(3, by=10)
    assert seq.positions == [0, 1, 2, 13, 14, 15]
    seq.shift(13, 15, by=-5)
    assert seq.positions == [0, 1, 2, 8, 9, 15]
    assert (seq.text, seq.position) == ("abcdef", 16)
    twin = seq.fork()
    twin.shift(8, by=-5)  # its cells are its own from here on
    assert (twin.positions, seq.positions) == ([0, 1, 2, 3, 4, 10], [0, 1, 2, 8, 9, 15])
    twin.clear()
    assert (twin.tokens, twin.position, seq.text) == ([], 0, "abcdef")
    twin.append("x")
    assert twin.logits.argmax() == 1
    llm.cells.check()
