"""Frames of the table of cells: a reader that applies them has the table, whatever it has missed."""

import base64

import numpy as np
import pytest

from stretto.server.frames import Lens, empty_frame
from stretto.server.mirror import FREE, UNNAMED, Mirror
from stretto.testing import mock_llm


def numbers(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


class Reader:
    """What a page makes of frames."""

    def __init__(self):
        self.version = 0

    def take(self, frame):
        if frame is None:
            return
        self.version = frame["version"]
        if frame["full"]:
            self.positions = numbers(frame["positions"], "<i4").copy()
            self.set_of = numbers(frame["set"], "<u2").copy()
            self.images = np.zeros(frame["n"], bool)
            self.images[numbers(frame["images"], "<u4")] = True
            self.sets, self.sequences = dict(frame["sets"]), dict(frame["sequences"])
            return
        at = numbers(frame["at"], "<u4")
        self.positions[at], self.set_of[at] = numbers(frame["positions"], "<i4"), numbers(frame["set"], "<u2")
        self.images[at] = False
        self.images[numbers(frame["images"], "<u4")] = True
        for mine, new in ((self.sets, frame["sets"]), (self.sequences, frame["sequences"])):
            mine.update(new)
            for key in [key for key, value in new.items() if value is None]:
                del mine[key]

    def check(self, llm, is_mine=None):
        """Compare with the table itself; cells of others are in use, and that is all."""
        cells = llm._engine.cells
        for cell in range(len(cells)):
            members = cells.members(cell)
            shown = members if is_mine is None else {i for i in members if is_mine(i)}
            number = int(self.set_of[cell])
            if members and not shown:
                assert (number, self.positions[cell]) == (UNNAMED, -1)
            else:
                assert set(self.sets[number] if number != FREE else ()) == shown
                assert self.positions[cell] == cells.positions[cell]
        expected = {i: cells.count(i) for i in cells.sequences if is_mine is None or is_mine(i)}
        assert {i: facts["n"] for i, facts in self.sequences.items()} == expected
        table = {one["id"]: one["state"] for one in llm.cells.snapshot()["sequences"]}
        assert {i: facts["state"] for i, facts in self.sequences.items()} == {i: table[i] for i in expected}
        assert set(self.sets) == {int(n) for n in np.unique(self.set_of)} - {FREE, UNNAMED}


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
    mirror, everything, own = Mirror(64), Lens("mock", True), Lens("mock", False)
    quick, slow, tenant = Reader(), Reader(), Reader()

    def is_mine(sequence):
        return sequence % 2 == 0

    for version in range(1, 60):
        operate(llm, held, rng)
        mirror.apply(llm.cells.copied(mirror.version).result(0))
        everything.update(mirror, version, is_mine)
        own.update(mirror, version, is_mine)
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
    mirror, lens, reader = Mirror(64), Lens("mock", True), Reader()
    for version in range(1, 8):
        if version == 4:
            mirror._next = UNNAMED - 1
        sequence = llm.sequence([97 + version, 98])
        sequence.logits  # noqa: B018
        fork = sequence.fork()
        fork.append([99])
        fork.logits  # noqa: B018
        mirror.apply(llm.cells.copied(mirror.version).result(0))
        lens.update(mirror, version, lambda i: True)
        frame = lens.frame(reader.version)
        assert frame["full"] == (version in (1, 4))
        reader.take(frame)
        reader.check(llm)
        sequence.close(), fork.close()


def test_an_unloaded_model_has_no_cells():
    reader = Reader()
    reader.take(empty_frame("mock", 3))
    assert (reader.version, len(reader.positions), reader.sequences) == (3, 0, {})
