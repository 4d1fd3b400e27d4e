"""Frames of the table of cells: each is all of the table that its caller may see."""

from types import SimpleNamespace

import numpy as np
import pytest

from cell_reader import Reader
from stretto.server.own import cells as server_cells
from stretto.server.own.cells import FREE, UNNAMED, frame
from stretto.testing import mock_llm


def operate(llm, held, rng):
    """Something that changes the table."""
    kind = rng.integers(7)
    if kind == 0 or not held:
        held.append(llm.sequence([int(t) for t in rng.integers(97, 120, rng.integers(1, 6))]))
        held[-1].logits  # noqa: B018
    elif kind == 1 and len(held) < 8:
        held.append(held[int(rng.integers(len(held)))].fork())
    elif kind == 2:
        held.pop(int(rng.integers(len(held)))).close(park=bool(rng.integers(2)))
    elif kind == 3:
        held[int(rng.integers(len(held)))].truncate(2)
    elif kind == 4:
        llm.cells.copy(held[0].id, 7, 0, 2)
    elif kind == 5:
        llm.cells.remove(7)
    else:
        llm.generate("abc", max_tokens=3, temperature=0)
    while llm.cells.n_free < 16:
        held.pop(0).close(park=False)
        llm.cache.clear()


def endless(seen):
    return 97 + len(seen) % 26


@pytest.mark.parametrize("seed", range(4))
def test_a_frame_is_the_table_as_its_caller_may_see_it(seed):
    llm, rng, held = mock_llm(endless, cells=64), np.random.default_rng(seed), []

    def is_mine(sequence):
        return sequence % 2 == 0

    for _ in range(60):
        operate(llm, held, rng)
        copied = llm.cells.copied()
        mine = set(filter(is_mine, copied.views))
        everything = Reader().take(frame("mock", copied, mine, True))
        everything.check(llm)
        assert {i for i, facts in everything.sequences.items() if facts["mine"]} == mine
        own = Reader().take(frame("mock", copied, mine, False))
        own.check(llm, is_mine)
        assert all(facts["mine"] for facts in own.sequences.values())


def test_sets_of_others_do_not_show_in_the_numbers_of_a_callers_own():
    llm = mock_llm(endless, cells=64)
    with llm.sequence("abcd") as shared, llm.sequence("xyz") as own:
        shared.logits, own.logits  # noqa: B018
        with shared.fork() as other, other.fork():
            told = frame("mock", llm.cells.copied(), {own.id, shared.id}, False)
    assert {number: set(ids) for number, ids in told["sets"].items()} == {1: {shared.id}, 2: {own.id}}


def test_sets_beyond_the_last_number_are_not_named(monkeypatch):
    llm = mock_llm(endless, cells=64)
    with llm.sequence("ab") as one, llm.sequence("xyz") as other:
        one.logits, other.logits  # noqa: B018
        monkeypatch.setattr(server_cells, "MAX_SETS", 1)
        monkeypatch.setattr(server_cells, "UNNAMED", 2)
        reader = Reader().take(frame("mock", llm.cells.copied(), (), True))
    assert reader.sets == {1: [one.id]}
    assert [int((reader.set_of == number).sum()) for number in (FREE, 1, 2)] == [59, 2, 3]
    assert (reader.positions >= 0).sum() == 2
    assert reader.sequences[other.id]["n"] == 3


def test_a_frame_of_many_cells_is_small():
    llm = mock_llm(endless, cells=8192, context_length=8192)
    with llm.sequence([97] * 3000) as held:
        held.logits  # noqa: B018
        forks = [held.fork() for _ in range(32)]
        for fork in forks:
            fork.append([98])
        reader = Reader().take(told := frame("mock", llm.cells.copied(), (), True))
        reader.check(llm)
        assert len(told["columns"]) < 8192
        del forks


def test_an_unloaded_model_has_no_cells():
    reader = Reader().take(frame("mock", None, (), True))
    assert (len(reader.positions), reader.sets, reader.sequences) == (0, {}, {})


def test_cells_of_images_are_marked_and_those_of_others_are_not():
    llm = mock_llm(endless, cells=64)
    llm.engine.runner.images = SimpleNamespace(placeholder=ord("i"))
    for text in ("aiib", "aixi"):
        with llm.sequence(text) as held:
            held.logits  # noqa: B018
            reader = Reader().take(frame("mock", llm.cells.copied(), (), True))
            assert reader.images.tolist() == (llm.engine.cells.tokens == ord("i")).tolist()
            assert reader.images.sum() == text.count("i") + (text == "aixi")
            other = Reader().take(frame("mock", llm.cells.copied(), (), False))
            assert not other.images.any()
            assert (other.set_of == UNNAMED).sum() == (reader.set_of != FREE).sum()
    llm.engine.runner.images = None
