"""The blocks of code in a Markdown page.

Blocks of Python run in order, in one namespace. One that must not run has a reason on the line before it,
`<!-- not run: needs a GPU -->`. What a reader would have and the page does not show, such as a file, is in a
comment before a block: `<!-- given: names = ["a", "b"] -->`.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)```([\w-]*)([^\n]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
GIVEN = re.compile(r"<!-- given:\s*(.*?)\s*-->", re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*$")
SHELLS = ("bash", "sh", "console", "")


@dataclass(frozen=True)
class Block:
    """A block: its language, text, and line in the page; `given` is code that comes before it."""

    language: str
    text: str
    line: int
    given: str = ""
    not_run: str = ""


def pages() -> list[Path]:
    """All pages with code: those of docs/ and the README."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text("utf-8")
    found, end = [], 0
    for match in FENCE.finditer(text):
        indent, language, _, body = match.groups()
        before = text[end : match.start()]
        reason = NOT_RUN.search(before)
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        found.append(
            Block(
                language,
                "\n".join(lines) + "\n",
                text[: match.start()].count("\n") + 2,
                "\n".join(given[1] for given in GIVEN.finditer(before)),
                reason[1] if reason else "",
            )
        )
        end = match.end()
    return found


def commands(text: str) -> list[list[str]]:
    """The commands of a block for a shell, as words; comments, variables and pipes are taken away."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        try:
            tokens = list(lexer)
        except ValueError:  # a quote that goes on in the next line
            continue
        for word in [*tokens, ";"]:
            if word and set(word) <= set("|;&"):
                found.append(words)
                words = []
            elif words or not re.fullmatch(r"[A-Z_]+=\S*", word):
                words.append(word)
    return [words for words in found if words]
