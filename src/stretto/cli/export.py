"""`stretto export`: a model in another format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from stretto.cli import options as o
from stretto.cli.commands import Command, Group
from stretto.cli.output import clean, console, progress, size
from stretto.cli.prompts import model_and_files

export = typer.Typer(cls=Group, help="Write a model in another format.")


@export.callback()
def _formats() -> None:
    """Write a model in another format."""


@export.command(cls=Command)
def onnx(
    name: o.Name = None,
    folder: Annotated[str | None, typer.Argument(metavar="FOLDER", help="The folder to write.")] = None,
    model: o.NeededModel = None,
    precision: Annotated[
        Literal["f32", "f16", "int8", "int4"],
        typer.Option(help="Of the weights; int8 and int4 keep the file's own blocks where they can."),
    ] = "int8",
    form: Annotated[
        Literal["gqa", "plain", "cells"],
        typer.Option(
            help="gqa: ONNX Runtime's operators; plain: standard ones, for any runtime; "
            "cells: cells and views as inputs."
        ),
    ] = "gqa",
    context: Annotated[
        int | None, typer.Option(help="The longest text (default: the model's own, 32768 at most).")
    ] = None,
    external_data: Annotated[
        bool | None,
        typer.Option(
            "--external-data/--no-external-data",
            help="Weights in a file beside the graph (default: from 1.5 GB on).",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that exists.")] = False,
) -> None:
    """Write a model as an ONNX folder: graph, tokenizer and configurations.

    Plain onnxruntime, onnxruntime-genai and Optimum run the form gqa. An export that is interrupted leaves
    nothing behind.
    """
    from stretto.export import export_onnx
    from stretto.weights import hub

    usage = "export onnx MODEL FOLDER"
    model, (target,) = model_and_files((name, folder), model, usage, has_default=False)
    with progress(model, "{task.completed}/{task.total} layers") as show_progress:
        made = export_onnx(
            hub.resolve(model, pull=False),
            Path(target),
            precision=precision,
            form=form,
            context=context,
            external_data=external_data,
            replace=force,
            progress=show_progress,
        )
    line = f"{made.path}: {made.form}, {made.precision}, context {made.context}, {size(made.nbytes)}"
    console().print(clean(line), soft_wrap=True)
