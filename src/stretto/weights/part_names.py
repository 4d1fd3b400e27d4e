"""Names of split files: `model-00001-of-00003.gguf` is the first of three parts.

>>> part_name("model-00002-of-00003.gguf").file(3)
'model-00003-of-00003.gguf'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PARTS = 1024  # each takes a file descriptor; a larger count is no part's name

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class PartName:
    """The name of one part: the stem that all parts share, the part's number from 1 on, and the count."""

    stem: str
    number: int
    count: int
    suffix: str = ".gguf"

    def file(self, number: int) -> str:
        """The name of another part."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}{self.suffix}"

    @property
    def files(self) -> list[str]:
        """The names of all parts."""
        return [self.file(number) for number in range(1, self.count + 1)]


def part_name(name: str) -> PartName | None:
    """A file's name as that of a part; None if it is not one."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]) <= MAX_PARTS:
        return None
    return PartName(match[1], int(match[2]), int(match[3]), match[4])
