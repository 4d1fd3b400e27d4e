"""Decoders on ONNX Runtime: `open_onnx` makes a backend from a folder."""

from __future__ import annotations

from stretto.backends.onnx.backend import OnnxBackend
from stretto.backends.onnx.graph import DecoderGraph, read_graph
from stretto.backends.onnx.spec import DecoderSpec, read_decoder_spec
from stretto.backends.onnx_session import open_session
from stretto.weights.onnx import read_onnx
from stretto.weights.onnx.folder import OnnxFolder

__all__ = ["DecoderGraph", "DecoderSpec", "OnnxBackend", "open_onnx"]


def open_onnx(folder: OnnxFolder, device: str, n_cells: int, threads: int) -> OnnxBackend:
    """A backend for the decoder of a folder."""
    file = read_onnx(folder.model)
    graph = read_graph(file, folder.decoder)
    decoder = read_decoder_spec(folder, graph)
    session = open_session(file, device, threads)
    return OnnxBackend(session, graph, decoder, n_cells, threads)
