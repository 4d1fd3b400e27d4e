"""From a model's name to its files: of which kind they are, and where; they are downloaded if necessary."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from stretto.hardware import usable_cores
from stretto.options.loading import LoadOptions
from stretto.weights import hub
from stretto.weights.folder import open_weights
from stretto.weights.gguf import GGUF

Kind = Literal["gguf", "onnx", "task"]
Model = str | os.PathLike[str]


def find_kind(model: Model, backend: str = "auto") -> Kind:
    """The kind of a model's files; nothing is downloaded to find out.

    "gguf" is a GGUF file, or a folder that is read as one; "onnx" a decoder that ONNX Runtime is to run;
    "task" a model that is no language model. What has a form of several kinds is "onnx" only by request.

    >>> find_kind("smollm2"), find_kind("centernet")
    ('gguf', 'task')
    """
    if hub.is_task(model):
        return "task"
    path = Path(model).expanduser()
    if path.suffix.lower() != ".onnx" and not path.is_dir():
        return "gguf"
    from stretto.weights.onnx.folder import has_other_weights, is_onnx_folder

    return "onnx" if is_onnx_folder(path) and (backend == "onnx" or not has_other_weights(path)) else "gguf"


def open_file(model: Model, options: LoadOptions, check: Callable[[Path], None] | None = None) -> GGUF:
    """Open a model's GGUF file or folder, in the formats that `quantize` names.

    `check` is asked before a download, with the head of the file.
    """
    file = open_weights(hub.resolve(model, check=check))
    if options.quantize is None:
        return file
    from stretto.quantize.model import QuantisedFile

    try:
        return QuantisedFile(file, options.quantize, options.threads or usable_cores())
    except BaseException:
        file.close()
        raise
