"""Export of models to other formats, from their specs and weights: ONNX (stretto docs how-to/export).

    from stretto.export import export_onnx

    export_onnx("model.gguf", "folder", precision="int4", form="gqa")

It needs the package `onnx`, which is an optional dependency.
"""

from __future__ import annotations

from stretto.errors import Unsupported

try:
    from stretto.export.folder import Exported, export_onnx
except ModuleNotFoundError as error:
    if error.name != "onnx":
        raise
    raise Unsupported("the export needs the package onnx: pip install 'stretto[onnx]'") from None

__all__ = ["Exported", "export_onnx"]
