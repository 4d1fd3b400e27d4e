"""`stretto rm`: remove models."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.cli.completion import model_names


def rm(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Names as `stretto models` has them.", autocompletion=model_names
        ),
    ],
) -> None:
    """Remove models from this machine."""
    from stretto.weights import hub

    for name in models:
        hub.remove(name)
        typer.echo(f"removed {name}")
