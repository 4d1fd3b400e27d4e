"""Measured figures that no mark covers: numbers with a unit in README.md and docs/, and tables of them.

A number with a unit of speed, time, memory or of a ratio, or a decimal behind the name of a measure (hit
rate, perplexity), counts as measured, unless it is

- in code or in the address of a link;
- a size such as 600 × 400, the level of an interval (95 % interval), or a power of two of bytes (512 MiB),
  which is how limits, buffers and machines are given;
- listed for its page in given.py, with the reason why nobody measured it.

In a table the unit may be in its head or in the paragraph before it.
"""

import re
from collections.abc import Iterator

from figures.given import GIVEN

FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
MARK = re.compile(r"<!-- (figure|table|results): .*?<!-- /\1 -->", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}[^\n]*\n)+(?=\n)")
CODE = re.compile(r"`[^`\n]*`")
ADDRESS = re.compile(r"\]\([^)\n]*\)")

NUMBER = r"(?<![\w.,/-])\d+(?:,\d{3})*(?:\.\d+)?"
BYTES = r"[kKMGT]i?B\b(?!/s)"
RATE = r"tok/s|(?:\w+ )?\w+/s\b|(?:\w+ )?\w+ (?:a|per) second\b|(?:a|per) second\b|GFLOPS\b"
TIME = r"[mµn]?s\b|(?:milli|micro|nano)?seconds?\b|minutes?\b|cycles?\b"
RATIO = r"%(?! (?:confidence )?(?:interval|quantile)s?\b)|×(?! ?\d)|times\b|nats\b"
FIGURE = re.compile(rf"(?P<number>{NUMBER})[ \u00a0\n]?(?P<unit>{BYTES}|{RATE}|{TIME}|{RATIO})")
MEASURE = re.compile(
    r"\b(?:[Hh]it rates?|[Pp]erplexity|[Cc]osine|IoU|divergence|[Dd]istance)\b[^.;:|\d]{0,40}\d+\.\d+"
)

TABLE = re.compile(r"^\|.*\n\|[ :|-]+\n(?:\|.*\n?)+", re.MULTILINE)
UNIT_OF_TABLE = re.compile(
    r"tok/s|tokens a second|= 1\b|"
    r"\b(?:ms|µs|MB|GB/s|GMAC/s|cycles|nats|seconds|hit rate|times as|[Dd]istances?|IoU)\b"
)
CELL = re.compile(r"[* ]*\d[\d,.]*(?![\w-])[^a-zA-Z]*")


def blank(match: re.Match[str]) -> str:
    """As many lines as there were, with nothing on them."""
    return re.sub(r"[^\n]", " ", match[0])


def prose(page: str) -> str:
    """A page without its marks, code, comments and addresses; every line stays where it is."""
    for pattern in (FENCE, MARK, COMMENT, INDENTED, CODE, ADDRESS):
        page = pattern.sub(blank, page)
    return page


def is_power_of_two_of_bytes(number: str, unit: str) -> bool:
    """Whether a size is one that people choose: 512 MiB, 16 GB."""
    value = 0 if "." in number else int(number.replace(",", ""))
    return re.fullmatch(BYTES, unit) is not None and value > 0 and value & (value - 1) == 0


def figures(text: str) -> Iterator[tuple[int, str]]:
    """Numbers with a unit or behind the name of a measure, each with its offset."""
    for found in FIGURE.finditer(text):
        if not is_power_of_two_of_bytes(found["number"], found["unit"]):
            yield found.start(), " ".join(found[0].split())
    for found in MEASURE.finditer(text):
        yield found.start(), " ".join(found[0].split())


def bare_tables(text: str) -> Iterator[tuple[int, str]]:
    """Tables of numbers whose unit is in their head or in the paragraph before, as offset and head."""
    for table in TABLE.finditer(text):
        head, _, *rows = table[0].splitlines()
        before = text[: table.start()].rstrip().rsplit("\n\n", 1)[-1]
        cells = [cell.strip() for row in rows for cell in row.split("|")]
        if UNIT_OF_TABLE.search(f"{head} {before}") and any(map(CELL.fullmatch, cells)):
            yield table.start(), " ".join(head.split())


def unmarked(name: str, page: str) -> Iterator[str]:
    """The faults of a page: figures and tables in no mark, and lines of given.py that it does not need."""
    text = prose(page)
    given = {figure for pages in GIVEN.values() for figure in pages.get(name, ())}
    found = sorted([*figures(text), *bare_tables(text)])
    for start, figure in found:
        if figure not in given:
            line = 1 + text.count("\n", 0, start)
            yield f"line {line}: {figure} is in no mark and not in figures/given.py"
    for figure in sorted(given - {figure for _, figure in found}):
        yield f"{figure} is in figures/given.py and no longer on the page"
