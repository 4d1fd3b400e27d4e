"""Reads at the end of a step: nobody waits for the engine's lock."""

import threading

import pytest

from stretto.testing import mock_llm


def test_an_idle_engine_is_read_at_once():
    llm = mock_llm("Hello")
    llm.generate("abc", temperature=0)
    copied = llm.cells.copied().result(0)
    assert copied.delta.complete
    assert set(copied.states.values()) == {"parked"}
    assert copied.seconds >= 0
    assert not llm.cells.reads.waiting


def test_a_step_reads_for_those_who_came_meanwhile():
    in_step, go_on, asked = threading.Event(), threading.Event(), []

    def script(seen):
        in_step.set()
        assert go_on.wait(60)
        return 97

    llm = mock_llm(script)
    thread = threading.Thread(target=lambda: llm.generate("abc", max_tokens=2))
    thread.start()
    assert in_step.wait(60)
    asked.append(llm.cells.copied())
    forgotten = llm.cells.copied()
    llm.cells.reads.drop(forgotten)
    assert not asked[0].done()  # the lock is taken, and this thread does not wait for it
    assert len(llm.cells.reads.waiting) == 1
    go_on.set()
    assert asked[0].result(60).states
    thread.join(60)
    assert forgotten.cancelled()
    assert not llm.cells.reads.waiting


def test_an_error_of_a_read_is_its_readers():
    llm = mock_llm("Hello")
    with pytest.raises(ZeroDivisionError):
        llm.cells.reads.ask(lambda: 1 / 0).result(0)
    assert llm.generate("abc", temperature=0).text == "Hello"


def test_pinned_and_held_sequences_are_told_apart():
    llm = mock_llm("Hello")
    with llm.sequence("abc") as held, llm.cache.pin(held):
        states = llm.cells.copied().result(0).states
        assert states[held.id] == "held"
        assert sorted(states.values()) == ["held", "pinned"]
        found = llm.cells.at(int(llm.cells.view(held.id)[1])).result(0)
        assert (found.position, found.token, len(found.states)) == (1, ord("b"), 2)
