"""The page about the architecture names every folder, and files that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "stretto"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text("utf-8")


def test_every_folder_is_in_the_table_and_nothing_else():
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    native = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*.cpp")}
    named = set(re.findall(r"^\| `([\w/]+)/` \|", PAGE, re.MULTILINE)) - {"stretto"}
    assert named == folders - {"."} | native | {"server/page"}


def test_files_that_are_named_exist():
    named = set(re.findall(r"`((?:\w+/)+\w+\.(?:py|cpp|h))`", PAGE))
    assert len(named) > 10
    assert (
        sorted(name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()) == []
    )
