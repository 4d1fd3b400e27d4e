"""What a page makes of the frames of a table of cells, and whether it is the table."""

import base64

import numpy as np

from stretto.server.mirror import FREE, UNNAMED


def numbers(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


def by_number(found):
    """Keys are texts in JSON."""
    return {int(key): value for key, value in found.items()}


class Reader:
    """Applies frames."""

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
            self.sets, self.sequences = by_number(frame["sets"]), by_number(frame["sequences"])
            return
        at = numbers(frame["at"], "<u4")
        self.positions[at], self.set_of[at] = numbers(frame["positions"], "<i4"), numbers(frame["set"], "<u2")
        self.images[at] = False
        self.images[numbers(frame["images"], "<u4")] = True
        for mine, key in ((self.sets, "sets"), (self.sequences, "sequences")):
            new = by_number(frame[key])
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
