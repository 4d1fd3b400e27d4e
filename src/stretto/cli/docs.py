"""`stretto docs`: the pages of the documentation, which are installed with the package.

Help and errors name a page as `stretto docs NAME`. NAME is its path without `.md`, or the last part of that
where only one page has it; pages of Python names (reference/api) are named by their path.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.output import console, table
from stretto.errors import InvalidRequest

_LINK = re.compile(r"\[([^\]\n]+)\]\(([\w./-]+)\.md(?:#[\w-]*)?\)")


def page_names(incomplete: str) -> list[str]:
    """Names of pages that begin so, for a shell."""
    return [name for name in _short(pages()) if name.startswith(incomplete)]


def docs(
    page: Annotated[
        str | None,
        typer.Argument(metavar="PAGE", help="Its name; without one: all pages.", autocompletion=page_names),
    ] = None,
    only_path: Annotated[
        bool, typer.Option("--path", help="Print where the page is, or the folder of all pages.")
    ] = False,
) -> None:
    """Read the documentation: a page, or the list of all pages.

    In a terminal a page is laid out and scrolls; in a pipe it is Markdown.
    """
    if only_path:
        typer.echo(str(folder() if page is None else find(page)))
    elif page is None:
        _list()
    else:
        _show(find(page))


def folder() -> Path:
    """The folder of the pages: in the package, or in the repository that it runs from."""
    package = Path(__file__).parents[1]
    for place in (package / "_docs", package.parents[1] / "docs"):
        if (place / "index.md").is_file():
            return place
    raise InvalidRequest(
        f"the pages of documentation are missing in {package / '_docs'}; install Stretto again"
    )


def pages() -> list[str]:
    """The names of all pages, as paths."""
    home = folder()
    return sorted(path.relative_to(home).with_suffix("").as_posix() for path in home.rglob("*.md"))


def find(name: str) -> Path:
    """The file of a page by its name, which may be a path or its last part.

    >>> find("mixes").name
    'mixes.md'
    """
    wanted = name.strip("/").removeprefix("docs/").removesuffix(".md")
    there = pages()
    found = [one for one in there if one == wanted] or [one for one in there if _last(one) == wanted.lower()]
    if len(found) == 1:
        return folder() / f"{found[0]}.md"
    if found:
        which = " or ".join(f"stretto docs {one}" for one in found)
        raise InvalidRequest(f"there are {len(found)} pages {wanted!r}: {which}", param="page", value=name)
    near = _near(wanted, there)
    hint = f"; perhaps {', '.join(near)}" if near else ""
    raise InvalidRequest(
        f"there is no page {wanted!r:.80}{hint}; stretto docs lists all pages", param="page", value=name
    )


def _near(wanted: str, there: list[str]) -> list[str]:
    """Pages with a similar name, or whose titles have the word."""
    import difflib

    short = _short(there)
    titled = [name for name in short if wanted.lower() in _title(find(name)).lower()]
    return list(dict.fromkeys((*difflib.get_close_matches(wanted, short, 3), *titled)))[:4]


def _short(there: list[str]) -> list[str]:
    """The shortest name of each page."""
    last = [_last(one) for one in there]
    return [end if last.count(end) == 1 else one for one, end in zip(there, last, strict=True)]


def _last(name: str) -> str:
    return name if name.startswith("reference/api/") else name.rpartition("/")[2]


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line[2:].strip() for line in lines if line.startswith("# ")), path.stem)


def _list() -> None:
    """Print all pages with their titles, part by part."""

    names = pages()
    screen, part = console(), None
    listing = table("stretto docs …", "")
    for name, short in sorted(zip(names, _short(names), strict=True), key=lambda row: _rank(row[0])):
        if part not in (None, _rank(name)[0]):
            listing.add_row("", "")
        part = _rank(name)[0]
        listing.add_row(short, _title(folder() / f"{name}.md"))
    screen.print(listing)


def _rank(name: str) -> tuple[int, str]:
    """Pages for newcomers first."""
    parts = ("tutorials", "how-to", "reference", "explanation")
    part = name.split("/")[0] if "/" in name else ""
    return (parts.index(part) if part in parts else -1, name)


def _show(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.markdown import Markdown

    home, names = folder(), pages()
    short = dict(zip(names, _short(names), strict=True))

    def named(link: re.Match[str]) -> str:
        """A link to another page as the command that opens it."""
        target = Path(os.path.normpath(path.parent / f"{link[2]}.md"))
        name = target.relative_to(home).with_suffix("").as_posix() if target.is_relative_to(home) else ""
        return f"{link[1]} (`stretto docs {short[name]}`)" if name in short else link[1]

    os.environ.setdefault("LESS", "-RFX")  # colours; a page that fits is just printed
    screen = console()
    screen.width = min(screen.width, 110)
    with screen.pager(styles=True, links=False):
        screen.print(Markdown(_LINK.sub(named, text), hyperlinks=False))
