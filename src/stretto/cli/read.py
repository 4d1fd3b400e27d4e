"""`stretto read`: the text in images."""

from __future__ import annotations

from typing import Annotated

from stretto.cli.images import show_images
from stretto.cli.task_files import AsJson, Device, Draw, Files, Threads, model_option


def read(
    files: Files,
    model: Annotated[str, model_option("A model that can read.")] = "ppocr",
    draw: Draw = None,
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Read the text in images, in reading order."""
    show_images(files, model, "read", draw, as_json, device, threads)
