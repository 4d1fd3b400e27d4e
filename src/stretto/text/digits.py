"""Long runs of digits, cut where pre-tokenizers that group digits by three cut them anyway.

Two patterns look ahead to the end of a run at each of its groups, which takes quadratic time. Parts of a few
hundred digits, each a multiple of three from the right place, give the same groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal
from unicodedata import category

Grouping = Literal["", "ascii", "words"]

PART_DIGITS = 600  # a multiple of three
_LONG = {
    "ascii": re.compile(f"[0-9]{{{2 * PART_DIGITS},}}"),
    "words": re.compile(rf"\d{{{2 * PART_DIGITS},}}"),
}


def cut_digits(text: str, grouping: Grouping) -> list[str]:
    """The text in parts that are pre-tokenized alike, apart or together.

    "ascii" groups 0 to 9 from the end of a run. "words" groups digits from the end, or from the start if the
    run goes on as a word.
    """
    if not grouping:
        return [text]
    begin, parts = 0, []
    for run in _LONG[grouping].finditer(text):
        for at in _places(text, run.start(), run.end(), grouping):
            parts.append(text[begin:at])
            begin = at
    parts.append(text[begin:])
    return parts


def _places(text: str, start: int, end: int, grouping: Grouping) -> Iterator[int]:
    if grouping == "words" and end < len(text) and _is_word(text[end]):
        first = start + PART_DIGITS
    else:
        first = start + PART_DIGITS + (end - start) % 3
    yield from range(first, end, PART_DIGITS)


def _is_word(character: str) -> bool:
    """Whether no word ends before a character, as the patterns' engine has it."""
    kind = category(character)
    return kind[0] in "LMN" or kind == "Pc"
