"""Lines about the chat itself, on stderr: notes are dim, errors begin in red, words stay whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stretto.cli.output import clean, console

if TYPE_CHECKING:
    from rich.text import Text


def note(text: str) -> None:
    """Print a line that is set off from the model's text."""
    from rich.text import Text

    show(Text(text, "dim"))


def error(text: str) -> None:
    """Print an error."""
    from rich.text import Text

    show(Text.assemble(("error:", "bold red"), f" {clean(text)}"))


def show(text: Text) -> None:
    """Print styled text; a terminal breaks lines between words, a pipe gets them as they are."""
    screen = console(stderr=True)
    screen.print(text, soft_wrap=not screen.is_terminal)


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and what they mean, in two columns."""
    from rich.table import Table

    screen, rows = console(stderr=True), list(rows)
    width = max(len(name) for name, _ in rows)
    if not screen.is_terminal:
        for name, meaning in rows:
            note(f"{name:<{width}}  {meaning}")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(style="dim")
    for name, meaning in rows:
        table.add_row(name, meaning)
    screen.print(table)
