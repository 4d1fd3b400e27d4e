"""Figures that are checked, not filled: each must be in the section of benchmarks/RESULTS.md that the page
names, or in the file of samples (`raw/NAME.json`)."""

import json
import re
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"
HEADING = re.compile(r"^(#{2,}) (.+)$", re.MULTILINE)
SPAN = re.compile(r"<!-- results: ([^>]+?) -->(.*?)<!-- /results -->", re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?(?!\w)")


def sections(text: str) -> dict[str, str]:
    """The text under each heading; one of a third level is named “Parent / Heading”."""
    found, parent = {}, ""
    headings = list(HEADING.finditer(text))
    for i, heading in enumerate(headings):
        level, name = len(heading[1]), heading[2]
        following = (later.start() for later in headings[i + 1 :] if len(later[1]) <= level)
        parent = name if level == 2 else parent
        full = name if level == 2 else f"{parent} / {name}"
        found[full] = text[heading.end() : next(following, len(text))]
    return found


def numbers(text: str) -> set[Decimal]:
    """The figures of a text; code and names such as Q4_1 or 8B have none."""
    return {Decimal(number[0].replace(",", "")) for number in NUMBER.finditer(CODE.sub("", text))}


def leaves(value: Any) -> Iterator[Decimal]:
    """The numbers of a file of samples, those in names of fields too."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from (Decimal(found[0]) for found in NUMBER.finditer(key))
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield Decimal(str(value))


@cache
def sampled(name: str) -> set[Decimal]:
    """The figures of a file of samples; shares also as per cent."""
    found = set(leaves(json.loads((RESULTS.parent / name).read_text("utf-8"))))
    return found | {100 * value for value in found}


def is_among(figure: Decimal, measured: set[Decimal]) -> bool:
    """Whether a figure is one of those that were measured, or one of them rounded."""
    step = Decimal(1).scaleb(int(figure.as_tuple().exponent))
    ways = (ROUND_HALF_EVEN, ROUND_HALF_UP)
    return any(figure == exact.quantize(step, way) for exact in measured for way in ways)


def strays(page: str, results: str) -> Iterator[str]:
    """The faults of the marked spans of a page: sections that are missing, figures that are not there."""
    by_name = sections(results)
    for span in SPAN.finditer(page):
        name, text = span[1], span[2]
        is_file = name.startswith("raw/") and (RESULTS.parent / name).is_file()
        if not is_file and name not in by_name:
            yield f"benchmarks/RESULTS.md has no section “{name}”"
            continue
        measured = sampled(name) if is_file else numbers(by_name[name])
        source = f"benchmarks/{name}" if is_file else f"“{name}” of benchmarks/RESULTS.md"
        for figure in sorted(numbers(text)):
            if not is_among(figure, measured):
                yield f"{figure} is not in {source}"
