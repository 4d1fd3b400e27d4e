"""Printing, shared by all commands."""

from __future__ import annotations

import json
import math
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.table import Table

# Control, format (these reverse the direction of text), surrogate, private, line and paragraph separators.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def clean(text: str) -> str:
    r"""`text` on one line, with everything escaped that a terminal might obey.

    >>> clean("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    return "".join(_escape(char) if unicodedata.category(char) in _UNPRINTABLE else char for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def size(nbytes: int) -> str:
    """A number of bytes for people: `98.4 MB`.

    >>> size(98_362_432), size(999)
    ('98.4 MB', '999 B')
    """
    if nbytes < 1000:
        return f"{nbytes} B"
    power = min(len(str(nbytes)) - 1, 3 * 8) // 3  # by digits: a float could not hold every claim of a file
    value = (nbytes * 10 + 1000**power // 2) // 1000**power
    return f"{value // 10:,}.{value % 10} {'kMGTPEZY'[power - 1]}B"


def console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: no markup, no emoji names, no highlighting."""
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    # A pipe has no width: 120 columns, and cells fold, so that nothing is cut off.
    width = None if file.isatty() else shutil.get_terminal_size((120, 25)).columns
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table; the columns named in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def print_json(value: Any) -> None:
    """One JSON document on stdout, in ASCII, so that no escape sequence gets through."""
    sys.stdout.write(json.dumps(finite(value), indent=2, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """`value` with NaN and infinities as strings: JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


@contextmanager
def progress(name: str, *columns: ProgressColumn | str) -> Iterator[Callable[..., None]]:
    """A bar for one thing, and the function that is told what is done and how much there is."""
    with progress_bar(*columns) as bar:
        task = bar.add_task(clean(name), total=None)
        yield lambda done, total=None, *_: bar.update(task, completed=done, total=total)


def progress_bar(*columns: ProgressColumn | str) -> Progress:
    """A bar on stderr, in a terminal, with these columns behind it; a share and the time left by default."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    screen = console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *(columns or (TaskProgressColumn(), TimeRemainingColumn())),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
