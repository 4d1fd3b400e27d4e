"""The generated pages of docs/reference: options, commands, endpoints, errors, supported models and formats;
the tables of Python names in docs/reference/api, the lists of pages in docs/index.md, and what pages quote.

    python scripts/doc_reference.py            # writes them
    python scripts/doc_reference.py --check    # says which are out of date, and ends with 1 if any is

Each page is made from what the program itself reads: tables of options, commands of typer, the OpenAPI
document, the exceptions, the registries. `tests/docs` compares the pages with what this writes.
"""

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "site"))

from titles import linked

from generated_files import ROOT, is_outdated, run
from reference import commands, endpoints, errors, names, options, page_lists, quotes, supported

FOLDER = ROOT / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "options.md": options.page,
    "commands.md": commands.page,
    "endpoints.md": endpoints.page,
    "errors.md": errors.page,
    "supported.md": supported.page,
}


def outdated() -> dict[Path, str]:
    """The pages that are not what they should be, with the text that they should have."""
    index = ROOT / "docs" / "index.md"
    texts = {FOLDER / name: linked(make(), "reference") for name, make in PAGES.items()}
    texts |= {page: linked(text, "reference/api") for page, text in names.pages(FOLDER / "api").items()}
    texts |= {index: page_lists.filled(index)} | quotes.pages()
    return {page: text for page, text in texts.items() if is_outdated(page, text)}


if __name__ == "__main__":
    sys.exit(run("Write the generated pages of docs/reference.", outdated()))
