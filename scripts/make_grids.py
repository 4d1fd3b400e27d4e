"""Writes csrc/weights/grids_data.h: the code books of the IQ formats, as text that grids.cpp expands.

    python scripts/make_grids.py

The entries are facts of the formats; PyPI's `gguf` has them as arrays. An entry is eight numbers of two
bits, or four of three, the first of them in the lowest bits; it is written in characters of six bits, '0' for
0, the lowest first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import quants

OUT = Path(__file__).resolve().parent.parent / "csrc" / "weights" / "grids_data.h"
WIDTH = 120
GRIDS = {
    "kGridIq2Xxs": (quants.IQ2_XXS, 2),
    "kGridIq2Xs": (quants.IQ2_XS, 2),
    "kGridIq2S": (quants.IQ2_S, 2),
    "kGridIq1": (quants.IQ1_S, 2),
    "kGridIq3Xxs": (quants.IQ3_XXS, 3),
    "kGridIq3S": (quants.IQ3_S, 3),
}


def text(kind: type, bits: int) -> str:
    """The entries of a format's grid, in characters."""
    kind.init_grid()
    grid = np.asarray(kind.grid).reshape(kind.grid_shape)
    digits = np.searchsorted(kind.grid_map, grid)
    entries = (digits << (bits * np.arange(grid.shape[1]))).sum(axis=1)
    length = 3 if bits == 2 else 2
    return "".join(chr(48 + (int(entry) >> 6 * i & 63)) for entry in entries for i in range(length))


def main() -> None:
    """Write the file."""
    lines = [
        "// The code books of the IQ formats, written by scripts/make_grids.py, read by grids.cpp.",
        "#pragma once",
        "",
        "namespace stretto {",
    ]
    for name, (kind, bits) in GRIDS.items():
        characters = text(kind, bits)
        pieces = [characters[i : i + WIDTH] for i in range(0, len(characters), WIDTH)]
        lines += ["", f"constexpr char {name}[] ="]
        lines += [f'    R"({piece})"' for piece in pieces]
        lines[-1] += ";"
    lines += ["", "}  // namespace stretto", ""]
    OUT.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
