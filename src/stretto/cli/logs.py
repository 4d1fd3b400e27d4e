"""`stretto logs`: the conversations that are kept on this machine."""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.generation import note, printable
from stretto.cli.help import Command, Group, refuse_options
from stretto.cli.output import clean, console, print_json, table

logs = typer.Typer(cls=Group, invoke_without_command=True)


@logs.callback()
def listing(
    context: typer.Context,
    most: Annotated[int, typer.Option("--number", "-n", min=1, help="How many, the last ones first.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of objects.")] = False,
) -> None:
    """List the last conversations of run and chat; `stretto run -c` goes on with the last one.

    They are kept on this machine only, and not at all after: stretto config set logs off
    """
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    from stretto.cli import kept

    found = list(islice(kept.conversations(), most))
    if as_json:
        print_json([one.as_data() for one in found])
        return
    if not found:
        note("there are no conversations yet")
        return
    shown = table("id", "when", "model", "turns", "first message", right=("turns",))
    shown.columns[0].no_wrap = shown.columns[-1].no_wrap = True
    shown.columns[-1].overflow = "ellipsis"
    for one in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.changed))
        name = Path(one.model).name if one.model.endswith(".gguf") else one.model
        shown.add_row(*map(clean, (one.id, when, name, str(one.n_turns), one.title)))
    console().print(shown)


@logs.command(cls=Command)
def show(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="As `stretto logs` lists it, or its beginning; last.")
    ] = "last",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object.")] = False,
) -> None:
    """Show a conversation."""
    from stretto.cli import kept

    one = kept.find(name)
    if as_json:
        print_json(one.as_data())
        return
    note(f"{one.id}, {clean(one.model)}")
    for message in one.messages:
        text = printable(message["content"])
        mark = {"user": "> ", "system": "system: "}.get(message["role"], "")
        print(mark + text.replace("\n", "\n> ") if mark == "> " else mark + text)
        print()


@logs.command(cls=Command)
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove all conversations from this machine."""
    from stretto.cli import kept

    asks = not yes and sys.stdin is not None and sys.stdin.isatty()
    if asks and not typer.confirm("Remove all conversations?", err=True):
        return
    n = kept.clear()
    typer.echo(f"removed {n} conversation{'' if n == 1 else 's'}")
