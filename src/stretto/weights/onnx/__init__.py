"""ONNX model files, looked at before a runtime opens them.

    file = read_onnx("model.onnx")          # ModelError for anything a runtime should not see
    file.inputs, file.outputs, file.metadata, file.operators

The file is mapped and its structure is read by a small bounded parser (wire.py says why); tensors are only
compared with the bytes that are there. stretto docs onnx lists what is refused.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG

from stretto.errors import ModelError
from stretto.weights.mapped import GuardedMap
from stretto.weights.onnx.checks import check_model
from stretto.weights.onnx.model import Graph, Node, OnnxFile, OnnxLimits, TensorInfo, ValueInfo
from stretto.weights.onnx.parse import Parser
from stretto.weights.onnx.wire import Wire

__all__ = [
    "Graph",
    "Node",
    "OnnxFile",
    "OnnxLimits",
    "TensorInfo",
    "ValueInfo",
    "files_stamp",
    "read_onnx",
]

DEFAULT_LIMITS = OnnxLimits()


def read_onnx(path: str | os.PathLike[str], limits: OnnxLimits = DEFAULT_LIMITS) -> OnnxFile:
    """Read and check a model file; `ModelError` names the tensor or field that a runtime should not see.

    >>> list(read_onnx("model.onnx").inputs)
    ['input_ids', 'attention_mask']
    """
    path = Path(path)
    with _mapped(path, limits) as mapped, memoryview(mapped) as buffer:
        parsed = Parser(Wire(buffer, path, limits), limits).parse()
    check_model(parsed, limits)
    return replace(parsed, stamp=files_stamp(parsed))


def files_stamp(file: OnnxFile) -> tuple[int, ...]:
    """Sizes and times of a model's files: the same numbers as long as nobody has changed one."""
    found: list[int] = []
    for path in (file.path, *file.external):
        status = path.stat()
        found += [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    return tuple(found)


def _mapped(path: Path, limits: OnnxLimits) -> GuardedMap:
    """The file's bytes, read-only."""
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise ModelError("is a folder, a pipe or a device; give the path of an .onnx file", path=path)
        if status.st_size == 0:
            raise ModelError("the file is empty; fetch it again", path=path)
        if status.st_size >= limits.protobuf_bytes:
            raise ModelError(
                f"{status.st_size} bytes, but protobuf takes less than {limits.protobuf_bytes}; save the "
                "model with its tensors as external data",
                path=path,
            )
        with path.open("rb") as file:
            return GuardedMap.open(file.fileno(), path)
    except FileNotFoundError:
        raise ModelError("no such file", path=path) from None
    except PermissionError:
        raise ModelError("no permission to read it; check the file's owner and mode", path=path) from None
    except (OSError, ValueError) as error:  # a filesystem without mmap, a name with a NUL
        raise ModelError(f"cannot be mapped into memory: {error}", path=path) from None
