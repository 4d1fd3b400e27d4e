"""`stretto rm`: remove models."""

from __future__ import annotations

from typing import Annotated

import typer


def rm(
    models: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names as `stretto models` has them.")
    ],
) -> None:
    """Remove models from this machine."""
    from stretto.weights import hub

    for name in models:
        hub.remove(name)
        typer.echo(f"removed {name}")
