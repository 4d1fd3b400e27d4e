"""An ONNX model as plain data: inputs and outputs, operators and tensors, without the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

Dimension: TypeAlias = int | str | None  # a size, the name of a size, or nothing said

# The types of ONNX by number: name, and bits of one element (0: not fixed).
TYPES: Mapping[int, tuple[str, int]] = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8e4m3fn", 8),
    18: ("float8e4m3fnuz", 8),
    19: ("float8e5m2", 8),
    20: ("float8e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4e2m1", 4),
    24: ("float8e8m0", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
}


@dataclass(frozen=True)
class ValueInfo:
    """An input or output: its name, type ("float32", …; "" if it is no tensor) and shape, if that is said.

    >>> file.inputs["input_ids"]
    ValueInfo(name='input_ids', type='int64', shape=('batch_size', 'sequence_length'))
    """

    name: str
    type: str
    shape: tuple[Dimension, ...] | None


@dataclass(frozen=True)
class ExternalData:
    """Where a tensor's bytes are, in a file beside the model's."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the file: its shape, and where its bytes are; `values` are those of a few integers."""

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    external: ExternalData | None = None
    values: tuple[int, ...] | None = None


Attribute: TypeAlias = "int | float | str | tuple[int, ...] | TensorInfo | Graph | tuple[Graph, ...] | None"


@dataclass(frozen=True)
class Node:
    """An operator where it is used. Attributes of kinds that nobody asks for are None."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]

    @property
    def graphs(self) -> Iterator[Graph]:
        """The subgraphs among its attributes."""
        for value in self.attributes.values():
            if isinstance(value, Graph):
                yield value
            elif isinstance(value, tuple):
                yield from (item for item in value if isinstance(item, Graph))

    @property
    def tensors(self) -> Iterator[TensorInfo]:
        """The tensors among its attributes."""
        yield from (value for value in self.attributes.values() if isinstance(value, TensorInfo))


@dataclass(frozen=True)
class Graph:
    """A graph or subgraph: nodes in order, inputs that are no initializers, outputs, initializers by name."""

    name: str
    nodes: tuple[Node, ...]
    inputs: Mapping[str, ValueInfo]
    outputs: Mapping[str, ValueInfo]
    initializers: Mapping[str, TensorInfo]


@dataclass(frozen=True)
class Function:
    """A function of the model, called like an operator: its nodes are computed where it is used."""

    domain: str
    name: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class OnnxFile:
    """A model file that has been checked.

    file = read_onnx("model.onnx")
    file.inputs["input_ids"].shape        # ('batch_size', 'sequence_length')
    file.metadata.get("names")            # of metadata_props
    file.operators["com.microsoft"]       # Counter({'MatMulNBits': 211, …})
    """

    path: Path
    producer: str
    ir_version: int
    opsets: Mapping[str, int]  # versions by domain; that of ONNX itself is "ai.onnx"
    metadata: Mapping[str, str]
    graph: Graph
    functions: tuple[Function, ...] = ()
    external: tuple[Path, ...] = ()  # the files beside the model that hold its tensors
    weight_bytes: int = 0
    stamp: tuple[int, ...] = field(default=(), repr=False)  # of the files when they were read

    @property
    def inputs(self) -> Mapping[str, ValueInfo]:
        """What the model takes."""
        return self.graph.inputs

    @property
    def outputs(self) -> Mapping[str, ValueInfo]:
        """What the model returns."""
        return self.graph.outputs

    @property
    def initializers(self) -> Mapping[str, TensorInfo]:
        """The model's tensors."""
        return self.graph.initializers

    def all_nodes(self) -> Iterator[Node]:
        """Every node, in subgraphs and functions too."""
        yield from _walk(self.graph.nodes)
        for function in self.functions:
            yield from _walk(function.nodes)

    def nodes(self, op: str) -> Iterator[Node]:
        """Every use of an operator."""
        return (node for node in self.all_nodes() if node.op == op)

    @cached_property
    def operators(self) -> Mapping[str, Counter[str]]:
        """How often each operator is used, by domain."""
        found: dict[str, Counter[str]] = {}
        for node in self.all_nodes():
            found.setdefault(node.domain, Counter())[node.op] += 1
        return found


def _walk(nodes: tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        yield node
        for graph in node.graphs:
            yield from _walk(graph.nodes)


# What a model file in ONNX format may have; anything beyond is refused before a runtime opens it.

MAX_PROTOBUF_BYTES = 2 << 30  # no protobuf library reads more
DOMAINS = ("ai.onnx", "ai.onnx.ml", "com.microsoft")  # of operators that ONNX Runtime has built in
OWN_DOMAIN = "ai.stretto"  # of operators that Stretto puts into graphs itself; files may not have them


@dataclass(frozen=True)
class OnnxLimits:
    """The bounds of a file. The defaults are far above any real model.

    `domains` are those of operators beside the built-in ones that a caller trusts; `loops` allows `Loop` and
    `Scan`, whose bodies may run for as long as the file says.

    >>> read_onnx("detector.onnx", OnnxLimits(loops=True))
    """

    protobuf_bytes: int = MAX_PROTOBUF_BYTES
    weight_bytes: int = 256 << 30  # of all tensors together, in the file and beside it
    nodes: int = 200_000  # with subgraphs, and with functions where they are called
    tensors: int = 200_000
    fields: int = 5_000_000  # of the protobuf, so that a file of tiny fields cannot take long
    text_bytes: int = 64 << 20  # of names and metadata together
    depth: int = 4  # of subgraphs within subgraphs
    domains: tuple[str, ...] = ()
    loops: bool = False


# The form of ONNX Runtime's MatMulNBits that `export/` writes and `backends/onnx/` packs.

BLOCK = 32  # numbers that share a scale
ACCURACY_LEVEL = 4  # activations in 8 bits, as the kernels are fast for
