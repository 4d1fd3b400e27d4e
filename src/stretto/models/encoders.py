"""What the encoders of BERT's kind have in common: post-norm layers, learned positions, token types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stretto.errors import ModelError
from stretto.models.common import Keys, Pairs, attention, decoder
from stretto.models.feed_forward import FeedForward
from stretto.models.parts import Head, Pooling, Projection
from stretto.models.spec import Attention, Layer, ModelSpec, Norm, Rope


def layer_norm(keys: Keys, name: str, bias: bool = True) -> Norm:
    """A layer norm by its name."""
    return Norm(name, keys.layer_eps, "layer", bias=bias)


def two_way(keys: Keys, rope: Rope | Pairs | None, **pieces: Any) -> Attention:
    """Attention in both directions; whether q, k and v are one tensor, and their biases, are the file's."""
    fused = keys.has("blk.0.attn_qkv.weight")
    return attention(
        keys,
        rope,
        causal=False,
        fused=fused,
        bias=keys.has("blk.0.attn_qkv.bias" if fused else "blk.0.attn_q.bias"),
        output_bias=keys.has("blk.0.attn_output.bias"),
        q_norm=_whole_norm(keys, "attn_q_norm"),
        k_norm=_whole_norm(keys, "attn_k_norm"),
        **pieces,
    )


def _whole_norm(keys: Keys, name: str) -> Norm | None:
    """The layer norm of a whole row of queries or keys, which few models have."""
    if not keys.has(f"blk.0.{name}.weight"):
        return None
    bias = keys.has(f"blk.0.{name}.bias")
    return Norm(name, keys.layer_eps, "layer", bias=bias, over="all")


def post_norm_layer(keys: Keys, mixer: Attention, ffn: FeedForward) -> Layer:
    """A layer that normalises the sums, as BERT's do."""
    norms = layer_norm(keys, "attn_output_norm"), layer_norm(keys, "layer_output_norm")
    return Layer(mixer, ffn, None, None, sum_norm=norms[0], ffn_sum_norm=norms[1])


def encoder(keys: Keys, layers: Iterable[Layer], **pieces: Any) -> ModelSpec:
    """The spec of an encoder with normalised embeddings, and token types if the file has them."""
    keys.refuse("attn_logit_softcapping", "a cap on attention scores")
    types = "token_types.weight"
    fields: dict[str, Any] = {
        "output_norm": None,
        "embedding_norm": layer_norm(keys, "token_embd_norm"),
        "token_types": keys.tensor(types).shape[0] if keys.has(types) else 0,
        "tied": True,
    }
    return decoder(keys, layers, **(fields | pieces))


def uniform_encoder(keys: Keys, mixer: Attention, ffn: FeedForward, **pieces: Any) -> ModelSpec:
    """An encoder whose layers are all the same, and normalise the sums."""
    return encoder(keys, (post_norm_layer(keys, mixer, ffn),) * keys.n_layer, **pieces)


# The heads that a file's metadata and tensors describe, of encoders and of decoders used as such.

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
