"""What pages repeat of the tree: files of code as they stand, and the number of architectures.

<!-- file: PATH -->                             the block of code that follows is that file
<!-- count: decoders -->…<!-- /count -->        how many there are, by names of `general.architecture`
"""

import re
from pathlib import Path

from stretto.models import ARCHITECTURES

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/comparison.md", "docs/reference/models.md", "docs/how-to/add-an-architecture.md")
FILE = re.compile(r"(<!-- file: (\S+) -->\n```\w+\n).*?^(?=```$)", re.MULTILINE | re.DOTALL)
COUNT = re.compile(r"(<!-- count: (\w+) -->)[^<]*(?=<!-- /count -->)")
ENCODERS = [name for name in ARCHITECTURES if "bert" in name or "embedding" in name]
DECODERS = [name for name in ARCHITECTURES if name not in ENCODERS]
NUMBERS = {"decoders": len(DECODERS), "encoders": len(ENCODERS)}


def pages() -> dict[Path, str]:
    """The pages with what they repeat."""
    return {ROOT / name: _filled((ROOT / name).read_text("utf-8")) for name in PAGES}


def _filled(text: str) -> str:
    text = FILE.sub(lambda part: part[1] + (ROOT / part[2]).read_text("utf-8"), text)
    return COUNT.sub(lambda part: f"{part[1]}{NUMBERS[part[2]]}", text)
