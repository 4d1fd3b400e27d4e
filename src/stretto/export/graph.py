"""An ONNX graph while it is being built: nodes, initializers, inputs and outputs, by names.

    graph = Graph()
    x = graph.input("x", "float32", ["n", 4])
    graph.op("MatMul", [x, graph.constant("w", np.eye(4, dtype=np.float32))], output="y")
    graph.output("y", "float32", ["n", 4])
    model = graph.model("example", opset=18)

Large initializers may go to a file beside the model while they are made (`DataFile`), so that a model needs
not be in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's own operators
IR_VERSIONS = {18: 8, 21: 10, 23: 11}  # the lowest one for each version of the operators
TYPES = {
    "bool": TensorProto.BOOL,
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int4": TensorProto.INT4,
}
ALIGNMENT_BYTES = 4096  # of large initializers in a data file, so that they can be mapped
INLINE_BYTES = 1024  # smaller ones stay in the model itself: shapes are inferred from them

Shape = Sequence[int | str]


class DataFile:
    """The file that holds large initializers, and its name as the model refers to it."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name

    def append(self, tensor: TensorProto, data: bytes | memoryview) -> None:
        """Write the data of a tensor, and tell the tensor where it is."""
        offset = -(-self._file.tell() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._file.write(b"\0" * (offset - self._file.tell()))
        self._file.write(data)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._name), ("offset", offset), ("length", len(data))):
            tensor.external_data.add(key=key, value=str(value))


class Graph:
    """A graph under construction. Methods take and return the names of its values."""

    def __init__(self, data: DataFile | None = None) -> None:
        self._data = data
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._inputs: dict[str, onnx.ValueInfoProto] = {}
        self._outputs: list[onnx.ValueInfoProto] = []
        self._memo: dict[tuple[object, ...], str] = {}
        self._domains = {""}

    # -- values --

    def input(self, name: str, kind: str, shape: Shape) -> str:
        """An input of the model; asking for it again gives the same one."""
        if name not in self._inputs:
            self._inputs[name] = helper.make_tensor_value_info(name, TYPES[kind], shape)
        return name

    def output(self, name: str, kind: str, shape: Shape) -> str:
        """Declare a value to be an output of the model."""
        self._outputs.append(helper.make_tensor_value_info(name, TYPES[kind], shape))
        return name

    def constant(self, name: str, array: NDArray[Any], kind: str | None = None) -> str:
        """An initializer. `kind` is for types that NumPy lacks: int4, given as packed bytes."""
        if name not in self._initializers:
            array = np.ascontiguousarray(array)
            dims = list(array.shape)
            if kind == "int4":
                dims[-1] *= 2
            self._add(TensorProto(name=name, data_type=TYPES[kind or array.dtype.name], dims=dims), array)
        return name

    def _add(self, tensor: TensorProto, array: NDArray[Any]) -> None:
        if self._data is not None and array.nbytes >= INLINE_BYTES:
            self._data.append(tensor, array.reshape(-1).view(np.uint8).data)
        else:
            tensor.raw_data = array.tobytes()
        self._initializers[tensor.name] = tensor

    def has(self, name: str) -> bool:
        """Whether there is an initializer of that name."""
        return name in self._initializers

    def integers(self, *values: int) -> str:
        """int64[n], as shapes and axes are given."""
        name = "ints_" + "_".join(map(str, values)).replace("-", "m")
        return self.constant(name, np.array(values, np.int64))

    def number(self, value: float, kind: str = "float32") -> str:
        """A scalar."""
        return self.constant(f"{kind}_{value!r}", np.array(value, kind))

    # -- nodes --

    def op(
        self, kind: str, inputs: Sequence[str], *, domain: str = "", output: str = "", **attributes: Any
    ) -> str:
        """Add a node with one output; return its name."""
        return self.op_many(kind, inputs, [output or self._name(kind)], domain=domain, **attributes)[0]

    def op_many(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: int | list[str],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node with several outputs, so many or of these names ("" for one that is not wanted)."""
        if isinstance(outputs, int):
            base = self._name(kind)
            outputs = [f"{base}.{i}" for i in range(outputs)]
        name = f"node_{len(self._nodes)}_{kind}"
        self._domains.add(domain)
        self._nodes.append(helper.make_node(kind, inputs, outputs, name, domain=domain, **attributes))
        return outputs

    def op_once(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """`op`, but a node that is there already is taken again."""
        key = (kind, *inputs, *sorted(attributes.items()))
        if key not in self._memo:
            self._memo[key] = self.op(kind, inputs, **attributes)
        return self._memo[key]

    def _name(self, kind: str) -> str:
        return f"{kind.lower()}_{len(self._nodes)}"

    # -- common nodes --

    def reshape(self, x: str, *shape: int) -> str:
        """x in another shape; 0 keeps an axis, −1 takes the rest."""
        return self.op("Reshape", [x, self.integers(*shape)])

    def cast(self, x: str, kind: str) -> str:
        """x as another type."""
        return self.op_once("Cast", [x], to=TYPES[kind])

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """x in parts of these sizes along its last axis."""
        return self.op_many("Split", [x, self.integers(*sizes)], len(sizes), axis=-1)

    def scale(self, x: str, factor: float) -> str:
        """x × factor."""
        return x if factor == 1.0 else self.op("Mul", [x, self.number(factor)])

    def cap(self, x: str, cap: float) -> str:
        """cap × tanh(x / cap), or x itself where there is no cap."""
        if not cap:
            return x
        limit = self.number(cap)
        return self.op("Mul", [self.op("Tanh", [self.op("Div", [x, limit])]), limit])

    # -- the result --

    def model(self, name: str, opset: int, metadata: Mapping[str, str] | None = None) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(
            self._nodes, name, list(self._inputs.values()), self._outputs, list(self._initializers.values())
        )
        versions = [helper.make_opsetid("", opset)]
        versions += [helper.make_opsetid(domain, 1) for domain in sorted(self._domains - {""})]
        model = helper.make_model(
            graph, opset_imports=versions, ir_version=IR_VERSIONS[opset], producer_name="stretto"
        )
        helper.set_model_props(model, dict(metadata or {}))
        return model
