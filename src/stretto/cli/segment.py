"""`stretto segment`: an image's foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.cli.images import show_images
from stretto.cli.task_files import AsJson, Device, Draw, Files, Threads, model_option


def segment(
    files: Files,
    model: Annotated[str, model_option("A model that can segment.")] = "u2net",
    draw: Draw = None,
    cut_out: Annotated[
        str | None,
        typer.Option("--cut-out", metavar="OUT", help="The image without its background, as a PNG."),
    ] = None,
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Tell the foreground of images from their background."""
    show_images(
        files,
        model,
        "segment",
        draw or cut_out,
        as_json,
        device,
        threads,
        picture="cut_out" if cut_out else "draw",
    )
