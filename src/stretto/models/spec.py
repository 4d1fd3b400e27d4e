"""The specification of a model, as plain data: backends build their decoders from a `ModelSpec` only.

A decoder layer is

    x += [post_norm] mixer([norm] x)
    x += [post_ffn_norm] ffn([ffn_norm] x)

(in encoders like BERT the sums are normalised: `sum_norm`, `ffn_sum_norm`), and a spec says for each layer
which mixer, feed-forward and norms it has (models/mixers.py, models/feed_forward.py), what a few models have
besides (models/parts.py), and what an encoder makes of a text's hidden states (models/parts.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stretto.models.feed_forward import Dense, Experts, FeedForward, Routing
from stretto.models.mixers import (
    Attention,
    Beside,
    Convolution,
    DeltaNet,
    Indexer,
    KimiDelta,
    Latent,
    Mamba,
    Mamba2,
    Mixer,
    TimeMix,
)
from stretto.models.parts import (
    Head,
    LayerInput,
    LowRank,
    Norm,
    PerLayer,
    Projection,
    Rope,
    Shapes,
    Slice,
    Streams,
    Temperature,
    short_repr,
)

__all__ = [
    "Attention",
    "Beside",
    "Convolution",
    "DeltaNet",
    "Dense",
    "Experts",
    "Head",
    "Indexer",
    "KimiDelta",
    "Latent",
    "Layer",
    "LayerInput",
    "LowRank",
    "Mamba",
    "Mamba2",
    "ModelSpec",
    "Norm",
    "PerLayer",
    "Projection",
    "Rope",
    "Routing",
    "Streams",
    "Temperature",
    "TimeMix",
    "plain_layer",
    "sandwich",
]


@dataclass(frozen=True)
class Layer:
    """One decoder layer. A part that is None is left out; a norm that is None changes nothing.

    `parallel`: the feed-forward reads what the mixer reads, or the same x through a norm of its own, and both
    are added to x together.
    """

    mixer: Mixer | None
    ffn: FeedForward | None
    norm: Norm | None
    ffn_norm: Norm | None
    post_norm: Norm | None = None
    post_ffn_norm: Norm | None = None
    parallel: bool = False
    residual_scale: float = 1.0  # of what mixer and feed-forward add
    low_rank: LowRank | None = None
    input: LayerInput | None = None
    streams: Streams | None = None
    output_scale: bool = False  # at the end x is multiplied by a number of the file
    sum_norm: Norm | None = None  # of x once the mixer's output has been added
    ffn_sum_norm: Norm | None = None

    __repr__ = short_repr

    def within(self, context: int) -> Layer:
        """The layer in a context of so many tokens."""
        attention = self.mixer if isinstance(self.mixer, Latent) else self.attention
        if attention is None or attention.rope is None or attention.rope.by_length is None:
            return self
        rotated = replace(attention, rope=attention.rope.within(context))
        if isinstance(self.mixer, Beside) and isinstance(rotated, Attention):
            return replace(self, mixer=replace(self.mixer, attention=rotated))
        return replace(self, mixer=rotated)

    @property
    def attention(self) -> Attention | None:
        """The layer's attention, if it has one."""
        if isinstance(self.mixer, Beside):
            return self.mixer.attention
        return self.mixer if isinstance(self.mixer, Attention) else None

    @property
    def kv(self) -> tuple[int, int] | None:
        """Heads and their size of the K, and the V, that each cell holds of this layer; None if nothing."""
        return self.mixer.kv if self.mixer is not None else None

    @property
    def v(self) -> tuple[int, int] | None:
        """Heads and their size of the V of each cell, or of an indexer's key; None where V is a part of K."""
        return self.mixer.index_kv if isinstance(self.mixer, Latent) else self.kv

    @property
    def recurrent(self) -> str:
        """The kind of the layer's recurrent mixer or feed-forward, or ""."""
        found: str = getattr(self.mixer, "recurrent", "") or getattr(self.ffn, "recurrent", "")
        return found

    @property
    def state_floats(self) -> int:
        """The size of the layer's recurrent state: the mixer's, then the feed-forward's."""
        return getattr(self.mixer, "state_floats", 0) + getattr(self.ffn, "shift", 0)

    def tensors(self, n_embd: int) -> Shapes:
        """The names, without the layer's prefix, and shapes of its tensors."""
        shapes: Shapes = {}
        norms = self.norm, self.ffn_norm, self.post_norm, self.post_ffn_norm, self.sum_norm, self.ffn_sum_norm
        for norm in norms:
            if norm is not None:
                shapes |= norm.tensors(n_embd)
        for part in (self.mixer, self.ffn, self.low_rank, self.input, self.streams):
            if part is not None:
                shapes |= part.tensors(n_embd)
        if self.output_scale:
            shapes["layer_output_scale.weight"] = (1,)
        return shapes

    @property
    def unused(self) -> tuple[str, ...]:
        """Tensors that files have for this layer, and that nothing reads: another layer's are taken."""
        if isinstance(self.mixer, Latent) and self.mixer.chosen_by is not None:
            names = "attn_q_b.weight", "attn_k.weight", "proj.weight", "k_norm.weight", "k_norm.bias"
            return tuple(f"indexer.{name}" for name in names)
        if isinstance(self.mixer, TimeMix):
            return self.mixer.unused
        attention = self.attention
        if attention is None or attention.shared is None:
            return ()
        return "attn_k.weight", "attn_v.weight", "attn_k_norm.weight"

    def slices(self) -> dict[str, Slice]:
        """Tensors that are parts of others in the file, without the layer's prefix."""
        return {
            name: at
            for part in (self.mixer, self.ffn)
            if part is not None
            for name, at in part.slices().items()
        }


@dataclass(frozen=True)
class ModelSpec:
    """The shape and the parts of a decoder or an encoder.

    >>> llm.spec.n_layer, llm.spec.n_embd
    (30, 576)
    """

    architecture: str
    n_vocab: int
    n_embd: int
    context_length: int
    layers: tuple[Layer, ...]
    output_norm: Norm | None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0  # logits are multiplied by it
    logit_cap: float = 0.0  # logits become cap × tanh(logit / cap); 0: as they are
    tied: bool = True  # the output matrix is the embedding matrix
    output_bias: bool = False  # is added to logits before they are scaled
    windowed_images: bool = False  # tokens of an image see each other, in layers with a window only
    deepstack: int = 0  # so many layers add further numbers of an image's vectors to what they made
    per_layer: PerLayer | None = None
    learned_positions: int = 0  # rows of position_embd, which are added to the embeddings
    token_types: int = 0  # rows of token_types, one of which is added to the embeddings: 0 for a single text
    embedding_norm: Norm | None = None
    embedder: Head | None = None  # what makes a vector of a text; None: the file says nothing about it
    classifier: Head | None = None  # what makes scores of a text

    __repr__ = short_repr

    def within(self, context: int) -> ModelSpec:
        """The spec for a context of at most so many tokens, where that makes a difference to its ropes."""
        context = min(context, self.context_length)
        return replace(self, layers=tuple(layer.within(context) for layer in self.layers))

    def unstretched(self) -> ModelSpec:
        """The spec for texts that no rope stretches for, for backends that have no such ropes."""
        ropes = (layer.attention.rope for layer in self.layers if layer.attention is not None)
        lengths = [rope.stretch.length for rope in ropes if rope is not None and rope.stretch is not None]
        return replace(self, context_length=min([self.context_length, *lengths]))

    @property
    def is_encoder(self) -> bool:
        """Whether it is for vectors and classes: it attends in both directions, or its file says so."""
        return not self.causal or self.embedder is not None or self.classifier is not None

    @property
    def causal(self) -> bool:
        """Whether no token attends to later ones: only then can a text be continued."""
        return all(layer.attention is None or layer.attention.causal for layer in self.layers)

    @property
    def projections(self) -> dict[str, Projection]:
        """The matrices that heads apply to pooled hidden states, by name."""
        heads = (head for head in (self.embedder, self.classifier) if head is not None)
        return {projection.name: projection for head in heads for projection in head.projections}

    @property
    def n_vector(self) -> int:
        """Numbers of a vector in place of a token's embedding: that, and what layers take besides."""
        joined = max((getattr(layer.mixer, "joined", 0) for layer in self.layers), default=0)
        return self.n_embd * (1 + self.deepstack) + joined

    @property
    def has_grid_positions(self) -> bool:
        """Whether a rope takes rows and columns of images as positions (M-RoPE)."""
        ropes = (getattr(layer.attention or layer.mixer, "rope", None) for layer in self.layers)
        return any(rope is not None and rope.axes is not None for rope in ropes)

    @property
    def n_layer(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def streams(self) -> Streams | None:
        """The streams of the residual, if there are several; all layers have the same."""
        return self.layers[0].streams if self.layers else None

    @property
    def n_head(self) -> int:
        """The largest number of heads of any layer."""
        return max((getattr(layer.attention or layer.mixer, "n_head", 0) for layer in self.layers), default=0)

    @property
    def n_kv_head(self) -> int:
        """The largest number of K/V heads of any layer."""
        return max((layer.kv[0] for layer in self.layers if layer.kv), default=0)

    @property
    def head_size(self) -> int:
        """The largest size of a K/V head of any layer."""
        return max((layer.kv[1] for layer in self.layers if layer.kv), default=0)

    @property
    def n_ff(self) -> int:
        """The width of the widest feed-forward."""
        return max((layer.ffn.n_ff for layer in self.layers if layer.ffn is not None), default=0)

    @property
    def has_experts(self) -> bool:
        """Whether any feed-forward is a mixture of experts."""
        return any(isinstance(layer.ffn, Experts) for layer in self.layers)

    @property
    def recurrent(self) -> str:
        """The kind of the first recurrent layer, or "" if all layers are attention."""
        return next((layer.recurrent for layer in self.layers if layer.recurrent), "")

    @property
    def planes(self) -> tuple[tuple[int, int], ...]:
        """What a cell holds: heads and their size of the K, and of the V, of each layer."""
        return tuple(plane for layer in self.layers for plane in (layer.kv, layer.v) if plane)

    @property
    def kv_floats(self) -> int:
        """How many numbers a cell holds, in all layers."""
        return sum(heads * size for heads, size in self.planes)

    @property
    def kv_reads(self) -> list[tuple[int, int, int | None]]:
        """What each layer reads of a cell: heads and their size of K, and of V, and its window."""
        found: list[tuple[int, int, int | None]] = []
        for layer in self.layers:
            attention = layer.attention
            shared, window = (attention.shared, attention.window) if attention is not None else (None, None)
            source = layer if shared is None else self.layers[shared]
            found += [(*plane, window) for plane in (source.kv, source.v) if plane]
        return found

    @property
    def state_floats(self) -> int:
        """How many numbers a state slot holds, in all layers."""
        return sum(layer.state_floats for layer in self.layers)

    @property
    def state_layout(self) -> str:
        """The shape of a slot in words, for the check of data from elsewhere."""
        return "states " + " ".join(str(layer.state_floats or "-") for layer in self.layers)

    @property
    def kv_layout(self) -> str:
        """The shape of a cell in words, for the check of data from elsewhere."""
        kinds = list(dict.fromkeys(layer.kv for layer in self.layers))
        if len(kinds) == 1 and kinds[0]:
            heads = f"{kinds[0][0]} heads of {kinds[0][1]}"
        else:
            each = " ".join(f"{layer.kv[0]}x{layer.kv[1]}" if layer.kv else "-" for layer in self.layers)
            heads = f"heads {each}"
        ropes = (getattr(layer.attention or layer.mixer, "rope", None) for layer in self.layers)
        chosen = next((rope.chosen for rope in ropes if rope is not None and rope.chosen), "")
        indexed = [layer.v[1] if layer.v else 0 for layer in self.layers if isinstance(layer.mixer, Latent)]
        index = f"index keys {' '.join(map(str, indexed))}" if any(indexed) else ""
        return ", ".join(filter(None, (f"{self.n_layer} layers", heads, index, chosen)))

    def tensors(self) -> Shapes:
        """The names and shapes of all tensors the model needs, by the names of the file."""
        shapes: Shapes = {"token_embd.weight": (self.n_vocab, self.n_embd)}
        for norm in (self.output_norm, self.embedding_norm):
            if norm is not None:
                shapes |= norm.tensors(self.n_embd)
        for name, rows in (("position_embd", self.learned_positions), ("token_types", self.token_types)):
            if rows:
                shapes[f"{name}.weight"] = (rows, self.n_embd)
        for projection in self.projections.values():
            shapes |= projection.tensors()
        if not self.tied:
            shapes["output.weight"] = (self.n_vocab, self.n_embd)
        if self.output_bias:
            shapes["output.bias"] = (self.n_vocab,)
        if self.per_layer is not None:
            shapes |= self.per_layer.tensors(self.n_vocab, self.n_embd, self.n_layer)
        if self.streams is not None:
            shapes |= self.streams.whole(self.n_embd)
        for i, layer in enumerate(self.layers):
            shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.tensors(self.n_embd).items()}
        return shapes

    def expert_tensors(self) -> dict[int, tuple[str, ...]]:
        """The names of the tensors of single experts, of each layer that has some."""
        return {
            i: tuple(f"blk.{i}.{name}" for name in layer.ffn.expert_tensors(self.n_embd))
            for i, layer in enumerate(self.layers)
            if isinstance(layer.ffn, Experts)
        }

    def slices(self) -> dict[str, Slice]:
        """Tensors that are parts of others in the file, by the decoder's names."""
        return {
            f"blk.{i}.{name}": replace(at, tensor=f"blk.{i}.{at.tensor}")
            for i, layer in enumerate(self.layers)
            for name, at in layer.slices().items()
        }

    def unused(self) -> set[str]:
        """The names of tensors that files have, and that nothing reads."""
        return {f"blk.{i}.{name}" for i, layer in enumerate(self.layers) for name in layer.unused}


def sandwich(mixer: Mixer, ffn: FeedForward, eps: float) -> Layer:
    """A layer with RMS norms on both sides of mixer and feed-forward, by their usual names."""
    after = Norm("post_attention_norm", eps), Norm("post_ffw_norm", eps)
    return Layer(mixer, ffn, Norm("attn_norm", eps), Norm("ffn_norm", eps), *after)


def plain_layer(mixer: Mixer, ffn: FeedForward, eps: float, residual_scale: float = 1.0) -> Layer:
    """A layer as most models have it: RMS norms before mixer and feed-forward."""
    norms = Norm("attn_norm", eps), Norm("ffn_norm", eps)
    return Layer(mixer, ffn, *norms, residual_scale=residual_scale)
