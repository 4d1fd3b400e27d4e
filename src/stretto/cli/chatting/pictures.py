"""Images by path anywhere in a line: typed, completed with Tab, or dropped onto the terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.vision import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")

# A word: in quotes, or with spaces behind backslashes, as terminals write the files that are dropped on them.
_WORD = re.compile(r'"[^"\n]+"|\'[^\'\n]+\'|(?:\\.|[^\s\\"\'])+')
_AROUND = ".,;:?!)]}("


def find_images(line: str) -> list[tuple[int, int, Path]]:
    """Where a line names files that are images: start, end and path of each."""
    found = []
    for match in _WORD.finditer(line):
        for start, end in _candidates(line, match.start(), match.end()):
            if (path := _image_path(line[start:end])) is not None:
                found.append((start, end, path))
                break
    return found


def _candidates(line: str, start: int, end: int) -> list[tuple[int, int]]:
    """The word as it is, and without the punctuation around it."""
    word = line[start:end]
    inner = word.lstrip("([{").rstrip(_AROUND)
    offset = word.find(inner) if inner else 0
    return [(start, end), (start + offset, start + offset + len(inner))]


def unquoted(word: str) -> str:
    """A path as it is, from one in quotes or with backslashes before its spaces."""
    is_quoted = len(word) > 1 and word[0] in "\"'" and word[0] == word[-1]
    return word[1:-1] if is_quoted else re.sub(r"\\(.)", r"\1", word)


def _image_path(word: str) -> Path | None:
    text = unquoted(word)
    if not text.lower().endswith(SUFFIXES):
        return None
    try:
        path = Path(text).expanduser()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null character, no home
        return None


def with_images(line: str) -> list[str | Image]:
    """The texts and images of a line, in order; a line without images is one text."""
    from stretto.vision import Image

    parts: list[str | Image] = []
    done = 0
    for start, end, path in find_images(line):
        parts += [line[done:start], Image.open(path)]
        done = end
    parts.append(line[done:])
    return [part for part in parts if not isinstance(part, str) or part.strip()]
