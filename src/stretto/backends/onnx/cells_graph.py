"""Graphs with cell indices as inputs (`stretto export onnx --form cells`): what they take and return.

tokens[n], positions[n], cells[n], rows[wanted], visible[n, used], visible.WINDOW[n, used],
cells.N.key / .value [used, heads × size] → logits[1, wanted, n_vocab], updated.N.key / .value
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stretto.backends.onnx.graph import FLOATS, MAX_HEAD, Plane, n_rope_rows
from stretto.errors import ModelError, Unsupported
from stretto.weights.onnx import Node, OnnxFile

POOL = re.compile(r"cells\.(\d+)\.(key|value)")
VISIBLE = re.compile(r"visible(?:\.(\d+))?")
PLAIN = ("tokens", "positions", "cells", "rows")
REMEDY = "export the model again with: stretto export onnx --form cells"


@dataclass(frozen=True)
class CellsGraph:
    """The inputs and outputs of a graph over cells; `masks` are the inputs that say who sees whom."""

    file: OnnxFile
    n_vocab: int | None
    planes: tuple[Plane, ...]
    type: str
    masks: Mapping[str, int | None]  # their windows
    windows: Mapping[int, int | None] | None = None
    n_rope_rows: int | None = None


def is_cells_graph(file: OnnxFile) -> bool:
    """Whether a graph takes cell indices."""
    return {"tokens", "positions", "cells", "rows"} <= file.inputs.keys()


def read_cells_graph(file: OnnxFile) -> CellsGraph:
    """The graph's inputs and outputs; `ModelError` names what does not fit."""
    masks: dict[str, int | None] = {}
    for name in file.inputs:
        if match := VISIBLE.fullmatch(name):
            masks[name] = int(match[1]) if match[1] else None
    planes = tuple(_planes(file))
    known = {*PLAIN, *masks, *(plane.past for plane in planes)}
    if others := [name for name in file.inputs if name not in known]:
        raise Unsupported(
            f"{file.path.name}: inputs {', '.join(map(repr, others[:8]))} are not known; {REMEDY}"
        )
    if not planes or not masks or "logits" not in file.outputs:
        raise ModelError(f"it has no cells, no masks or no logits; {REMEDY}", path=file.path)
    types = {file.inputs[plane.past].type for plane in planes}
    if len(types) > 1 or not types <= set(FLOATS):
        raise Unsupported(f"{file.path.name}: cells are {', '.join(sorted(types))}; {REMEDY}")
    shape = file.outputs["logits"].shape or (None,)
    return CellsGraph(
        file,
        shape[-1] if isinstance(shape[-1], int) else None,
        planes,
        types.pop(),
        masks,
        n_rope_rows=n_rope_rows(file),
    )


def _planes(file: OnnxFile) -> Iterator[Plane]:
    heads = _heads(file)
    for name, value in file.inputs.items():
        match = POOL.fullmatch(name)
        if match is None:
            continue
        updated = f"updated.{match[1]}.{match[2]}"
        width = value.shape[1] if value.shape and len(value.shape) == 2 else None
        if updated not in file.outputs or not isinstance(width, int) or not 0 < width <= MAX_HEAD**2:
            raise ModelError(f"the shape {value.shape}, or no output {updated!r}; {REMEDY}", path=file.path)
        n = heads.get(updated, 1)
        if width % n:
            raise ModelError(f"{width} numbers in {n} heads", path=file.path, field=f"input {name!r}")
        yield Plane(name, updated, int(match[1]), n, width // n)


def _heads(file: OnnxFile) -> dict[str, int]:
    """K/V heads by the name of an updated pool, from the attention that reads it."""
    sources = {output: node for node in file.graph.nodes for output in node.outputs}
    found: dict[str, int] = {}
    for node in file.nodes("Attention"):
        count = node.attributes.get("kv_num_heads")
        for name in node.inputs[1:3]:
            origin = _origin(name, sources)
            if isinstance(count, int) and count > 0 and origin:
                found[origin] = count
    return found


def _origin(name: str, sources: Mapping[str, Node]) -> str:
    """The updated pool that a value is made from, by casts and reshapes."""
    for _ in range(4):
        if name.startswith("updated."):
            return name
        node = sources.get(name)
        if node is None or not node.inputs:
            return ""
        name = node.inputs[0]
    return ""
