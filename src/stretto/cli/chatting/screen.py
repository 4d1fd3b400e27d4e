"""Where answers are shown: as Markdown on a terminal, as plain text anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING

from stretto.cli.chatting.answers import Screen
from stretto.cli.generation import PlainScreen, printable
from stretto.cli.output import clean, console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


# Lines at the bottom of a terminal that may still change, drawn with as little writing as possible.

# Terminals that know this mode show all that is written in between at once; others ignore it.
_HOLD, _SHOW = "\x1b[?2026h", "\x1b[?2026l"


class LiveLines:
    """The lines that were drawn last; the cursor stays behind the last of them.

    Only lines that differ are written again, and only those that the screen still shows: a line that has
    scrolled away is never touched. Text that only grows is written as it is, without moving the cursor.
    """

    def __init__(self, file: IO[str], height: Callable[[], int]) -> None:
        self._file = file
        self._height = height
        self._lines: list[str] = []

    def draw(self, lines: Sequence[str]) -> None:
        """Make these the lines."""
        old, new = self._lines, list(lines)
        if not new or old == new:
            return
        self._lines = new
        if not old:
            self._write("\r\n".join(new))
            return
        same = next((i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
        first = min(len(old), len(new)) if same is None else same
        last = len(old) - 1
        if first >= last and len(new) > last and new[last].startswith(old[last]):  # nothing but more text
            self._write("\r\n".join([new[last][len(old[last]) :], *new[last + 1 :]]))
            return
        top = max(0, len(old) - self._height())  # lines above it cannot be reached
        first = max(min(first, len(new) - 1), top)
        up = f"\x1b[{last - first}A" if first < last else ""
        self._write(f"{_HOLD}\r{up}\x1b[J" + "\r\n".join(new[first:]) + _SHOW)

    def commit(self, n: int) -> None:
        """Leave the first `n` lines as they are for good. If these are all, the next one starts below."""
        if n and n == len(self._lines):
            self._write("\r\n")
        del self._lines[:n]

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


FRAME_SECONDS = 1 / 25
DRAWING_SHARE = 0.1  # of the time at most


class MarkdownScreen:
    """Markdown on a terminal: final blocks are printed once, the last one is redrawn where it changes."""

    def __init__(self, show_reasoning: bool, screen: Console | None = None) -> None:
        from stretto.cli.chatting import markdown  # not with the module: pipes need no Markdown

        self._markdown = markdown
        self._console = console() if screen is None else screen
        self._show_reasoning = show_reasoning
        self._live = LiveLines(self._console.file, lambda: self._console.height)
        self._width = self._console.width
        self._text = ""  # what is not final
        self._thinks = False
        self._above: str | None = None  # the kind of the last final block
        self._next_frame = 0.0

    def show(self, text: str, is_reasoning: bool = False) -> None:
        """Show a piece of text, at once or with the next ones."""
        if not text or (is_reasoning and not self._show_reasoning):
            return
        if is_reasoning != self._thinks:
            self._draw(last=True)
            self._thinks = is_reasoning
        self._text += printable(text)
        if (now := time.monotonic()) >= self._next_frame:
            self._draw()
            cost = time.monotonic() - now
            self._next_frame = now + max(FRAME_SECONDS, cost / DRAWING_SHARE)

    def end(self) -> None:
        """Draw all of it; the next text starts anew."""
        self._draw(last=True)
        self._above, self._thinks = None, False

    def _draw(self, last: bool = False) -> None:
        """Draw what there is; if it is the `last` of a text, all of it is final."""
        lines, rest = (self._thoughts if self._thinks else self._blocks)(last)
        self._live.draw([*lines, *rest])
        self._live.commit(len(lines))
        if lines:
            self._width = self._console.width  # a terminal that was resized has the new width from here on

    def _blocks(self, last: bool) -> tuple[list[str], list[str]]:
        """The lines of the answer's final blocks, and those of the rest."""
        final, self._text = self._markdown.final_blocks(self._text)
        rest = self._markdown.blocks(self._text)
        if last:
            final, rest, self._text = [*final, *rest], [], ""
        lines = self._markdown.render_blocks(self._console, final, self._above, self._width)
        self._above = final[-1].kind if final else self._above
        return lines, self._markdown.render_blocks(self._console, rest, self._above, self._width)

    def _thoughts(self, last: bool) -> tuple[list[str], list[str]]:
        """The lines of reasoning, which is plain text: a line is final when it has ended."""
        text, dim = self._text, self._markdown.dim
        end = len(text.rstrip()) if last else len(text[: text.rfind("\n") + 1].rstrip("\n"))
        final, self._text = text[:end], "" if last else text[end:]  # empty lines wait for what follows them
        lines = dim(self._console, self._below_thought(final), self._width) if final else []
        self._above = "thought" if lines else self._above
        rest = self._below_thought(self._text)
        return lines, dim(self._console, rest, self._width) if rest.strip() else []

    def _below_thought(self, text: str) -> str:
        """Reasoning without the line break that belongs to the line above, or those before the first line."""
        return text.removeprefix("\n") if self._above == "thought" else text.lstrip("\n")


def new_screen(interactive: bool, show_reasoning: bool) -> Screen:
    """A screen for stdout: of Markdown in a terminal that can move its cursor."""
    if interactive and not console().is_dumb_terminal:
        return MarkdownScreen(show_reasoning)
    return PlainScreen(show_reasoning)


# Lines about the chat itself, on stderr: notes are dim, errors begin in red, words stay whole.


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
