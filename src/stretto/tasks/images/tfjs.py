"""TensorFlow.js graph models as ONNX graphs: a `.json` with the operators and a `.bin` with the weights.

    convert(Path("centernet.json"), Path("centernet.bin"), ["tower_0/keypoints", "tower_0/wh"])

The operators of convolutional networks are known, enough for detectors; one that is not raises
`ModelError` by name, if an output needs it. Tensors keep TensorFlow's order, channels last, with a
transpose on each side of a convolution, which ONNX Runtime removes where two of them meet.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.tasks.images.graph import GraphBuilder

MAX_JSON_BYTES = 32 << 20
MAX_WEIGHT_BYTES = 1 << 30

PLAIN = {"float32": "<f4", "int32": "<i4", "bool": "?"}
QUANTIZED = {"float16": "<f2", "uint8": "u1", "uint16": "<u2"}
CONVOLUTIONS = {"Conv2D", "_FusedConv2D", "DepthwiseConv2dNative", "FusedDepthwiseConv2dNative"}
SAME = {
    **{name: name for name in ("Add", "Mul", "Sub", "Relu", "Sigmoid", "Identity")},
    "AddV2": "Add",
}

Array = NDArray[Any]


def convert(topology: Path, weights: Path, outputs: Sequence[str]) -> bytes:
    """An ONNX model with these outputs of a TensorFlow.js graph model."""
    for path, limit in ((topology, MAX_JSON_BYTES), (weights, MAX_WEIGHT_BYTES)):
        if path.stat().st_size > limit:
            raise ModelError(f"has more than {limit:,} bytes", path=path)
    try:
        model = json.loads(topology.read_bytes())
        tensors = _read_weights(model["weightsManifest"], weights.read_bytes())
        return _Conversion(model["modelTopology"]["node"], tensors).build(outputs)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError, binascii.Error) as error:
        raise ModelError(f"is no graph model of TensorFlow.js: {error!r}", path=topology) from error


def _read_weights(manifest: Any, data: bytes) -> dict[str, Array]:
    """The tensors, which are in the file in the manifest's order; numbers as they are used."""
    tensors, at = {}, 0
    for entry in (entry for group in manifest for entry in group["weights"]):
        packed = entry.get("quantization")
        kind = np.dtype(QUANTIZED[packed["dtype"]] if packed else PLAIN[entry["dtype"]])
        shape = [int(size) for size in entry["shape"]]
        n = prod(shape)
        if min(shape, default=0) < 0 or at + n * kind.itemsize > len(data):
            raise ValueError(
                f"tensor {entry['name']!r:.100} of {shape} reaches beyond the file's {len(data)} bytes"
            )
        values: Array = np.frombuffer(data, kind, n, at).reshape(shape)
        at += n * kind.itemsize
        if packed and packed["dtype"] != "float16":
            values = values.astype(np.float32) * np.float32(packed["scale"]) + np.float32(packed["min"])
        tensors[str(entry["name"])] = values.astype(np.float32) if entry["dtype"] == "float32" else values
    return tensors


class _Conversion:
    """Adds one operator after the other to a graph; those that no output needs may be unknown."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]], tensors: Mapping[str, Array]) -> None:
        self._nodes = {str(node["name"]): node for node in nodes}
        self._tensors = tensors
        self._graph = GraphBuilder("tfjs", opset=18)
        self._inputs: dict[str, list[int | str]] = {}

    def build(self, outputs: Sequence[str]) -> bytes:
        for name in self._needed(outputs):
            self._add(name, self._nodes[name])
        return self._graph.build(self._inputs, dict.fromkeys(outputs))

    def _needed(self, outputs: Sequence[str]) -> list[str]:
        """The nodes that the outputs need, each behind its inputs."""
        order: dict[str, None] = {}
        waiting, open_nodes = [(name, False) for name in outputs], set()
        while waiting:
            name, ready = waiting.pop()
            if ready:
                order[name] = None
            elif name not in order:
                if name in open_nodes:
                    raise ValueError(f"node {name!r:.100} needs itself")
                open_nodes.add(name)
                waiting.append((name, True))
                waiting += [(source, False) for source in self._sources(name) if source not in order]
        return list(order)

    def _sources(self, name: str) -> list[str]:
        inputs = self._nodes[name].get("input", [])
        return [source.split(":")[0] for source in inputs if not source.startswith("^")]

    def _add(self, name: str, node: Mapping[str, Any]) -> None:
        kind, sources, graph = str(node["op"]), self._sources(name), self._graph
        attributes = node.get("attr", {})
        if kind == "Const":
            graph.constant(self._tensors[name], name)
        elif kind == "Placeholder":
            sizes = attributes["shape"]["shape"]["dim"]
            self._inputs[name] = [1, *(int(size["size"]) for size in sizes[1:])]
        elif kind in SAME:
            graph.add(SAME[kind], *sources, output=name)
        elif kind == "Relu6":
            graph.clip(sources[0], name)
        elif kind in CONVOLUTIONS:
            self._convolution(name, kind, sources, attributes)
        elif kind in _OTHERS:
            _OTHERS[kind](self, name, sources, attributes)
        else:
            raise ValueError(f"the operator {kind!r:.100} is not known")

    def _convolution(self, name: str, kind: str, sources: list[str], attributes: Mapping[str, Any]) -> None:
        graph, kernel = self._graph, self._tensors[sources[1]]
        by_channel = "Depthwise" in kind
        if by_channel:
            kernel = kernel.transpose(2, 3, 0, 1).reshape(-1, 1, *kernel.shape[:2])
        else:
            kernel = kernel.transpose(3, 2, 0, 1)
        parts = [graph.constant(kernel, f"{sources[1]}.onnx")]
        fused = [_text(value) for value in attributes.get("fused_ops", {}).get("list", {}).get("s", [])]
        if fused[:1] == ["BiasAdd"]:
            parts.append(graph.constant(self._tensors[sources[2]].reshape(-1), f"{sources[2]}.onnx"))
        made = graph.add(
            "Conv",
            self._channels_first(sources[0]),
            *parts,
            strides=_integers(attributes["strides"])[1:3],
            dilations=_integers(attributes["dilations"])[1:3] if "dilations" in attributes else [1, 1],
            group=kernel.shape[0] if by_channel else 1,
            auto_pad=_padding(attributes),
            kernel_shape=list(kernel.shape[2:]),
        )
        for step in fused[1:]:
            if step not in ("Relu", "Relu6"):
                raise ValueError(f"a convolution with {step!r:.100} behind it is not known")
            made = graph.add("Relu", made) if step == "Relu" else graph.clip(made)
        self._channels_last(made, name)

    def _mean(self, name: str, sources: list[str], attributes: Mapping[str, Any]) -> None:
        axes = self._graph.constant(
            self._tensors[sources[1]].astype(np.int64).reshape(-1), f"{sources[1]}.onnx"
        )
        keep = int(attributes.get("keep_dims", {}).get("b", False))
        self._graph.add("ReduceMean", sources[0], axes, output=name, keepdims=keep)

    def _concat(self, name: str, sources: list[str], attributes: Mapping[str, Any]) -> None:
        self._graph.add("Concat", *sources[:-1], output=name, axis=int(self._tensors[sources[-1]]))

    def _resize(self, name: str, sources: list[str], attributes: Mapping[str, Any]) -> None:
        if attributes.get("half_pixel_centers", {}).get("b"):
            mode = "half_pixel"
        else:
            mode = "align_corners" if attributes.get("align_corners", {}).get("b") else "asymmetric"
        graph, made = self._graph, self._channels_first(sources[0])
        first, third = graph.constant(np.array([0]), "zeroth"), graph.constant(np.array([2]), "second")
        kept = graph.add("Slice", graph.add("Shape", made), first, third)
        size = graph.constant(self._tensors[sources[1]].astype(np.int64), f"{sources[1]}.onnx")
        sizes = graph.add("Concat", kept, size, axis=0)
        made = graph.add("Resize", made, "", "", sizes, mode="linear", coordinate_transformation_mode=mode)
        self._channels_last(made, name)

    def _pool(self, name: str, sources: list[str], attributes: Mapping[str, Any]) -> None:
        made = self._graph.add(
            "MaxPool",
            self._channels_first(sources[0]),
            kernel_shape=_integers(attributes["ksize"])[1:3],
            strides=_integers(attributes["strides"])[1:3],
            auto_pad=_padding(attributes),
        )
        self._channels_last(made, name)

    def _channels_first(self, made: str) -> str:
        return self._graph.add("Transpose", made, perm=[0, 3, 1, 2])

    def _channels_last(self, made: str, output: str) -> None:
        self._graph.add("Transpose", made, output=output, perm=[0, 2, 3, 1])


_OTHERS: Mapping[str, Callable[[_Conversion, str, list[str], Mapping[str, Any]], None]] = {
    "Mean": _Conversion._mean,
    "ConcatV2": _Conversion._concat,
    "ResizeBilinear": _Conversion._resize,
    "MaxPool": _Conversion._pool,
}


def _integers(attribute: Mapping[str, Any]) -> list[int]:
    return [int(value) for value in attribute["list"].get("i", [])]


def _padding(attributes: Mapping[str, Any]) -> str:
    names = {"SAME": "SAME_UPPER", "VALID": "VALID"}
    return names[_text(attributes["padding"]["s"])]


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode("ascii")
