"""Measured figures in no mark, in README.md and docs/: numbers with a unit, counts, and tables of them.

These count as measured:

- a number with a unit of speed, time, memory or of a ratio;
- a decimal behind the name of a measure (hit rate, perplexity);
- a small difference: 2e-5, or a decimal below 1 with three digits or more (0.002);
- a count of what was tried: 68 of 74, “Of 222”, or a number above 100 that nobody chooses (215 requests):
  neither a multiple of ten, nor beside a power of two, nor a status of HTTP or a year.

They pass if they are

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

SMALL = re.compile(rf"{NUMBER}e-\d+|(?<![\w.,/-])0\.\d{{3,}}(?!\w|\.\d)")
WHOLE = r"\d+(?:,\d{3})*"
OF = re.compile(rf"{NUMBER} of (?:the )?{WHOLE}(?!\w|\.\d)|\bOf (?:the )?{WHOLE}(?= [a-z(])")
COUNT = re.compile(rf"(?P<number>{NUMBER})(?= [a-z])(?! [kKMGT]i?B\b)")
STATUS, YEARS = range(400, 600), range(1990, 2100)

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


def is_chosen(number: str) -> bool:
    """Whether people choose such a number: it is small, round, beside a power of two, a status or a year."""
    if "." in number or (value := int(number.replace(",", ""))) <= 100:
        return True
    return (
        value % 10 == 0
        or 0 in (value & (value - 1), value & (value + 1))
        or value in STATUS
        or value in YEARS
    )


def found_in(text: str) -> Iterator[re.Match[str]]:
    """Numbers with a unit or behind the name of a measure, small differences, and counts."""
    for found in FIGURE.finditer(text):
        if not is_power_of_two_of_bytes(found["number"], found["unit"]):
            yield found
    for found in COUNT.finditer(text):
        if not is_chosen(found["number"]):
            yield found
    for pattern in (MEASURE, SMALL, OF):
        yield from pattern.finditer(text)


def figures(text: str) -> Iterator[tuple[int, str]]:
    """The figures of a text, each with its offset; of two that overlap, the one that begins first."""
    end = 0
    for found in sorted(found_in(text), key=lambda match: (match.start(), -match.end())):
        if found.start() >= end:
            end = found.end()
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
