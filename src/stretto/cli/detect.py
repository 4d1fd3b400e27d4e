"""`stretto detect`: objects in images."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stretto.cli.images import show_images
from stretto.cli.task_files import AsJson, Device, Draw, Files, Threads, model_option


def detect(
    files: Files,
    model: Annotated[str, model_option("A model that can detect.")] = "centernet",
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="The least score (default: the model's own).")
    ] = None,
    draw: Draw = None,
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Find objects in images, with boxes in pixels."""
    options: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
    show_images(files, model, "detect", draw, as_json, device, threads, **options)
