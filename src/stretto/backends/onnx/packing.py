"""Sessions of decoders on the CPU, with quantised products by the native core's kernels.

    session, packing = open_packed(file, "cpu", threads=2, repack="auto")
    print(packing)      # "121 of 121 quantised products by the native kernels (neon)"

Each product that `find_products` finds becomes one operator of our own, `ai.stretto::Product`, in a copy of
the graph in memory. Its matrix is packed as the native backend packs it, and leaves the graph. The operator
is in the native core's library, which ONNX Runtime loads for this session; its threads are the session's.
Files that name our domain themselves are refused before (weights/onnx/checks.py).

A matrix is packed only where that is exact: its scales have to be half floats, as in the formats Q4_0, Q4_1
and Q8_0. Other products stay ONNX Runtime's.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.backends.onnx_session import OnnxSession, Replacement, open_session
from stretto.errors import ModelError, RouteWarning, Unsupported
from stretto.hardware import kernel_sets
from stretto.weights.formats import Format
from stretto.weights.onnx import Node, OnnxFile, TensorInfo, files_stamp
from stretto.weights.onnx.model import ACCURACY_LEVEL, BLOCK, OWN_DOMAIN, Attribute

# Products of a checked graph that the native core can compute: found by their nodes, no numbers are read.
#
# `find_products` looks for ONNX Runtime's MatMulNBits with blocks of 32 and activations that may be rounded
# to 8 bits (accuracy_level=4), as the native kernels do. With four bits, the thin product that adds offsets
# to the blocks may follow (export/products.py), which makes them blocks of Q4_1. Used by packing.py.

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


Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

ZERO = 8  # that MatMulNBits takes from four bits
NOT_ASKED = "repack=False"
NOT_SHARED = (
    "repack='shared' is for the native backend: the products of this ONNX file are packed for this process "
    "alone; repack='auto' says the same, False packs none"
)
OTHER_FORM = "the others are not blocks of Q4_0, Q4_1 or Q8_0 whose activations may have 8 bits"


@dataclass(frozen=True)
class Packing:
    """How many of a graph's quantised products the native kernels compute, and why not all of them."""

    packed: int = 0
    found: int = 0  # MatMulNBits in the graph
    kernels: str = ""  # the kernel set, if any are packed
    reason: str = ""

    def __str__(self) -> str:
        by = f" by the native kernels ({self.kernels})" if self.packed else " by the native kernels"
        return f"{self.packed} of {self.found} quantised products{by}{self.reason and f'; {self.reason}'}"


def open_packed(
    file: OnnxFile, device: str, threads: int, repack: bool | str = "auto"
) -> tuple[OnnxSession, Packing]:
    """Open a checked file, with native products where the device is the CPU and the file has any.

    If they cannot be used, "auto" warns and opens the file as it is, and `repack=True` raises `Unsupported`.
    """
    found = sum(1 for _ in file.nodes("MatMulNBits"))

    def plain(reason: str) -> tuple[OnnxSession, Packing]:
        return open_session(file, device, threads), Packing(0, found, "", reason)

    if repack is False:
        return plain(NOT_ASKED)
    if device != "cpu":
        return plain(f"device {device!r} computes them")
    products = find_products(file)
    if not products:
        return plain(OTHER_FORM if found else "")
    name = kernel_sets.select()
    try:
        rewritten = rewrite(file, products, threads, name)
        packed = len(rewritten.matrices)
        replacement = rewritten.replacement
        session = open_session(file, device, threads, replacement=replacement) if packed else None
    except Exception as error:  # of onnx, which is missing or refuses the file, or of ONNX Runtime
        problem = f"the native kernels cannot compute its products: {error}"
        if repack is True:
            raise Unsupported(f"{problem}; repack='auto' does without", param="repack", value=True) from error
        warnings.warn(f"{problem}; ONNX Runtime's own do it", RouteWarning, stacklevel=2)
        return plain(str(error))
    if session is None:
        return plain(OTHER_FORM)
    if repack == "shared":
        warnings.warn(NOT_SHARED, RouteWarning, stacklevel=2)
    return session, Packing(packed, found, name, "" if packed == found else OTHER_FORM)


@dataclass(frozen=True)
class Rewritten:
    """A graph with native products. The matrices must live until a session is open, which then has them."""

    replacement: Replacement
    matrices: tuple[_native.OnnxMatrix, ...]


def rewrite(file: OnnxFile, products: Sequence[Product], threads: int, kernel_set: str = "") -> Rewritten:
    """Replace products in a copy of the graph: those whose numbers a format of the native core has."""
    import onnx

    model = onnx.load(str(file.path), load_external_data=False)
    if files_stamp(file) != file.stamp:
        raise ModelError("the file changed while it was opened; load it again", path=file.path)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def pack(product: Product) -> _native.OnnxMatrix | None:
        names = [name for name in (product.blocks, product.scale, product.offset) if name]
        if not all(name in tensors for name in names):  # one is sparse
            return None
        arrays = {name: read_tensor(file.initializers[name], tensors[name]) for name in names}
        encoded = encode(product, arrays)
        if encoded is None:
            return None
        code, data = encoded
        return _native.OnnxMatrix(code, data, product.rows, product.columns, threads, kernel_set)

    with ThreadPoolExecutor(threads) as pool:  # NumPy and the native core run without the interpreter's lock
        matrices = list(pool.map(pack, products))
    done = [
        (product, matrix) for product, matrix in zip(products, matrices, strict=True) if matrix is not None
    ]
    replace_nodes(model, file, [(product, matrix.number) for product, matrix in done])
    replacement = Replacement(model.SerializeToString(), _native.__file__)
    return Rewritten(replacement, tuple(matrix for _, matrix in done))


def read_tensor(info: TensorInfo, tensor: Any) -> NDArray[Any]:
    """The numbers of an initializer, from the model or from the file beside it where it was checked to be."""
    from onnx import numpy_helper

    if info.external is None:
        return np.asarray(numpy_helper.to_array(tensor))
    place, kind = info.external, np.dtype(info.type)
    n = place.length // kind.itemsize
    return np.fromfile(place.path, kind, n, offset=place.offset).reshape(info.shape)


def encode(product: Product, arrays: dict[str, NDArray[Any]]) -> tuple[int, Bytes] | None:
    """A format's code and the matrix in it; None if that would round anything."""
    shape = product.rows, product.columns // BLOCK
    blocks, scale = arrays[product.blocks], arrays[product.scale].reshape(shape)
    d = _halves(scale)
    if not (np.isfinite(d).all() and (d == scale).all()):
        return None
    if product.bits == 8:
        return Format.Q8_0, _joined(d, blocks ^ np.uint8(128))
    low, high = blocks & np.uint8(15), blocks >> np.uint8(4)  # of even and of odd columns
    q = np.stack((low, high), axis=-1).reshape(*shape, BLOCK)
    nibbles = q[..., : BLOCK // 2] | q[..., BLOCK // 2 :] << np.uint8(4)
    if not product.offset:
        return Format.Q4_0, _joined(d, nibbles)
    offset = arrays[product.offset].T / np.float32(BLOCK)
    least = _halves(offset - ZERO * scale)
    if not (np.isfinite(least).all() and (least.astype(np.float32) + ZERO * scale == offset).all()):
        return None
    return Format.Q4_1, _joined(d, least, nibbles)


def _halves(x: Floats) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def _joined(*parts: NDArray[Any]) -> Bytes:
    """Blocks as bytes, the parts of each one after the other."""
    columns = [part if part.dtype == np.uint8 else part[..., None].view(np.uint8) for part in parts]
    return np.concatenate(columns, axis=-1).reshape(-1)


def replace_nodes(model: Any, file: OnnxFile, replaced: Sequence[tuple[Product, int]]) -> None:
    """Put operators of our own in place of products; nodes and tensors that nothing uses any more leave."""
    from onnx import helper

    graph, uses = model.graph, count_uses(file)
    nodes: list[Any] = list(graph.node)

    def remove(index: int) -> None:
        nodes[index] = None
        uses.subtract(file.graph.nodes[index].inputs)

    for product, number in replaced:
        name = nodes[product.node].name
        for index in (product.node, *product.adding):
            remove(index)
        nodes[product.node] = helper.make_node(
            "Product", [product.x], [product.y], name, domain=OWN_DOMAIN, matrix=number
        )
        uses[product.x] += 1
    for index in {product.means for product, _ in replaced if product.means is not None}:
        if not uses[file.graph.nodes[index].outputs[0]]:
            remove(index)
    used = {each.name for each in graph.initializer if uses[each.name]}
    made = {name for node in nodes if node is not None for name in node.output}
    _keep(graph.node, nodes, lambda node: node is not None)
    _keep(graph.initializer, graph.initializer, lambda each: each.name in used)
    _keep(graph.input, graph.input, lambda each: each.name in used or each.name in file.inputs)
    _keep(graph.value_info, graph.value_info, lambda each: each.name in made)
    model.opset_import.append(helper.make_opsetid(OWN_DOMAIN, 1))


def _keep(field: Any, values: Iterable[Any], wanted: Callable[[Any], bool]) -> None:
    """Fill a repeated field of a message with those of some values that are wanted."""
    kept = [each for each in values if wanted(each)]
    del field[:]
    field.extend(kept)
