"""Products of a checked graph that the native core can compute: found by their nodes, no numbers are read.

`find_products` looks for ONNX Runtime's MatMulNBits with blocks of 32 and activations that may be rounded to
8 bits (accuracy_level=4), as the native kernels do. With four bits, the thin product that adds offsets to
the blocks may follow (export/products.py), which makes them blocks of Q4_1. Used by packing.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from stretto.weights.onnx import Node, OnnxFile
from stretto.weights.onnx.model import Attribute
from stretto.weights.onnx.nbits import ACCURACY_LEVEL, BLOCK

ATTRIBUTES = {"K", "N", "bits", "block_size", "accuracy_level"}
POOL: Mapping[str, Attribute] = {"kernel_shape": (BLOCK,), "strides": (BLOCK,)}  # means of blocks


@dataclass(frozen=True)
class Product:
    """y = x times a matrix of blocks, by the names of values and initializers and the indices of nodes.

    `offset` is float32[columns / 32, rows], 32 times the offset of each block; "" if there is none. `adding`
    are the nodes that add it, and `means` the one before them, whose result others may use too.
    """

    node: int
    x: str
    y: str
    blocks: str
    scale: str
    offset: str
    bits: int
    rows: int
    columns: int
    adding: tuple[int, ...] = ()
    means: int | None = None


class _Values:
    """Who makes and who uses the values of a graph."""

    def __init__(self, file: OnnxFile) -> None:
        self.file = file
        self.nodes = file.graph.nodes
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.outputs if name}
        self.users: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in node.inputs:
                self.users.setdefault(name, []).append(i)
        self.n_uses = count_uses(file)

    def has(self, name: str, kind: str, *shapes: tuple[int, ...]) -> bool:
        """Whether a value is an initializer of that type and one of these shapes."""
        tensor = self.file.initializers.get(name)
        return tensor is not None and tensor.type == kind and tensor.shape in shapes

    def only_user(self, name: str) -> int | None:
        """The node that alone uses a value, and once."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and self.n_uses[name] == 1 else None


def find_products(file: OnnxFile) -> tuple[Product, ...]:
    """The products of the main graph that have the form of a file's blocks: Q4_0, Q4_1 or Q8_0."""
    values = _Values(file)
    return tuple(_products(values))


def count_uses(file: OnnxFile) -> Counter[str]:
    """How often each value is used, by nodes, by those of subgraphs, and as an output."""
    uses = Counter(list(file.outputs))
    for node in file.all_nodes():
        uses.update(node.inputs)
        for graph in node.graphs:
            uses.update(list(graph.outputs))
    return uses


def _products(values: _Values) -> Iterator[Product]:
    for index, node in enumerate(values.nodes):
        if (node.domain, node.op) != ("com.microsoft", "MatMulNBits") or not _is_known(node):
            continue
        bits, rows, columns = (_integer(node, name) for name in ("bits", "N", "K"))
        n_blocks = columns // BLOCK
        x, blocks, scale = node.inputs[:3]
        if (
            bits not in (4, 8)
            or rows < 1
            or columns < 1
            or columns % BLOCK
            or not values.has(blocks, "uint8", (rows, n_blocks, BLOCK * bits // 8))
            or not values.has(scale, "float32", (rows, n_blocks), (rows * n_blocks,))
        ):
            continue
        product = Product(index, x, node.outputs[0], blocks, scale, "", bits, rows, columns)
        yield _with_offset(values, product) if bits == 4 else product


def _is_known(node: Node) -> bool:
    """Whether a MatMulNBits has blocks of 32 without zero points, and takes activations in 8 bits."""
    return (
        len(node.inputs) >= 3
        and not any(node.inputs[3:])
        and len(node.outputs) == 1
        and node.attributes.keys() <= ATTRIBUTES
        and _integer(node, "block_size") == BLOCK
        and _integer(node, "accuracy_level") == ACCURACY_LEVEL
    )


def _integer(node: Node, name: str) -> int:
    value = node.attributes.get(name, 4 if name == "bits" else 0)
    return value if isinstance(value, int) else 0


def _with_offset(values: _Values, product: Product) -> Product:
    """A product together with its thin one, if it has one: Add(y, MatMul(AveragePool(x), offset))."""
    nodes = values.nodes
    add = values.only_user(product.y)
    if add is None or not _is(nodes[add], "Add", 2):
        return product
    first, second = nodes[add].inputs
    thin = values.maker.get(second if first == product.y else first)
    if thin is None or not _is(nodes[thin], "MatMul", 2):
        return product
    means, offset = nodes[thin].inputs
    pool = values.maker.get(means)
    if (
        values.only_user(nodes[thin].outputs[0]) != add
        or not values.has(offset, "float32", (product.columns // BLOCK, product.rows))
        or pool is None
        or not _is(nodes[pool], "AveragePool", 1, POOL)
        or nodes[pool].inputs[0] != product.x
    ):
        return product
    return replace(product, y=nodes[add].outputs[0], offset=offset, adding=(add, thin), means=pool)


def _is(node: Node, op: str, n_inputs: int, attributes: Mapping[str, Attribute] | None = None) -> bool:
    return (
        (node.domain, node.op) == ("ai.onnx", op)
        and len(node.inputs) == n_inputs
        and len(node.outputs) == 1
        and dict(node.attributes) == (attributes or {})
    )
