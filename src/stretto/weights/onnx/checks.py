"""Checks of a whole model, for untrusted files: operators, loops, functions, and the sizes they can make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from stretto.errors import ModelError
from stretto.weights.onnx.model import DOMAINS, OWN_DOMAIN, Function, Node, OnnxFile, OnnxLimits

LOOPS = {"Loop", "Scan", "SequenceMap"}
# Operators of com.microsoft that run a graph of their own until they decide to stop.
SEARCHES = {"BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}
REFUSED = {"EPContext": "it loads a compiled model from a path of its own", "PythonOp": "it runs Python code"}
BRANCHES = {"If"}
MAX_MADE_ELEMENTS = 1 << 31  # that one operator makes from a constant shape

# Operators whose result has a shape given by an input: which one.
SHAPED = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "RandomUniform": None, "RandomNormal": None}

Functions = Mapping[tuple[str, str], Function]


def check_model(file: OnnxFile, limits: OnnxLimits) -> None:
    """Raise `ModelError` for operators and sizes that a runtime should not see."""
    functions = {(each.domain, each.name): each for each in file.functions}
    if len(functions) < len(file.functions):
        raise ModelError("two functions have one name", path=file.path, field="model.functions")
    for domain, name in functions:
        if domain in DOMAINS:
            raise ModelError(
                f"a function {name!r:.100} in place of a built-in operator; name its domain differently",
                path=file.path,
                field="model.functions",
            )
    if OWN_DOMAIN in {*file.opsets, *(domain for domain, _ in functions)}:
        raise ModelError(
            f"the domain {OWN_DOMAIN!r} is Stretto's own; name it differently", path=file.path, field="model"
        )
    constants = dict(_constants(file))
    for node in file.all_nodes():
        _check_domain(file, node, functions, limits)
        _check_subgraphs(file, node, limits)
        _check_made(file, node, constants)
    _check_expansion(file, functions, limits)


def _check_domain(file: OnnxFile, node: Node, functions: Functions, limits: OnnxLimits) -> None:
    if node.domain == OWN_DOMAIN:
        raise _error(file, node, f"an operator of domain {OWN_DOMAIN!r}, which no file may have")
    if (node.domain, node.op) in functions or node.domain in limits.domains:
        return
    if node.domain not in DOMAINS:
        raise _error(
            file,
            node,
            f"a custom operator of domain {node.domain!r:.100}; allowed are {', '.join(DOMAINS)}, and "
            "domains that OnnxLimits(domains=…) names",
        )
    if node.op in REFUSED:
        raise _error(file, node, f"{REFUSED[node.op]}; export the model without it")


def _check_subgraphs(file: OnnxFile, node: Node, limits: OnnxLimits) -> None:
    if node.op in LOOPS | SEARCHES and not limits.loops:
        raise _error(file, node, "a loop may never end; OnnxLimits(loops=True) allows it in a trusted file")
    if node.op not in LOOPS | SEARCHES | BRANCHES and next(node.graphs, None) is not None:
        raise _error(file, node, "an operator with a subgraph; allowed is If")


def _check_made(file: OnnxFile, node: Node, constants: Mapping[str, tuple[int, ...]]) -> None:
    """Runtimes compute what is constant while they load a model: it must not be huge."""
    if node.domain != "ai.onnx" or node.op not in SHAPED:
        return
    index = SHAPED[node.op]
    shape = node.attributes.get("shape") if index is None else constants.get(_input(node, index))
    if not isinstance(shape, tuple):
        return
    sizes = [size for size in shape if isinstance(size, int)]
    negative = any(size < 0 for size in sizes) and node.op != "Expand"  # −1 there keeps a size, by some
    if negative or prod(sizes) > MAX_MADE_ELEMENTS:
        raise _error(file, node, f"it makes a tensor of shape {sizes}")


def _check_expansion(file: OnnxFile, functions: Functions, limits: OnnxLimits) -> None:
    """Functions are computed where they are called: none may call itself, and all calls must stay few."""
    sizes: dict[tuple[str, str], int] = {}
    active: set[tuple[str, str]] = set()

    def count_nodes(key: tuple[str, str]) -> int:
        if key in active:
            raise ModelError("it calls itself", path=file.path, field=f"function {key[1]!r:.100}")
        if len(active) > 64:
            raise ModelError("functions call each other more than 64 deep", path=file.path, field="functions")
        if key not in sizes:
            active.add(key)
            sizes[key] = expanded(functions[key].nodes)
            active.discard(key)
        return sizes[key]

    def expanded(nodes: tuple[Node, ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op)
            total += count_nodes(key) if key in functions else 1
            total += sum(expanded(graph.nodes) for graph in node.graphs)
        return total

    total = expanded(file.graph.nodes)
    for key in functions:
        count_nodes(key)
    if total > limits.nodes:
        raise ModelError(
            f"its functions make {total} nodes, more than {limits.nodes}", path=file.path, field="functions"
        )


def _constants(file: OnnxFile) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Short lists of integers by the name of their value."""
    for tensor in file.initializers.values():
        if tensor.values is not None:
            yield tensor.name, tensor.values
    for node in file.nodes("Constant"):
        ints = node.attributes.get("value_ints")
        if isinstance(ints, tuple) and node.outputs:
            yield node.outputs[0], tuple(value for value in ints if isinstance(value, int))
        for tensor in node.tensors:
            if tensor.values is not None and node.outputs:
                yield node.outputs[0], tensor.values


def _input(node: Node, index: int) -> str:
    return node.inputs[index] if len(node.inputs) > index else ""


def _error(file: OnnxFile, node: Node, message: str) -> ModelError:
    return ModelError(message, path=file.path, field=f"{node.op:.100} node {node.name!r:.100}")
