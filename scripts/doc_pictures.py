"""Drawings and plots of the documents, written to docs/pictures: one SVG each, for light and dark pages.

python scripts/doc_pictures.py            # draws all
python scripts/doc_pictures.py --check    # names the files that are out of date, and ends with 1 if any is
"""

import sys
from collections.abc import Callable
from pathlib import Path

from generated_files import ROOT, is_outdated, run
from pictures import cells, engine, lattice, plots, quality
from pictures.svg import Canvas

FOLDER = ROOT / "docs" / "pictures"
PICTURES: dict[str, Callable[[], Canvas]] = {
    "cells-and-forks": cells.forks,
    "engine-step": engine.step,
    "lattice": lattice.lattice,
    "image-cells": cells.images,
    "speed-by-cpu": plots.speed_by_cpu,
    "cost-by-length": plots.cost_by_length,
    "parallel-quality": quality.quality_by_compute,
}


def outdated() -> dict[Path, str]:
    """The files that are missing or not current, with the SVG that they should have."""
    files = {FOLDER / f"{name}.svg": draw().render() for name, draw in PICTURES.items()}
    return {file: svg for file, svg in files.items() if is_outdated(file, svg)}


if __name__ == "__main__":
    sys.exit(run("Draw the pictures of the documents.", outdated()))
