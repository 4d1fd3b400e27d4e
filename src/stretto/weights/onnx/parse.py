"""From the bytes of an ONNX file to an `OnnxFile`: graphs, nodes, types, metadata."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from stretto.weights.onnx.model import (
    TYPES,
    Attribute,
    Dimension,
    Function,
    Graph,
    Node,
    OnnxFile,
    OnnxLimits,
    ValueInfo,
)
from stretto.weights.onnx.tensors import ENTRY, TensorReader
from stretto.weights.onnx.wire import Field, Schema, Span, Wire

MODEL: Schema = {
    1: Field("ir_version", "int"),
    2: Field("producer", "text"),
    7: Field("graph", "span"),
    8: Field("opsets", "span", many=True),
    14: Field("metadata", "span", many=True),
    20: Field("training", "span", many=True),
    25: Field("functions", "span", many=True),
}
OPSET: Schema = {1: Field("domain", "text"), 2: Field("version", "int")}
GRAPH: Schema = {
    1: Field("nodes", "span", many=True),
    2: Field("name", "text"),
    5: Field("initializers", "span", many=True),
    11: Field("inputs", "span", many=True),
    12: Field("outputs", "span", many=True),
    13: Field("values", "span", many=True),
    15: Field("sparse", "span", many=True),
}
NODE: Schema = {
    1: Field("inputs", "text", many=True),
    2: Field("outputs", "text", many=True),
    3: Field("name", "text"),
    4: Field("op", "text"),
    5: Field("attributes", "span", many=True),
    7: Field("domain", "text"),
}
ATTRIBUTE: Schema = {
    1: Field("name", "text"),
    2: Field("f", "float"),
    3: Field("i", "int"),
    4: Field("s", "span"),
    5: Field("t", "span"),
    6: Field("g", "span"),
    8: Field("ints", "ints"),
    10: Field("tensors", "span", many=True),
    11: Field("graphs", "span", many=True),
    22: Field("sparse", "span"),
    23: Field("sparses", "span", many=True),
}
FUNCTION: Schema = {
    1: Field("name", "text"),
    7: Field("nodes", "span", many=True),
    10: Field("domain", "text"),
}
VALUE: Schema = {1: Field("name", "text"), 2: Field("type", "span")}
TYPE: Schema = {1: Field("tensor", "span"), 8: Field("sparse", "span")}
TENSOR_TYPE: Schema = {1: Field("elem_type", "int"), 2: Field("shape", "span")}
SHAPE: Schema = {1: Field("dims", "span", many=True)}
DIMENSION: Schema = {1: Field("value", "int"), 2: Field("name", "text")}

MAX_SHORT_TEXT = 1 << 16  # of an attribute; longer ones are not kept
MAX_INTS = 1 << 16


class Parser:
    """Reads one file. Everything is counted against the limits before it is kept."""

    def __init__(self, wire: Wire, limits: OnnxLimits) -> None:
        self.wire = wire
        self.limits = limits
        self.tensors = TensorReader(wire, limits)
        self.n_nodes = 0

    def parse(self) -> OnnxFile:
        """The whole model."""
        raw = self.wire.read((0, self.wire.buffer.nbytes), MODEL, "model")
        if "graph" not in raw:
            raise self.wire.error("there is no graph; is this an ONNX file?", "model.graph")
        if raw.get("training"):
            raise self.wire.error(
                "a graph for training; export the model for inference", "model.training_info"
            )
        functions = tuple(self._function(span) for span in raw.get("functions", []))
        graph = self._graph(raw["graph"], "graph", 0)
        return OnnxFile(
            path=self.wire.path,
            producer=raw.get("producer", ""),
            ir_version=raw.get("ir_version", 0),
            opsets=self._opsets(raw.get("opsets", [])),
            metadata=self._entries(raw.get("metadata", []), "model.metadata_props"),
            graph=graph,
            functions=functions,
            external=tuple(self.tensors.files.sizes),
            weight_bytes=self.tensors.total,
        )

    def _opsets(self, spans: list[Span]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for span in spans:
            raw = self.wire.read(span, OPSET, "model.opset_import")
            found[raw.get("domain", "") or "ai.onnx"] = raw.get("version", 0)
        return found

    def _entries(self, spans: list[Span], where: str) -> Mapping[str, str]:
        entries = (self.wire.read(span, ENTRY, where) for span in spans)
        return {entry.get("key", ""): entry.get("value", "") for entry in entries}

    def _function(self, span: Span) -> Function:
        raw = self.wire.read(span, FUNCTION, "function")
        name = raw.get("name", "")
        nodes = tuple(self._node(node, f"function {name!r:.100}", 0) for node in raw.get("nodes", []))
        return Function(raw.get("domain", "") or "ai.onnx", name, nodes)

    def _graph(self, span: Span, where: str, depth: int) -> Graph:
        if depth > self.limits.depth:
            raise self.wire.error(f"subgraphs are nested more than {self.limits.depth} deep", where)
        raw = self.wire.read(span, GRAPH, where)
        initializers = [
            self.tensors.read(each, f"{where}.initializer") for each in raw.get("initializers", [])
        ]
        initializers += [self.tensors.read_sparse(each, f"{where}.sparse") for each in raw.get("sparse", [])]
        named = {tensor.name: tensor for tensor in initializers}
        if len(named) < len(initializers):
            raise self.wire.error("two initializers have one name", where)
        for each in raw.get("values", []):
            self._value(each, where)
        inputs = [self._value(each, f"{where}.input") for each in raw.get("inputs", [])]
        outputs = [self._value(each, f"{where}.output") for each in raw.get("outputs", [])]
        return Graph(
            raw.get("name", ""),
            tuple(self._node(node, where, depth) for node in raw.get("nodes", [])),
            {value.name: value for value in inputs if value.name not in named},
            {value.name: value for value in outputs},
            named,
        )

    def _node(self, span: Span, where: str, depth: int) -> Node:
        self.n_nodes += 1
        if self.n_nodes > self.limits.nodes:
            raise self.wire.error(f"more than {self.limits.nodes} nodes", where, span[0])
        raw = self.wire.read(span, NODE, f"{where}.node")
        op = raw.get("op", "")
        attributes: dict[str, Attribute] = {}
        for each in raw.get("attributes", []):
            name, value = self._attribute(each, f"{op} node {raw.get('name', '')!r:.100}", depth)
            if name in attributes:
                raise self.wire.error(
                    f"the attribute {name!r:.100} is there twice", f"{where}.node {op!r:.100}"
                )
            attributes[name] = value
        return Node(
            op,
            raw.get("domain", "") or "ai.onnx",
            raw.get("name", ""),
            tuple(raw.get("inputs", ())),
            tuple(raw.get("outputs", ())),
            attributes,
        )

    def _attribute(self, span: Span, where: str, depth: int) -> tuple[str, Attribute]:
        raw = self.wire.read(span, ATTRIBUTE, f"{where}.attribute")
        name = raw.get("name", "")
        field = f"{where}.{name:.100}"
        for each in raw.get("tensors", []):
            self.tensors.read(each, field)
        for each in (*raw.get("sparses", []), *([raw["sparse"]] if "sparse" in raw else [])):
            self.tensors.read_sparse(each, field)
        values = [self._single(raw, key, field, depth) for key in ("t", "g", "i", "f", "s") if key in raw]
        if "graphs" in raw:
            values.append(tuple(self._graph(each, field, depth + 1) for each in raw["graphs"]))
        if "ints" in raw:
            values.append(self.wire.integers(raw["ints"], MAX_INTS, field))
        return name, values[0] if len(values) == 1 else self._several(values, field)

    def _several(self, values: list[Attribute], field: str) -> Attribute:
        """None for several plain values; a graph or tensor among them is refused: which one counts?"""
        if any(not isinstance(value, (int, float, str, type(None))) for value in values):
            raise self.wire.error("an attribute with several values", field)
        return None

    def _single(self, raw: dict[str, Any], key: str, field: str, depth: int) -> Attribute:
        value = raw[key]
        if key == "t":
            return self.tensors.read(value, field)
        if key == "g":
            return self._graph(value, field, depth + 1)
        if key == "s":
            start, stop = value
            return str(self.wire.buffer[start : min(stop, start + MAX_SHORT_TEXT)], "utf-8", "replace")
        number: int | float = value
        return number

    def _value(self, span: Span, where: str) -> ValueInfo:
        raw = self.wire.read(span, VALUE, where)
        name = raw.get("name", "")
        field = f"{where} {name!r:.100}"
        if "type" not in raw:
            return ValueInfo(name, "", None)
        kind = self.wire.read(raw["type"], TYPE, field)
        inner = kind.get("tensor", kind.get("sparse"))
        if inner is None:  # a sequence, a map: no decoder or detector takes one, some classifiers return them
            return ValueInfo(name, "", None)
        tensor = self.wire.read(inner, TENSOR_TYPE, field)
        element, bits = TYPES.get(tensor.get("elem_type", 0), ("", 0))
        if "shape" not in tensor:
            return ValueInfo(name, element, None)
        dims = self.wire.read(tensor["shape"], SHAPE, field).get("dims", [])
        shape = tuple(self._dimension(each, field) for each in dims)
        nbytes = prod(size for size in shape if isinstance(size, int)) * bits // 8
        if nbytes > self.limits.weight_bytes:
            raise self.wire.error(
                f"the shape {list(shape)} takes {nbytes} bytes, more than the limit of "
                f"{self.limits.weight_bytes}",
                field,
            )
        return ValueInfo(name, element, shape)

    def _dimension(self, span: Span, field: str) -> Dimension:
        raw = self.wire.read(span, DIMENSION, field)
        value = raw.get("value")
        if value is None:
            return raw.get("name") or None
        if value < -1:
            raise self.wire.error(f"a size of {value}", field)
        return None if value == -1 else int(value)  # some converters write −1 for a size that is not fixed
