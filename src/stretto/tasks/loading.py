"""From a name, an ONNX file or a folder to a model with verbs.

    load_task("centernet")                 # a model of the catalogue
    load_task("yolo.onnx")                 # a model with a recipe beside it, or one of a known family

Each model of the catalogue has a module that opens it; the module is imported when the model is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from stretto.errors import ModelError
from stretto.tasks.model import Source, TaskModel
from stretto.weights import hub

# The module of each model of the catalogue: it has `open_task(source, device, threads)`.
HOMES: Mapping[str, str] = {
    "efficientnet-lite0": "stretto.tasks.images.efficientnet",
    "orientation": "stretto.tasks.images.orientation",
    "centernet": "stretto.tasks.images.centernet",
    "centerface": "stretto.tasks.images.centerface",
    "layout": "stretto.tasks.images.layout",
    "u2net": "stretto.tasks.images.u2net",
    "hatesonar": "stretto.tasks.words",
    "magika": "stretto.tasks.filetypes",
    "moonshine": "stretto.tasks.speech.moonshine",
    "ppocr": "stretto.tasks.reading.ppocr",
    "wordllama": "stretto.tasks.static",
}


def load_task(
    model: str | os.PathLike[str], *, device: str = "auto", threads: int | None = None
) -> TaskModel:
    """Open a model of the catalogue by its name, or an ONNX file by its path."""
    name = os.fspath(model)
    if name in HOMES and isinstance(model, str):
        hub.require(name, None)
        stored = hub.pull(name)
        files = {path.name: path for path in (stored.path, *stored.parts)}
        return _opened(HOMES[name], Source(name, stored.license, files), device, threads)
    path = Path(name).expanduser()
    if not path.is_file():
        raise ModelError("there is no such file", path=path)
    source = Source(path.stem, "unknown", {path.name: path})
    return _opened("stretto.tasks.recipes", source, device, threads)


def _opened(home: str, source: Source, device: str, threads: int | None) -> TaskModel:
    made = import_module(home).open_task(source, device, threads)
    assert isinstance(made, TaskModel)
    return made
