"""Docstrings as the site shows them: examples become blocks of code, paths of documents become links.

An extension of Griffe, which reads the docstrings for mkdocstrings.
"""

import re
from typing import Any

import griffe

DOCUMENT = re.compile(r"`?docs/([\w/-]+)\.md`?")
UP = "../../"  # pages of names lie in reference/api/


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
        lines.append(line if example or line.startswith("    ") else _linked(line))
    return "\n".join([*lines, "```"] if example else lines)


def _linked(line: str) -> str:
    return DOCUMENT.sub(lambda path: f"[{path[1].rsplit('/', 1)[-1]}]({UP}{path[1]}.md)", line)
