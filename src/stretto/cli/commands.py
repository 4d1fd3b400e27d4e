"""All commands as one typer app, each imported when it runs; the help page imports all of them.

`stretto.cli.main` builds the app for the command that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from stretto.cli.help import Command, Group

# Commands by the panel of the help page; each is a function in a module of its own name here.
PANELS = {
    "": "chat run parallel serve ps stop pull models rm merge inspect tokenize devices doctor docs compare",
    "Other kinds of models": "embed rerank classify detect segment read transcribe",
    "Files in other formats": "quantize convert imatrix",
    "Quality": "score perplexity eval",
}
GROUPS = "logs config bench export deploy"  # commands that have commands
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
NAMES = (*PANEL_OF, *GROUPS.split())
FUNCTIONS = {"eval": "eval_"}  # where the name is Python's own


def new_app(names: Iterable[str] = NAMES) -> typer.Typer:
    """An app with these commands."""
    app = typer.Typer(
        name="stretto",
        cls=Group,
        help="Language models, and models of other kinds, on your own machine.",
        epilog="Errors are one line and exit code 2. A model is a name (stretto models), a path, "
        "or hf:org/repo:Q4_K_M.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        found: Any = getattr(import_module(f"stretto.cli.{name}"), FUNCTIONS.get(name, name))
        if name in PANEL_OF:
            panel: dict[str, Any] = {"rich_help_panel": PANEL_OF[name]} if PANEL_OF[name] else {}
            app.command(name, cls=Command, **panel)(found)
        else:
            app.add_typer(found, name=name)
    app.callback(invoke_without_command=True)(_root)
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Language models, and models of other kinds, on your own machine."""
    if version:
        from stretto import __version__

        typer.echo(f"stretto {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
