"""Titles of pages, and links that have them as labels, for texts that name a page as `stretto docs NAME`."""

import os
import re
from pathlib import Path

from stretto.cli.docs import find
from stretto.errors import InvalidRequest

ROOT = Path(__file__).parents[2]
DOCUMENT = re.compile(r"`?\bstretto docs ([\w/-]+)`?")


def title(page: Path) -> str:
    """The title of a page, as its first heading has it."""
    with page.open(encoding="utf-8") as lines:
        return next(line.removeprefix("# ").strip() for line in lines if line.startswith("# "))


def linked(text: str, folder: str) -> str:
    """The text with links in place of commands such as `stretto docs mixes`, for a page in this folder."""

    def link(command: re.Match[str]) -> str:
        try:
            page = find(command[1])
        except InvalidRequest:  # “stretto docs lists all pages” is a sentence
            return command[0]
        label = title(page).split(":")[0]
        return f"[{label}]({os.path.relpath(page, ROOT / 'docs' / folder)})"

    return DOCUMENT.sub(link, text)
