"""Lists of pages in docs/index.md: `<!-- pages: PART -->` … `<!-- /pages -->`, in the order of the site."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "site"))

from order import page_list

LIST = re.compile(r"(<!-- pages: (.+?) -->\n\n)(.*?)(<!-- /pages -->)", re.DOTALL)


def filled(index: Path) -> str:
    """The text of the page, with all pages of each part."""
    text = index.read_text("utf-8")
    return LIST.sub(lambda part: f"{part[1]}{page_list(index.parent, part[2])}\n\n{part[4]}", text)
