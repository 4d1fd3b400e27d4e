"""Titles of pages, and links that have them as labels, for texts that name a page by its path in docs/."""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = re.compile(r"`?\bdocs/([\w/-]+\.md)`?")


def title(page: Path) -> str:
    """The title of a page, as its first heading has it."""
    with page.open(encoding="utf-8") as lines:
        return next(line.removeprefix("# ").strip() for line in lines if line.startswith("# "))


def linked(text: str, folder: str) -> str:
    """The text with links in place of paths such as docs/how-to/tools.md, for a page in `folder` of docs/."""

    def link(path: re.Match[str]) -> str:
        page = ROOT / "docs" / path[1]
        label = title(page).split(":")[0]
        return f"[{label}]({os.path.relpath(page, ROOT / 'docs' / folder)})"

    return DOCUMENT.sub(link, text)
