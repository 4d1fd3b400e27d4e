"""Markdown for a terminal, in blocks: each can be drawn by itself, and all but the last are final."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from markdown_it import MarkdownIt
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax
from rich.text import Text

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import Console, ConsoleOptions, RenderResult

_CODES = re.compile(r"\x1b\[[0-9;]*m")
# HTML and definitions of links stay text: a model that writes of vector<int> must not lose half of it.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")


class Block(NamedTuple):
    """A block of a text: its first line, its source, and what it is ("item" and a mark in a list)."""

    line: int
    source: str
    kind: str


def blocks(text: str) -> list[Block]:
    """The blocks of a text; items of a list are blocks of their own.

    >>> [(block.kind, block.source) for block in blocks("Hi\\n\\n1. one\\n2. two\\n")]
    [('paragraph', 'Hi'), ('item .', '1. one'), ('item .', '2. two')]
    """
    lines = text.split("\n")
    starts = list(_starts(_PARSER.parse(text)))
    ends = [line for line, _ in starts[1:]] + [len(lines)] * bool(starts)
    found = [
        Block(line, "\n".join(lines[line:end]).rstrip(), kind)
        for (line, kind), end in zip(starts, ends, strict=True)
    ]
    return [block for block in found if block.source]


def _starts(tokens: list[Token]) -> Iterator[tuple[int, str]]:
    """Where blocks start, and what they are."""
    for token in tokens:
        if token.map is None or token.nesting < 0:
            continue
        if token.level == 1 and token.type == "list_item_open":
            yield token.map[0], f"item {token.markup}"
        elif token.level == 0 and token.type not in ("bullet_list_open", "ordered_list_open"):
            yield token.map[0], token.type.removesuffix("_open")


def final_blocks(text: str) -> tuple[list[Block], str]:
    """The blocks that no further text can change, and the rest of the text.

    A block is final when another one has started in a whole line: until then, more text may join it.
    """
    whole = text.rfind("\n") + 1
    found = blocks(text[:whole])
    if len(found) < 2:
        return [], text
    rest = "\n".join(text.split("\n")[found[-1].line :])
    return found[:-1], rest


def render(console: Console, source: str, width: int) -> list[str]:
    """The lines of a block, with the codes that colour them."""
    with console.capture() as captured:
        console.print(_ChatMarkdown(source), width=width, end="")
    lines = [line.rstrip() for line in captured.get().split("\n")]
    shown = [index for index, line in enumerate(lines) if _CODES.sub("", line).strip()]
    return lines[shown[0] : shown[-1] + 1] if shown else []  # the space around blocks is `render_blocks`'s


class _LeftHeading(Heading):
    """A heading where the text begins, and no frame around it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _PlainCode(CodeBlock):
    """Code in the terminal's own colours, without a frame, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme="ansi_dark",
            background_color="default",
            word_wrap=True,
        )


class _ChatMarkdown(Markdown):
    """Markdown as chats have it: line breaks count, HTML is text, and links show where they lead."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }

    def __init__(self, source: str) -> None:
        super().__init__("", justify="default", hyperlinks=False)
        self.markup = source
        self.parsed = _PARSER.parse(source)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"


def dim(console: Console, source: str, width: int) -> list[str]:
    """The lines of a text that is set off from the answer."""
    with console.capture() as captured:
        console.print(Text(source, style="dim italic"), width=width, end="")
    return [line.rstrip() for line in captured.get().split("\n")]


def gap(before: str | None, after: str) -> bool:
    """Whether an empty line stands between blocks of these kinds."""
    return before is not None and not (before == after and after.startswith("item"))


def render_blocks(console: Console, found: list[Block], before: str | None, width: int) -> list[str]:
    """The lines of some blocks below a block of kind `before`."""
    lines: list[str] = []
    for block in found:
        if gap(before, block.kind):
            lines.append("")
        lines += render(console, block.source, width)
        before = block.kind
    return lines
