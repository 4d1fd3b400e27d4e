"""Docstrings as the site shows them: examples become blocks of code, paths of documents become links.

An extension of Griffe, which reads the docstrings for mkdocstrings.
"""

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from titles import linked

FOLDER = "reference/api"  # of the pages of names


class Docstrings(griffe.Extension):
    """Makes Markdown of the docstrings of a package."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """The text with its examples in fences."""
    lines: list[str] = []
    example = False
    for line in text.split("\n"):
        starts = line.startswith(">>>")
        if starts and not example:
            lines += ["", "```pycon"]
        elif example and not line.strip():
            lines.append("```")
        example = starts or (example and bool(line.strip()))
        lines.append(line if example or line.startswith("    ") else linked(line, FOLDER))
    return "\n".join([*lines, "```"] if example else lines)
