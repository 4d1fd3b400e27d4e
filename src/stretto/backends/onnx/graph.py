"""What a decoder's graph takes and returns: names and shapes are read from the graph, never from config."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import ModelError, Unsupported
from stretto.weights.onnx import Node, OnnxFile, ValueInfo

PAST = re.compile(r"(?:past|past_key_values|cache)[._](\d+)[._](?:decoder[._])?(key|value)s?$")
PRESENT = re.compile(
    r"(?:present|present_key_values|updated_cache)[._](\d+)[._](?:decoder[._])?(key|value)s?$"
)
IDS, MASK, POSITIONS, BRANCH = "input_ids", "attention_mask", "position_ids", "use_cache_branch"
KEEP = ("num_logits_to_keep", "logits_to_keep")
INTEGERS, FLOATS = ("int64", "int32"), ("float32", "float16")
GQA = "GroupQueryAttention"
MASK_COUNTS = ("ReduceSum", "Shape")  # of GroupQueryAttention: each row's tokens, and those of the longest
MAX_HEAD = 1 << 16
GQA_PAST, GQA_PRESENT, GQA_COSINES, GQA_POSITIONS = (3, 4), (1, 2), 7, 9  # its inputs and outputs by number

# Inputs of models that are no decoders of text, or that keep something else than K and V.
REFUSED = {
    "inputs_embeds": "it takes vectors, as the text part of an image or audio model does",
    "pixel_values": "it takes images",
    "encoder_hidden_states": "it is the decoder of an encoder-decoder model",
    "encoder_attention_mask": "it is the decoder of an encoder-decoder model",
}


@dataclass(frozen=True)
class Plane:
    """K or V of a layer: the names of its past and present tensors, heads and their size."""

    past: str
    present: str
    layer: int
    heads: int
    size: int

    @property
    def is_key(self) -> bool:
        """Whether these are keys, which are rotated."""
        return "key" in self.past.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """What the spec of a decoder is made from, whatever the form of its graph.

    `windows`: the window of each layer, None for one without, where attributes say it; else None.
    """

    file: OnnxFile  # checked
    n_vocab: int | None  # how many logits there are, if the graph says
    planes: tuple[Plane, ...]  # K and V of each layer
    type: str  # of K and V
    windows: Mapping[int, int | None] | None = None
    n_rope_rows: int | None = None  # positions that the graph has angles for


@dataclass(frozen=True, kw_only=True)
class DecoderGraph(Graph):
    """The inputs and outputs of a decoder with past and present tensors.

    `shares`: past and present may be one buffer, longer than what is in it (GroupQueryAttention).
    `explicit`: the positions of tokens are an input; otherwise a token's position is its index.
    """

    ids_type: str
    mask: str | None
    mask_type: str
    positions: str | None
    positions_type: str
    branch: str | None
    keep: str | None
    logits: str
    shares: bool
    explicit: bool
    fused: bool  # attention is an operator that counts tokens itself
    counts_mask: bool  # the mask is summed and measured only, so zeros may stand behind the text


def read_graph(file: OnnxFile, unnamed: Mapping[str, Any] | None = None) -> DecoderGraph:
    """The decoder's inputs and outputs; `Unsupported` for models of another kind.

    `unnamed` are sizes that a graph may leave open: those of the decoder in genai_config.json.
    """
    inputs = file.inputs
    for name, reason in REFUSED.items():
        if name in inputs:
            raise _unsupported(file, f"input {name!r}: {reason}; only decoders of text run here")
    if IDS not in inputs or "logits" not in file.outputs:
        missing = IDS if IDS not in inputs else "logits"
        raise _unsupported(file, f"{missing!r} is missing: it is not a decoder of text")
    if (kind := file.outputs["logits"].type) not in FLOATS:
        raise _unsupported(file, f"logits are {kind}; float32 and float16 are supported")
    planes = tuple(_planes(file, unnamed or {}))
    keep = next((name for name in KEEP if name in inputs), None)
    known = {IDS, MASK, POSITIONS, BRANCH, keep, *(plane.past for plane in planes)}
    if others := [name for name in inputs if name not in known]:
        raise _unsupported(
            file, f"inputs {', '.join(map(repr, others[:8]))} are not those of a decoder of text"
        )
    _check_rank(file, inputs.get(MASK), 2)
    _check_rank(file, inputs.get(POSITIONS), 2)
    nodes = list(file.nodes(GQA))
    turns_by_index = any(_turns_by_index(node) for node in nodes)
    return DecoderGraph(
        file=file,
        ids_type=_integer(file, IDS),
        mask=MASK if MASK in inputs else None,
        mask_type=_integer(file, MASK),
        positions=POSITIONS if POSITIONS in inputs else None,
        positions_type=_integer(file, POSITIONS),
        branch=BRANCH if BRANCH in inputs else None,
        keep=keep,
        logits="logits",
        n_vocab=_n_vocab(file),
        planes=planes,
        type=_type(file, planes),
        shares=_shares(file, planes, nodes) and MASK in inputs,
        explicit=POSITIONS in inputs and not turns_by_index,
        windows=_windows(nodes, planes),
        n_rope_rows=n_rope_rows(file),
        fused=any(op.endswith("Attention") for op in file.operators.get("com.microsoft", ())),
        counts_mask=all(node.op in MASK_COUNTS for node in file.all_nodes() if MASK in node.inputs),
    )


def _planes(file: OnnxFile, unnamed: Mapping[str, Any]) -> Iterator[Plane]:
    presents = {}
    for name in file.outputs:
        if match := PRESENT.fullmatch(name):
            presents[int(match[1]), match[2]] = name
    found = 0
    for name, value in file.inputs.items():
        match = PAST.fullmatch(name)
        if match is None:
            if name.startswith(("past", "cache")):
                raise _unsupported(file, f"input {name!r} is a state that is not K or V of one layer")
            continue
        present = presents.get((int(match[1]), match[2]))
        if present is None:
            raise ModelError("no output belongs to it", path=file.path, field=f"input {name!r}")
        heads, size = _heads(file, value, file.outputs[present], unnamed)
        found += 1
        yield Plane(name, present, int(match[1]), heads, size)
    if not found:
        raise _unsupported(
            file, "it has no past_key_values: export it with a KV cache (task text-generation-with-past)"
        )


def _heads(
    file: OnnxFile, past: ValueInfo, present: ValueInfo, unnamed: Mapping[str, Any]
) -> tuple[int, int]:
    """Heads and their size, of the past tensor or of the present one."""
    shape = past.shape or ()
    if len(shape) != 4 or isinstance(shape[0], int) or isinstance(shape[2], int):
        raise _unsupported(
            file,
            f"input {past.name!r} has the shape {list(shape)}, not [batch, heads, past, size] with batch and "
            "past of any size; export it with dynamic axes",
        )
    found = []
    for axis, key in ((1, "num_key_value_heads"), (3, "head_size")):
        options = (shape[axis], (present.shape or (None,) * 4)[axis], unnamed.get(key))
        size = next((each for each in options if isinstance(each, int)), None)
        if size is None or not 0 < size <= MAX_HEAD:
            raise ModelError(
                f"the shape {list(shape)} does not say {key}: {size}",
                path=file.path,
                field=f"input {past.name!r}",
            )
        found.append(size)
    return found[0], found[1]


def _type(file: OnnxFile, planes: tuple[Plane, ...]) -> str:
    types = {file.inputs[plane.past].type for plane in planes}
    if len(types) > 1 or not types <= set(FLOATS):
        raise _unsupported(file, f"K and V are {', '.join(sorted(types))}; float32 and float16 are supported")
    return types.pop()


def _integer(file: OnnxFile, name: str) -> str:
    kind = file.inputs[name].type if name in file.inputs else "int64"
    if kind not in INTEGERS:
        raise ModelError(f"{kind}, but integers are needed", path=file.path, field=f"input {name!r}")
    return kind


def _n_vocab(file: OnnxFile) -> int | None:
    shape = file.outputs["logits"].shape
    last = shape[-1] if shape else None
    return last if isinstance(last, int) and last > 0 else None


def _check_rank(file: OnnxFile, value: ValueInfo | None, rank: int) -> None:
    if value is not None and value.shape is not None and len(value.shape) != rank:
        raise _unsupported(file, f"input {value.name!r} has {len(value.shape)} dimensions, not {rank}")


def _turns_by_index(node: Node) -> bool:
    """Whether attention rotates keys by the index of a token, whatever position_ids says."""
    return node.attributes.get("do_rotary", 0) == 1 and not _at(node.inputs, GQA_POSITIONS)


def _shares(file: OnnxFile, planes: tuple[Plane, ...], nodes: list[Node]) -> bool:
    """Whether each past tensor goes into one GroupQueryAttention, and its present comes out of the same."""
    pairs = {
        (_at(node.inputs, GQA_PAST[i]), _at(node.outputs, GQA_PRESENT[i])) for node in nodes for i in (0, 1)
    }
    uses = Counter(name for node in file.all_nodes() for name in node.inputs)
    return all((each.past, each.present) in pairs and uses[each.past] == 1 for each in planes)


def _windows(nodes: list[Node], planes: tuple[Plane, ...]) -> Mapping[int, int | None] | None:
    """The windows of a graph whose attention is GroupQueryAttention in all layers."""
    sizes = {_at(node.inputs, GQA_PAST[0]): node.attributes.get("local_window_size", -1) for node in nodes}
    found: dict[int, int | None] = {}
    for plane in planes:
        size = sizes.get(plane.past)
        if plane.is_key and isinstance(size, int):
            found[plane.layer] = size if size > 0 else None
    return found if len(found) == len({plane.layer for plane in planes}) else None


def n_rope_rows(file: OnnxFile) -> int | None:
    """The length of the tables of angles, where they are tensors of the file."""
    names = {_at(node.inputs, GQA_COSINES) for node in file.nodes(GQA)}
    names |= {_at(node.inputs, 2) for node in file.nodes("RotaryEmbedding")}
    shapes = [file.initializers[name].shape for name in names if name in file.initializers]
    return min((shape[0] for shape in shapes if len(shape) == 2), default=None)


def _at(names: tuple[str, ...], index: int) -> str:
    return names[index] if len(names) > index else ""


def _unsupported(file: OnnxFile, reason: str) -> Unsupported:
    return Unsupported(f"{file.path.name}: {reason}", param="model", value=str(file.path))
