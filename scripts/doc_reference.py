"""The generated pages of docs/reference: options, commands, endpoints, errors, supported models and formats.

    python scripts/doc_reference.py            # writes them
    python scripts/doc_reference.py --check    # says which are out of date, and ends with 1 if any is

Each page is made from what the program itself reads: tables of options, commands of typer, the OpenAPI
document, the exceptions, the registries. `tests/docs` compares the pages with what this writes.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from reference import commands, endpoints, errors, supported
from stretto.options import documenting

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "options.md": documenting.page,
    "commands.md": commands.page,
    "endpoints.md": endpoints.page,
    "errors.md": errors.page,
    "supported.md": supported.page,
}


def outdated() -> dict[str, str]:
    """The pages that are not what they should be, with the text that they should have."""
    texts = {name: make() for name, make in PAGES.items()}
    return {
        name: text
        for name, text in texts.items()
        if not (FOLDER / name).is_file() or (FOLDER / name).read_text("utf-8") != text
    }


def main() -> int:
    """Write the pages that have changed, or only name them."""
    parser = argparse.ArgumentParser(description="Write the generated pages of docs/reference.")
    parser.add_argument("--check", action="store_true", help="name the pages that are out of date")
    check = parser.parse_args().check
    found = outdated()
    for name, text in found.items():
        print(f"{'out of date' if check else 'written'}: docs/reference/{name}")
        if not check:
            (FOLDER / name).write_text(text, "utf-8")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
