"""Decoders on ONNX Runtime: `open_onnx` makes a backend from a folder."""

from __future__ import annotations

from stretto.backends.base import BackendOptions
from stretto.backends.onnx.backend import OnnxBackend
from stretto.backends.onnx.cells import OnnxCellsBackend, is_cells_graph, read_cells_graph
from stretto.backends.onnx.graph import DecoderGraph, read_graph
from stretto.backends.onnx.packing import open_packed
from stretto.backends.onnx.spec import DecoderSpec, read_decoder_spec
from stretto.backends.onnx_session import require_merged
from stretto.errors import Unsupported
from stretto.weights.onnx import read_onnx
from stretto.weights.onnx.folder import OnnxFolder

__all__ = ["DecoderGraph", "DecoderSpec", "OnnxBackend", "OnnxCellsBackend", "open_onnx"]


def open_onnx(folder: OnnxFolder, options: BackendOptions) -> OnnxBackend | OnnxCellsBackend:
    """A backend for the decoder of a folder; device "auto" takes CUDA if it works here, else the CPU.

    On the CPU quantised products are the native core's, unless `repack=False` (packing.py).
    """
    for name, value, usual in (
        ("kv", options.kv, ("f16", "f32")),
        ("precision", options.precision, ("standard",)),
    ):
        if value not in usual:
            raise Unsupported(
                f"{name}={value!r} needs backend='native': an ONNX graph computes as it was exported",
                param=name,
                value=value,
            )
    file = read_onnx(folder.model)
    graph = read_cells_graph(file) if is_cells_graph(file) else read_graph(file, folder.decoder)
    decoder = read_decoder_spec(folder, graph)
    if isinstance(graph, DecoderGraph) and graph.branch is not None:
        require_merged(file)
    session, packing = open_packed(file, options.device, options.threads, options.repack)
    backend: OnnxBackend | OnnxCellsBackend
    if isinstance(graph, DecoderGraph):
        backend = OnnxBackend(session, graph, decoder, options.cells, options.threads)
    else:
        backend = OnnxCellsBackend(session, graph, decoder, options.cells, options.threads)
    backend.packing = packing
    return backend
