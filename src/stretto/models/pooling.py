"""The heads that a file's metadata and tensors describe, of encoders and of decoders used as such."""

from __future__ import annotations

from dataclasses import replace

from stretto.errors import ModelError
from stretto.models.common import Keys
from stretto.models.mixers import Attention
from stretto.models.parts import Head, Pooling, Projection
from stretto.models.spec import Layer, ModelSpec, Norm

NONE, MEAN, CLS, LAST, RANK = range(5)  # codes of pooling_type
POOLINGS: dict[int, Pooling] = {MEAN: "mean", CLS: "cls", LAST: "last"}
DENSE = "dense_2", "dense_3"  # matrices behind the pooling, as sentence-transformers has them
MAX_LABELS = 1 << 20


def add_heads(keys: Keys, spec: ModelSpec) -> ModelSpec:
    """The spec with the heads of the file, and attention in both directions where the file says so."""
    if spec.causal and not keys.flag("attention.causal", True):
        spec = replace(spec, layers=tuple(map(_two_way, spec.layers)))
    code = keys.count("pooling_type", NONE, most=RANK)
    last: Pooling = "last" if spec.causal else "cls"
    embedder = None
    if code in POOLINGS or not spec.causal:
        pooling = POOLINGS.get(code, last if code == RANK else "mean")
        embedder = Head(pooling, _dense(keys, spec.n_embd))
    return replace(spec, embedder=embedder, classifier=_classifier(keys, spec, last))


def _two_way(layer: Layer) -> Layer:
    if not isinstance(layer.mixer, Attention):
        raise ModelError("only layers that attend can do so in both directions", field="attention.causal")
    return replace(layer, mixer=replace(layer.mixer, causal=False))


def _dense(keys: Keys, n_embd: int) -> tuple[Projection, ...]:
    """The matrices between pooling and vector, one after the other."""
    found: list[Projection] = []
    for name in DENSE:
        if (projection := _projection(keys, name, n_embd)) is not None:
            found.append(projection)
            n_embd = projection.rows
    return tuple(found)


def _classifier(keys: Keys, spec: ModelSpec, pooling: Pooling) -> Head | None:
    """A class head: perhaps a layer of its own, and the matrix with a row for each label.

    Where norms stand before a layer's parts (ModernBERT), that layer is GELU and a norm over the mean of the
    text; in others it is BERT's pooler, the tanh of its first token.
    """
    modern = keys.has("cls.norm.weight")
    hidden = _projection(keys, "cls", spec.n_embd)
    output = _projection(keys, "cls.output", spec.n_embd)
    if output is None and hidden is None:
        return None
    parts: list[Projection] = []
    if hidden is not None and output is not None:
        norm = Norm("cls.norm", keys.layer_eps, "layer") if modern else None
        parts.append(replace(hidden, activation="gelu_erf" if modern else "tanh", norm=norm))
    elif hidden is not None:
        parts.append(replace(hidden, activation="tanh"))
    if output is not None:
        parts.append(output)
    key = "classifier.output_labels"
    labels = tuple(map(str, keys.file.metadata.strings(keys.key(key)))) if key in keys else ()
    if labels and len(labels) != parts[-1].rows:
        raise keys.error(key, f"{len(labels)} labels for {parts[-1].rows} scores")
    return Head("mean" if modern else pooling, tuple(parts), labels, softmax=spec.causal)


def _projection(keys: Keys, name: str, columns: int) -> Projection | None:
    tensor = keys.file.tensors.get(f"{name}.weight")
    if tensor is None:
        return None
    if len(tensor.shape) != 2 or tensor.shape[1] != columns or not 1 <= tensor.shape[0] <= MAX_LABELS:
        reason = f"the shape is {tensor.shape}; rows of {columns} numbers are needed"
        raise keys.file.error(f"tensor {tensor.name!r}", reason)
    return Projection(name, tensor.shape[0], columns, bias=keys.has(f"{name}.bias"))
