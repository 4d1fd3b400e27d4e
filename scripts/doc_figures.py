"""Figures in the documents, filled from benchmarks/raw: `<!-- figure: NAME -->…<!-- /figure -->`.

python scripts/doc_figures.py            # fills all marked spans
python scripts/doc_figures.py --check    # names the pages that are out of date, and ends with 1 if any is
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from generated_files import ROOT, is_outdated, run

SPAN = re.compile(r"(<!-- figure: ([\w-]+) -->)(.*?)(<!-- /figure -->)", re.DOTALL)


def raw(name: str) -> Any:
    """The samples of a benchmark."""
    return json.loads((ROOT / "benchmarks" / "raw" / f"{name}.json").read_text("utf-8"))


def restore_ratio() -> str:
    """How many times as fast 2,048 tokens are restored as computed."""
    seconds = raw("cache")["seconds"]
    return f"{min(seconds['recompute 2048']['ours']) / min(seconds['restore 2048']['ours']):.0f} ×"


def lookup_ratio(kind: str) -> str:
    """How many times as fast greedy decoding of a kind of text is with prompt lookup: the median."""
    samples = [one for one in raw("drafts")["samples"] if one["kind"] == kind and not one["temperature"]]
    return f"{median(one['plain'] / one['lookup'] for one in samples):.2f} ×"


FIGURES: dict[str, Callable[[], str]] = {
    "restore-2048": restore_ratio,
    "lookup-copying": lambda: lookup_ratio("copying"),
}


def filled(text: str) -> str:
    """A page with its figures as they are measured; an unknown name is a KeyError."""
    return SPAN.sub(lambda span: span[1] + FIGURES[span[2]]() + span[4], text)


def outdated() -> dict[Path, str]:
    """The pages whose figures are not current, with the text that they should have."""
    pages = {page: filled(page.read_text("utf-8")) for page in sorted((ROOT / "docs").rglob("*.md"))}
    return {page: text for page, text in pages.items() if is_outdated(page, text)}


if __name__ == "__main__":
    sys.exit(run("Fill the figures of the documents.", outdated()))
