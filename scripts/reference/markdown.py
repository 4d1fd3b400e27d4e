"""Pieces of Markdown that the generated pages share."""

import re
from collections.abc import Iterable, Sequence

MADE = "This page is made by `python scripts/doc_reference.py`."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; `|` within its fields is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def plain(text: str) -> str:
    """A text in one line, with `<` and `*` kept as they are, outside code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([<*])", r"\\\1", part) for part in parts)
