"""Drawings and plots of the documents, written to docs/pictures: one SVG each, for light and dark pages.

python scripts/doc_pictures.py            # draws all
python scripts/doc_pictures.py --check    # names the files that are out of date, and ends with 1 if any is
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pictures import cells, engine, lattice, plots
from pictures.svg import Canvas

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
PICTURES: dict[str, Callable[[], Canvas]] = {
    "cells-and-forks": cells.forks,
    "engine-step": engine.step,
    "lattice": lattice.lattice,
    "image-cells": cells.images,
    "speed-by-cpu": plots.speed_by_cpu,
    "cost-by-length": plots.cost_by_length,
}


def outdated() -> dict[Path, str]:
    """The files that are missing or not current, with the SVG that they should have."""
    files = {FOLDER / f"{name}.svg": draw().render() for name, draw in PICTURES.items()}
    return {file: svg for file, svg in files.items() if not file.exists() or file.read_text("utf-8") != svg}


def main() -> int:
    """Draw the pictures, or only name those that are out of date."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documents.")
    parser.add_argument("--check", action="store_true", help="name the files that are out of date")
    check = parser.parse_args().check
    found = outdated()
    for file, svg in found.items():
        print(f"{'out of date' if check else 'drawn'}: {file.name}")
        if not check:
            file.write_text(svg, "utf-8")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
