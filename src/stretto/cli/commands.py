"""All commands as one typer app, each imported when it runs; the help page imports all of them.

`stretto.cli.main` builds the app for the command that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from stretto.cli.help import Command, Group

# Commands by the panel of the help page.
PANELS = {
    "Language models": "chat run serve parallel tokenize",
    "Models on this machine": "models pull rm inspect",
    "Other kinds of models": "embed rerank classify detect segment read transcribe",
    "Files in other formats": "quantize convert export imatrix merge",
    "Speed and quality": "bench compare score perplexity eval",
    "Settings and machines": "config logs docs devices doctor ps stop deploy",
}
GROUPS = ("bench", "config", "deploy", "export", "logs")  # have commands of their own
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
NAMES = tuple(PANEL_OF)
FUNCTIONS = {"eval": "eval_"}  # where the name is Python's own
# Modules of several commands; others have a module of their own name here.
FAMILIES = {
    "models": "rm",
    "perplexity": "score",
    "quantize": "convert imatrix merge",
    "servers": "serve ps stop",
    "tasks": "classify detect embed read rerank segment transcribe",
}
MODULE_OF = {name: module for module, names in FAMILIES.items() for name in names.split()}


def new_app(names: Iterable[str] = NAMES) -> typer.Typer:
    """An app with these commands."""
    app = typer.Typer(
        name="stretto",
        cls=Group,
        help="Language models, and models of other kinds, on your own machine.",
        epilog="A model is a name (stretto models), a path, or hf:org/repo:Q4_K_M. It may be the first "
        "argument, or come by --model. stretto docs has the documentation: stretto docs cli.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        found: Any = getattr(
            import_module(f"stretto.cli.{MODULE_OF.get(name, name)}"), FUNCTIONS.get(name, name)
        )
        if name in GROUPS:
            app.add_typer(found, name=name, rich_help_panel=PANEL_OF[name])
        else:
            app.command(name, cls=Command, rich_help_panel=PANEL_OF[name])(found)
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
