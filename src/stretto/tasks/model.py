"""`TaskModel`: the base of models that do not generate text.

A subclass sets `verbs`, implements each of them, and releases what it holds in `close`. A verb takes one
input and returns one result, or a list of inputs and returns a list of results, in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from stretto.errors import ModelError
from stretto.loading.verbs import Verbs
from stretto.weights import hub

R = TypeVar("R")


@dataclass(frozen=True)
class Source:
    """What a model is opened from: its files by their names."""

    name: str
    license: str
    files: Mapping[str, Path]


class TaskModel(Verbs):
    """A model by its name and licence, with the verbs that it has. Close it, or use it in a `with`."""

    takes: str = "image"  # what its verbs are about: "image", "text", "bytes" or "audio"

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.license = source.license

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(self.verbs)} ({self.license})>"


def each(inputs: Any, one: Callable[[Any], R]) -> R | list[R]:
    """The result of one input, or the results of a list of them.

    >>> each(["a", "b"], str.upper)
    ['A', 'B']
    """
    return [one(value) for value in inputs] if isinstance(inputs, (list, tuple)) else one(inputs)


# Models by their names, or as ONNX files. Each model of the catalogue has a module that opens it, and that
# is imported when the model is.

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
    "moonshine-base": "stretto.tasks.speech.moonshine",
    "ppocr": "stretto.tasks.reading.ppocr",
    "wordllama": "stretto.tasks.static",
    "whisper-tiny.en": "stretto.tasks.speech.whisper",
    "whisper-base": "stretto.tasks.speech.whisper",
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
        return _open(HOMES[name], Source(name, stored.license, files), device, threads)
    path = Path(name).expanduser()
    if not path.is_file():
        raise ModelError("there is no such file", path=path)
    source = Source(path.stem, "unknown", {path.name: path})
    return _open("stretto.tasks.recipes", source, device, threads)


def _open(home: str, source: Source, device: str, threads: int | None) -> TaskModel:
    made = import_module(home).open_task(source, device, threads)
    assert isinstance(made, TaskModel)
    return made
