"""Builds small ONNX graphs in memory, operator by operator.

graph = GraphBuilder("model", opset=17)
made = graph.add("Relu", graph.add("Add", "x", graph.constant(bias)))
data = graph.build({"x": ["n", 8]}, {made: ["n", 8]})       # of a model file
session = open_graph(data, "cpu", threads=2)
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import OnnxSession, open_session
from stretto.errors import Unsupported

Shape = Sequence[int | str] | None


def import_onnx() -> Any:
    """The module `onnx`, or `Unsupported` that says how to install it."""
    try:
        import_module("onnx.helper")
        return import_module("onnx")
    except ImportError as error:
        raise Unsupported(f"this model needs onnx: pip install 'stretto[onnx]' ({error})") from error


def open_graph(data: bytes, device: str, threads: int | None) -> OnnxSession:
    """A session of a model that is in memory; it is checked as a file is, by way of one."""
    with tempfile.TemporaryDirectory(prefix="stretto-") as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(data)
        return open_session(path, device, threads)


class GraphBuilder:
    """Operators in the order in which they are added, and the constants that they use."""

    def __init__(self, name: str, opset: int) -> None:
        self._onnx = import_onnx()
        self._name = name
        self._opset = opset
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}

    def constant(self, values: NDArray[Any], name: str | None = None) -> str:
        """The name of a constant tensor; one that is there under this name is taken."""
        name = name or f"constant.{len(self._constants)}"
        if name not in self._constants:
            array = np.array(values, order="C")
            self._constants[name] = self._onnx.numpy_helper.from_array(array, name)
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """The name of the operator's output."""
        output = output or f"{operator}.{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def clip(self, made: str, output: str | None = None) -> str:
        """From 0 to 6."""
        zero, six = (self.constant(np.array(value, np.float32), f"clip.{value}") for value in (0, 6))
        return self.add("Clip", made, zero, six, output=output)

    def build(self, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]) -> bytes:
        """The model's file with what these outputs need, all of them float32."""
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        needed, nodes = set(outputs), []
        for node in reversed(self._nodes):
            if needed & set(node.output):
                nodes.append(node)
                needed |= set(node.input)
        graph = helper.make_graph(
            nodes[::-1],
            self._name,
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in outputs.items()],
            [tensor for name, tensor in self._constants.items() if name in needed],
        )
        opsets = [helper.make_opsetid("", self._opset)]
        made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        return made
