"""Frames of the table of cells: a reader that applies them has the table, whatever it has missed."""

from types import SimpleNamespace

import numpy as np
import pytest

from cell_reader import Reader
from stretto.cache.following import Follower
from stretto.server.frames import Lens, empty_frame
from stretto.server.mirror import UNNAMED, Mirror
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
def test_frames_add_up_to_the_table_also_for_readers_that_miss_some(seed):
    llm, rng, held = mock_llm(endless, cells=64), np.random.default_rng(seed), []
    follower, mirror, everything, own = Follower(), Mirror(0), Lens("mock", True), Lens("mock", False)
    quick, slow, tenant = Reader(), Reader(), Reader()

    def is_mine(sequence):
        return sequence % 2 == 0

    for version in range(1, 60):
        operate(llm, held, rng)
        changed = mirror.apply(llm.cells.copied(follower).result(0))
        everything.update(mirror, changed, version, is_mine)
        own.update(mirror, changed, version, is_mine)
        quick.take(everything.frame(quick.version))
        quick.check(llm)
        tenant.take(own.frame(tenant.version))
        tenant.check(llm, is_mine)
        if rng.integers(4) == 0:
            slow.take(everything.frame(slow.version))
            slow.check(llm)
    assert everything.frame(everything.version) is None


def test_sets_are_numbered_anew_when_the_numbers_run_out():
    llm = mock_llm(endless, cells=64)
    follower, mirror, lens, reader = Follower(), Mirror(0), Lens("mock", True), Reader()
    for version in range(1, 8):
        if version == 4:
            mirror._next = UNNAMED - 1
        sequence = llm.sequence([97 + version, 98])
        sequence.logits  # noqa: B018
        fork = sequence.fork()
        fork.append([99])
        fork.logits  # noqa: B018
        changed = mirror.apply(llm.cells.copied(follower).result(0))
        lens.update(mirror, changed, version, lambda i: True)
        frame = lens.frame(reader.version)
        assert frame["full"] == (version in (1, 4))
        reader.take(frame)
        reader.check(llm)
        sequence.close(), fork.close()


def test_an_unloaded_model_has_no_cells():
    reader = Reader()
    reader.take(empty_frame("mock", 3))
    assert (reader.version, len(reader.positions), reader.sequences) == (3, 0, {})


def test_cells_of_images_are_marked():
    llm, follower, mirror, lens, reader = (
        mock_llm(endless, cells=64),
        Follower(),
        Mirror(0),
        Lens("mock", True),
        Reader(),
    )
    llm._engine.runner.images = SimpleNamespace(placeholder=ord("i"))
    expected = []
    for version, text in enumerate(("aiib", "aixi"), 1):
        with llm.sequence(text) as held:
            held.logits  # noqa: B018
            changed = mirror.apply(llm.cells.copied(follower).result(0))
            lens.update(mirror, changed, version, lambda i: True)
            reader.take(lens.frame(reader.version))
            tokens = llm._engine.cells.tokens
            assert reader.images.tolist() == (tokens == ord("i")).tolist()
            expected.append(int(reader.images.sum()))
    assert expected == [2, 3]
    llm._engine.runner.images = None
