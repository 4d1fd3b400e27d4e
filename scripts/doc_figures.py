"""Figures of README.md and docs/, filled from benchmarks/raw or checked against benchmarks/RESULTS.md.

python scripts/doc_figures.py            # fills all marked figures and tables
python scripts/doc_figures.py --check    # names the pages that are out of date, and ends with 1 if any is

Three marks, invisible on a page:

    <!-- figure: NAME -->44<!-- /figure -->           filled by figures/spans.py
    <!-- table: NAME --> … <!-- /table -->            filled by figures/tables.py
    <!-- results: SECTION --> … <!-- /results -->     each figure in it is in that section of RESULTS.md,
                                                      or in a file of samples, as raw/parallel.json

A measured figure in no mark is a fault too; figures/unmarked.py says what counts as one.
"""

import re
import sys
from pathlib import Path

from figures.results import RESULTS, strays
from figures.results import SPAN as RESULTS_SPAN
from figures.spans import FIGURES
from figures.tables import TABLES
from figures.unmarked import unmarked
from generated_files import ROOT, is_outdated, run

SPAN = re.compile(r"(<!-- figure: ([\w.-]+) -->)(.*?)(<!-- /figure -->)", re.DOTALL)
TABLE = re.compile(r"(<!-- table: ([\w.-]+) -->\n\n)(.*?)(\n\n<!-- /table -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with its figures as they are measured; an unknown name is a KeyError."""
    text = SPAN.sub(lambda span: span[1] + FIGURES[span[2]]() + span[4], text)
    return TABLE.sub(lambda table: table[1] + TABLES[table[2]]() + table[4], text)


def unclosed(text: str) -> bool:
    """Whether a mark has no end, or a table is not between blank lines, so that nothing would be filled."""
    begun = {kind: text.count(f"<!-- {kind}: ") for kind in ("figure", "table", "results")}
    whole = {"figure": SPAN, "table": TABLE, "results": RESULTS_SPAN}
    return any(begun[kind] != len(whole[kind].findall(text)) for kind in begun)


def pages() -> dict[Path, str]:
    """README.md and all pages of docs/, with their texts."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {page: page.read_text("utf-8") for page in files}


def outdated() -> dict[Path, str]:
    """The pages whose figures are not current, with the text that they should have."""
    texts = {page: filled(text) for page, text in pages().items()}
    return {page: text for page, text in texts.items() if is_outdated(page, text)}


def report_strays() -> int:
    """Name marks without an end, figures that their source lacks, and figures in no mark; 1 if any."""
    results = RESULTS.read_text("utf-8")
    found = []
    for page, text in pages().items():
        name = page.relative_to(ROOT).as_posix()
        faults = ["a mark has no end"] if unclosed(text) else []
        faults += [*strays(text, results), *unmarked(name, text)]
        found += [f"{name}: {fault}" for fault in faults]
    print("".join(f"{fault}\n" for fault in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run("Fill the figures of the documents.", outdated()) | report_strays())
