"""Copies of the table of cells: made between two steps, read without the engine's lock."""

import threading

import numpy as np

from stretto.testing import mock_llm


def test_a_copy_is_the_table_and_stays_as_it_is():
    llm = mock_llm("Hello")
    llm.generate("abc", temperature=0)
    copied = llm.cells.copied()
    assert set(copied.states.values()) == {"parked"}
    assert copied.states.keys() == copied.views.keys()
    cells = llm.engine.cells
    before = [column.copy() for column in (cells.positions, cells.tokens)]
    data = copied.as_data()
    assert data == llm.cells.snapshot()
    llm.generate("xyz", temperature=0)
    assert all(map(np.array_equal, before, (copied.positions, copied.tokens)))
    assert copied.as_data() == data != llm.cells.snapshot()


def test_nothing_is_copied_when_nothing_has_changed():
    llm = mock_llm("Hello")
    with llm.sequence("abc") as held:
        held.logits  # noqa: B018
        first = llm.cells.copied()
        assert llm.cells.copied(first) is first
        with llm.cache.pin(held):
            second = llm.cells.copied(first)
            assert second is not first  # a sequence was pinned
            assert llm.cells.copied(second) is second
        held.append("d")
        held.logits  # noqa: B018
        third = llm.cells.copied(second)
        assert third.version > second.version
        assert len(third.views[held.id]) == 4


def test_changes_are_the_whole_table_or_nothing():
    llm = mock_llm("Hello")
    empty = llm.cells.changes()
    assert (empty.complete, len(empty.cells)) == (True, 0)
    llm.generate("abc", temperature=0)
    seen = llm.cells.changes(empty.version)
    assert (seen.complete, len(seen.cells), len(seen.sequences)) == (True, llm.cells.n_used, 1)
    same = llm.cells.changes(seen.version)
    assert (same.complete, same.version) == (False, seen.version)
    assert (len(same.cells), same.sequences, same.removed) == (0, {}, [])
    assert llm.cells.changes(seen.version + 7).complete


def test_a_copy_waits_for_the_step_and_gets_its_turn_before_the_next():
    in_step, go_on = threading.Event(), threading.Event()
    seen = []

    def script(tokens):
        in_step.set()
        assert go_on.wait(60)
        return 97

    llm = mock_llm(script)
    thread = threading.Thread(target=lambda: llm.generate("abc", max_tokens=500))
    thread.start()
    assert in_step.wait(60)
    reader = threading.Thread(target=lambda: seen.append(llm.cells.copied()))
    reader.start()
    reader.join(0.05)
    assert not seen
    go_on.set()
    reader.join(60)
    (copied,) = seen
    assert set(copied.states.values()) == {"running"}  # before the request was over
    thread.join(60)


def test_pinned_and_held_sequences_are_told_apart():
    llm = mock_llm("Hello")
    with llm.sequence("abc") as held, llm.cache.pin(held):
        states = llm.cells.copied().states
        assert states[held.id] == "held"
        assert sorted(states.values()) == ["held", "pinned"]
        found = llm.cells.at(int(llm.cells.view(held.id)[1]))
        assert (found.position, found.token, len(found.states)) == (1, ord("b"), 2)
