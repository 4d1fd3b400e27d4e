"""`stretto tokenize`: the tokens of a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stretto.cli import options as o
from stretto.cli.first_run import default_model
from stretto.cli.output import clean, console, print_json
from stretto.cli.prompts import model_and_prompt
from stretto.errors import InvalidRequest

_COLOURS = ("black on cyan", "black on yellow", "black on green", "black on magenta")


def tokenize(
    words: o.ModelAndText = None,
    model: o.Model = None,
    special: Annotated[
        bool, typer.Option("--special", help="Parse special tokens, and add those the model asks for.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: ids and pieces.")] = False,
) -> None:
    """Show the tokens of a text: their ids, and their pieces as the vocabulary spells them.

    In a terminal the text itself comes first, coloured by token. One argument is the text, unless it is the
    name or path of a model; two are model and text.
    """
    from stretto.cli.pull import pull_missing

    # Only the tokenizer is read: loading the model would take longer.
    from stretto.text.loading import load_gguf_tokenizer
    from stretto.weights import hub
    from stretto.weights.folder import open_weights

    model, text = model_and_prompt(words or [], model)
    content = _text(text)
    if model is None:  # one that is named is not fetched for its vocabulary alone
        pull_missing(model := default_model())
    with open_weights(hub.resolve(model, pull=False)) as file:
        tokenizer = load_gguf_tokenizer(file)
    ids = tokenizer.encode(content, special=special)
    pieces = [tokenizer.piece(token) for token in ids]
    if as_json:
        print_json({"count": len(ids), "ids": ids, "pieces": pieces})
        return
    from rich.text import Text

    screen = console()
    if screen.is_terminal:
        coloured = Text()
        for index, data in enumerate(tokenizer.pieces(ids, special=True)):
            # A token may hold a part of a character; its bytes are shown then.
            coloured.append(
                clean(data.decode("utf-8", "backslashreplace")), style=_COLOURS[index % len(_COLOURS)]
            )
        screen.print(coloured)
    width = max((len(str(token)) for token in ids), default=0)
    for index, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
        line = Text(f"{token:>{width}}  ")
        line.append(clean(piece), style=_COLOURS[index % len(_COLOURS)])
        screen.print(line, soft_wrap=True)
    print(f"{len(ids)} token{'' if len(ids) == 1 else 's'}", file=sys.stderr)


def _text(argument: str | None) -> str:
    """The text to tokenize; raises if it is not Unicode: a shell can pass any bytes."""
    try:
        if argument is None or argument == "-":
            return sys.stdin.buffer.read().decode("utf-8")
        argument.encode("utf-8")
    except UnicodeError as error:
        raise InvalidRequest(f"the text is not UTF-8: {error}") from None
    return argument
