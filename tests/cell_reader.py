"""What a page makes of the frames of a table of cells, and whether it is the table."""

import base64
import zlib

import numpy as np

from stretto.server.own.cells import FREE, UNNAMED


def by_number(found):
    """Keys are texts in JSON."""
    return {int(key): value for key, value in found.items()}


class Reader:
    """The table as the last frame has it."""

    def __init__(self):
        self.sequences = {}

    def take(self, frame):
        n, columns = frame["n"], zlib.decompress(base64.b64decode(frame["columns"]))
        assert len(columns) == 7 * n
        self.positions = np.frombuffer(columns, "<i4", n)
        self.set_of = np.frombuffer(columns, "<u2", n, 4 * n)
        self.images = np.frombuffer(columns, "u1", n, 6 * n).astype(bool)
        self.sets, self.sequences = by_number(frame["sets"]), by_number(frame["sequences"])
        return self

    def check(self, llm, is_mine=None):
        """Compare with the table itself; cells of others are in use, and that is all."""
        cells = llm.engine.cells
        assert len(self.set_of) == len(cells)
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
        assert len({tuple(ids) for ids in self.sets.values()}) == len(self.sets)
