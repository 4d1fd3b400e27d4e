"""The command of scripts that make files of the documents: write those that are out of date, or name them."""

import argparse
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def is_outdated(file: Path, text: str) -> bool:
    """Whether a file is missing or has another text."""
    return not file.is_file() or file.read_text("utf-8") != text


def run(description: str, outdated: Mapping[Path, str]) -> int:
    """Write the files that are out of date; with --check only name them, and fail if there are any."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="name the files that are out of date")
    check = parser.parse_args().check
    for file, text in outdated.items():
        print(f"{'out of date' if check else 'written'}: {file.relative_to(ROOT)}")
        if not check:
            file.write_text(text, "utf-8")
    return 1 if check and outdated else 0
