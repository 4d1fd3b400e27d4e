"""Pieces of grammars in llguidance's variant of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from stretto.structured.checks import parser_schema, with_options
from stretto.structured.grammar import WHITESPACE
from stretto.structured.keys import with_surely_plain_keys
from stretto.structured.quoting import with_quotable_patterns
from stretto.tools.format import ID, LAST_MARK, MARKS, is_mark

ANY = "(?s:.*)"


def items(text: str) -> str:
    """A text: strings, special tokens by their ids, and ids of calls."""
    special = rf"[{chr(MARKS)}-{chr(LAST_MARK)}]"
    found = []
    for piece in re.split(rf"({special}|{ID})", text):
        if re.fullmatch(special, piece):
            found.append(f"<[{ord(piece) - MARKS}]>")
        elif piece == ID:
            found.append("ID")
        elif piece:
            found.append(json.dumps(piece, ensure_ascii=False))
    return " ".join(found) or '""'


def escaped(text: str) -> str:
    """A regular expression for a text."""
    return re.sub(r"[^\w ]", lambda match: f"\\x{{{ord(match[0]):X}}}", text)


def json_value(schema: str) -> str:
    """A value by a JSON schema."""
    text = schema
    if schema != "true":
        text = with_quotable_patterns(with_surely_plain_keys(parser_schema(schema)))
    return f"%json {with_options(text, json.dumps(WHITESPACE['spaced']))}"


def text_until(
    patterns: Sequence[str], excluded: Sequence[str], others: Sequence[str], end: str
) -> tuple[str, str]:
    """A terminal for text that fits all of some patterns and none of those excluded, or one of `others`.

    After it comes `end`. All is one terminal, since a text is split into terminals as long as possible.

    Also the items behind the terminal, from the first special token of `end` on: it cannot be in a terminal.
    """
    at = next((i for i, c in enumerate(end) if is_mark(c)), len(end))
    plain, rest = end[:at], end[at:]
    if plain.strip() and not rest:
        excluded = [*excluded, ANY + escaped(plain.strip()) + ANY]
    parts = [f"/{pattern}/" for pattern in patterns or [ANY]] + [f"~/{pattern}/" for pattern in excluded]
    text = " | ".join(["(" + " & ".join(parts) + ")", *(f"/{other}/" for other in others)])
    terminal = f"({text})" + (f" {json.dumps(plain, ensure_ascii=False)}" if plain else "")
    return terminal, items(rest) if rest else ""


def members(parts: Sequence[tuple[str, bool]], comma: str) -> tuple[str, list[str]]:
    """Parts of which some may be left out, with commas between those that are there.

    Each part is a rule's name and whether it is required. Returns the rule to start with, and the rules.
    """
    if not parts:
        return '""', []
    if not comma:
        return " ".join(name if required else f"{name}?" for name, required in parts), []
    lines: list[str] = []
    behind = fresh = ""  # the rules for the rest, with and without something before it
    for name, required in reversed(parts):
        first = f"{name} {behind}".strip()
        after = f"{comma} {first}"
        if not required:
            skipped = f"{comma} {name} {behind}".strip()
            after = f"{skipped} | {behind}" if behind else f"({skipped})?"
            first = f"{first} | {fresh}" if fresh else f"({first})?"
        lines += [f"{name}_first: {first}", f"{name}_behind: {after}"]
        fresh, behind = f"{name}_first", f"{name}_behind"
    return fresh, lines


def dumped(value: Any) -> str:
    """A schema as text."""
    return json.dumps(value, ensure_ascii=False)
