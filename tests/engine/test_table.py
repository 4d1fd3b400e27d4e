"""`llm.cells`: changes by hand reach the sequences, and nothing else can be touched."""

import numpy as np
import pytest

from stretto import Batch
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import tiny_file, tiny_spec


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


NATIVE = ("forward", "hidden", "loop", "copy_cells", "rotate_cells", "read_cells", "write_cells")

WRONG = {
    "a position below 0": -1,
    "half a position": 1.5,
    "a text": "1",
    "nothing": None,
    "a truth": True,
    "a list": [1],
    "far below 0": -(2**80),
    "NaN": float("nan"),
    "an array": np.array([1, 2]),
}

EDITS = {
    "remove from": lambda llm, s, x: s.remove(x, 3),
    "remove to": lambda llm, s, x: s.remove(0, x),
    "close from": lambda llm, s, x: s.remove(x, 3, close=True),
    "close to": lambda llm, s, x: s.remove(0, x, close=True),
    "truncate": lambda llm, s, x: s.truncate(x),
    "shift from": lambda llm, s, x: s.shift(x, by=1),
    "shift to": lambda llm, s, x: s.shift(0, [] if x is None else x, by=1),
    "shift by": lambda llm, s, x: s.shift(3, 5, by=x),
    "copy from": lambda llm, s, x: llm.cells.copy(s.id, 7, x),
    "copy to": lambda llm, s, x: llm.cells.copy(s.id, 7, 0, "" if x is None else x),
    "copy whose": lambda llm, s, x: llm.cells.copy(x, 7),
    "copy whereto": lambda llm, s, x: llm.cells.copy(s.id, x),
    "table from": lambda llm, s, x: llm.cells.remove(s.id, x),
    "table to": lambda llm, s, x: llm.cells.remove(s.id, 0, "" if x is None else x),
    "table whose": lambda llm, s, x: llm.cells.remove(x),
    "cells whose": lambda llm, s, x: llm.cells.remove_cells(x, []),
    "cells": lambda llm, s, x: llm.cells.remove_cells(s.id, [x]),
    "keep": lambda llm, s, x: llm.cells.keep(x),
    "view": lambda llm, s, x: llm.cells.view(x),
    "members": lambda llm, s, x: llm.cells.members(x),
    "batch where": lambda llm, s, x: llm.forward(batch_at(x, s.id)),
    "batch whose": lambda llm, s, x: llm.forward(batch_at(9, x)),
}


def batch_at(position, sequence):
    batch = Batch()
    batch.extend([1, 2], position, [sequence], logits=True)
    return batch


@pytest.fixture
def spied():
    """A model on the native backend, a sequence of eight tokens, and what reached native code since."""
    backend, calls = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 64, 1), []
    with LLM(backend, byte_tokenizer(), fingerprint=lambda: "tiny") as llm:
        seq = llm.sequence(list(range(8)))
        seq.logits  # noqa: B018
        for name in NATIVE:
            setattr(backend, name, lambda *_, name=name: calls.append(name))
        yield llm, seq, calls


@pytest.mark.parametrize("edit", EDITS)
def test_nothing_wrong_reaches_native_code(spied, edit):
    llm, seq, calls = spied
    for wrong in WRONG.values():
        with pytest.raises(InvalidRequest):
            EDITS[edit](llm, seq, wrong)
    assert (calls, seq.tokens, seq.positions) == ([], list(range(8)), list(range(8)))
    assert llm.cells.n_used == 8
    llm.cells.check()


@pytest.mark.parametrize(
    "edit",
    [
        lambda llm, s: s.remove(2**70, 2**69),
        lambda llm, s: s.remove(6, 2, close=True),
        lambda llm, s: s.shift(6, 2, by=1),
        lambda llm, s: s.shift(0, by=2**70),
        lambda llm, s: s.shift(0, by=-(2**31)),
        lambda llm, s: s.shift(0, by=np.int64(2**63 - 1)),
        lambda llm, s: llm.cells.remove_cells(s.id, [2**70]),
        lambda llm, s: llm.cells.remove_cells(s.id, [64]),
        lambda llm, s: llm.cells.remove_cells(s.id, [[0], [1, 2]]),
        lambda llm, s: llm.cells.members(64),
        lambda llm, s: llm.forward(batch_at(2**31, s.id)),
        lambda llm, s: llm.forward(batch_at(2**70, s.id)),
        lambda llm, s: llm.forward(batch_at(127, s.id)),
        lambda llm, s: llm.cells.copy(s.id, s.id + 1),
        lambda llm, s: llm.cells.copy(s.id, 2**70),
    ],
)
def test_nothing_huge_reaches_native_code(spied, edit):
    llm, seq, calls = spied
    with pytest.raises(InvalidRequest):
        edit(llm, seq)
    assert (calls, seq.tokens, seq.positions) == ([], list(range(8)), list(range(8)))
    llm.cells.check()


def test_huge_ranges_end_with_the_sequence(spied):
    llm, seq, calls = spied
    seq.truncate(2**70)
    seq.remove(2**69, 2**70, close=True)
    seq.shift(2**70, by=5)
    assert llm.cells.copy(seq.id, 7, 2**69, 2**70) == 0
    assert llm.cells.remove(seq.id, 6, 2**70) == 2
    assert (calls, seq.tokens) == ([], list(range(6)))


CLOSED = {
    "logits": lambda s: s.logits,
    "step": lambda s: s.step(),
    "append": lambda s: s.append([1]),
    "fork": lambda s: s.fork(),
    "truncate": lambda s: s.truncate(2),
    "remove": lambda s: s.remove(1, 2),
    "close": lambda s: s.remove(1, 2, close=True),
    "shift": lambda s: s.shift(1, by=1),
    "clear": lambda s: s.clear(),
    "save": lambda s: s.save("never.safetensors"),
}


@pytest.mark.parametrize("park", [True, False])
def test_closed_and_foreign_sequences(spied, park):
    llm, seq, calls = spied
    other = mock_llm("x")
    for use in (other.cache.pin, lambda s: other.step([s])):
        with pytest.raises(InvalidRequest, match="not a sequence of this model"):
            use(seq)
    seq.close(park=park)
    used = llm.cells.n_used
    uses = [*CLOSED.values(), lambda s: llm.step([s]), lambda s: llm.cache.pin(s)]
    uses += [lambda s: llm.cells.remove(s.id), lambda s: llm.cells.copy(7, s.id)]
    for use in uses:
        with pytest.raises(InvalidRequest, match="is closed"):
            use(seq)
    assert (calls, llm.cells.n_used) == ([], used)
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
