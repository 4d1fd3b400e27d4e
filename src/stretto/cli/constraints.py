"""The options of constrained decoding: --schema, --grammar, --regex, --choice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from stretto import Grammar

_PANEL = "Constraints"
MAX_FILE_BYTES = 16 << 20

Schema = Annotated[
    str | None,
    typer.Option(
        metavar="JSON|@FILE", help="Answer with JSON that fits this JSON schema.", rich_help_panel=_PANEL
    ),
]
Lark = Annotated[
    str | None,
    typer.Option(
        "--grammar", metavar="TEXT|@FILE", help="Answer by this Lark grammar.", rich_help_panel=_PANEL
    ),
]
Regex = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN", help="Answer with what this regular expression matches.", rich_help_panel=_PANEL
    ),
]
Choice = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Answer with one of these; repeat it.", rich_help_panel=_PANEL),
]


def constraint(
    schema: str | None, grammar: str | None, regex: str | None, choices: list[str] | None
) -> Grammar | None:
    """The grammar of an answer from the options, of which one may be given.

    >>> constraint(None, None, "[0-9]+", None).kind
    'regex'
    """
    given = {"--schema": schema, "--grammar": grammar, "--regex": regex, "--choice": choices or None}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise InvalidRequest(f"an answer has one constraint; {' and '.join(names)} were given")
    if not names:
        return None
    from stretto import Grammar

    if schema is not None:
        return Grammar.json(text_or_file("--schema", schema))
    if grammar is not None:
        return Grammar.lark(text_or_file("--grammar", grammar))
    if regex is not None:
        return Grammar.regex(regex)
    return Grammar.choices(choices or ())


def text_or_file(option: str, value: str) -> str:
    """The value of an option, or the text of the file behind an `@`."""
    if not value.startswith("@"):
        return value
    path = Path(value[1:]).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"{option}: {path} cannot be read: {why}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{option}: {path} has more than {MAX_FILE_BYTES:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{option}: {path} is not UTF-8: {error}") from None
