"""Metadata that the architectures share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from stretto.errors import ModelError, UnsupportedModel
from stretto.models.spec import Attention, Dense, Experts, Layer, ModelSpec, Norm, Rope, Routing, plain_layer
from stretto.weights.gguf import GGUF

# Far above any model; a damaged count should not cost memory.
MAX_LAYERS = 1024
MAX_HEAD_SIZE = 1 << 16
MAX_EXPERTS = 4096
LAYER_EPSILON = "attention.layer_norm_epsilon"


def positive(file: GGUF, key: str, default: int | None = None, most: int = 1 << 31) -> int:
    """The integer at `key`, which must be from 1 to `most`."""
    value = file.metadata.integer(key, default)
    if not 1 <= value <= most:
        raise ModelError(f"{value}, but 1 to {most} is possible", path=file.path, field=key)
    return value


def refuse(file: GGUF, key: str, what: str, harmless: float = 0.0) -> None:
    """Raise for a part of a model that would be ignored otherwise: `key` with a value that matters."""
    value = file.metadata.number(key, harmless)
    if value != harmless:
        raise UnsupportedModel(f"{what} ({value:g}) is not supported", path=file.path, field=key)


class Keys:
    """The keys of one architecture in a file, checked: `keys.size("block_count")` is at least 1."""

    def __init__(self, file: GGUF, arch: str) -> None:
        self.file = file
        self.arch = arch
        self.rms_epsilon = "attention.layer_norm_rms_epsilon"

    def size(self, name: str, default: int | None = None, most: int = 1 << 31) -> int:
        """A count, from 1 to `most`."""
        return positive(self.file, f"{self.arch}.{name}", default, most)

    def count(self, name: str, default: int = 0, most: int = 1 << 31) -> int:
        """A count that may be 0."""
        key = f"{self.arch}.{name}"
        value = self.file.metadata.integer(key, default)
        if not 0 <= value <= most:
            raise ModelError(f"{value}, but 0 to {most} is possible", path=self.file.path, field=key)
        return value

    def rotated(self, name: str, head_size: int, default: int | None = None) -> int:
        """How many numbers of a head a rope rotates: an even count."""
        size = self.size(name, default, most=head_size)
        if size % 2:
            key = f"{self.arch}.{name}"
            raise ModelError(f"{size} rotated numbers; pairs are needed", path=self.file.path, field=key)
        return size

    def sizes(self, name: str, default: int | None = None, least: int = 1) -> list[int]:
        """A count for each layer: an array of them, or one for all."""
        key = f"{self.arch}.{name}"
        if key not in self.file.metadata or isinstance(self.file.metadata[key], int):
            one = self.count(name, default or 0) if least == 0 else self.size(name, default)
            return [one] * self.n_layer
        values: list[Any] = self.file.metadata.array(key).tolist()
        if len(values) != self.n_block or not all(type(v) is int and least <= v <= 1 << 31 for v in values):
            raise ModelError(
                f"{len(values)} numbers; {self.n_block} integers from {least} are needed, one for each layer",
                path=self.file.path,
                field=key,
            )
        return values[: self.n_layer]

    def flags(self, name: str) -> list[bool]:
        """A boolean for each layer."""
        key = f"{self.arch}.{name}"
        values = [bool(v) for v in self.file.metadata.array(key).tolist()]
        if len(values) != self.n_block:
            raise ModelError(
                f"{len(values)} values for {self.n_block} layers", path=self.file.path, field=key
            )
        return values[: self.n_layer]

    def number(
        self, name: str, default: float | None = None, least: float = -1e30, most: float = 1e30
    ) -> float:
        """A finite number within limits."""
        key = f"{self.arch}.{name}"
        value = self.file.metadata.number(key, default)
        if not least <= value <= most:
            raise ModelError(
                f"{value}, but {least:g} to {most:g} is possible", path=self.file.path, field=key
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        return self.file.metadata.flag(f"{self.arch}.{name}", default)

    def refuse(self, name: str, what: str, harmless: float = 0.0) -> None:
        """Raise for a part of a model that would be ignored otherwise."""
        refuse(self.file, f"{self.arch}.{name}", what, harmless)

    @property
    def n_block(self) -> int:
        """The number of layers in the file, with those that predict further tokens."""
        return self.size("block_count", most=MAX_LAYERS)

    @property
    def n_layer(self) -> int:
        """The number of layers that are run: those that predict further tokens (MTP) stand behind them."""
        return self.n_block - self.count("nextn_predict_layers", most=self.n_block - 1)

    @property
    def n_embd(self) -> int:
        """The width of the residual stream."""
        return self.size("embedding_length")

    @property
    def eps(self) -> float:
        """The epsilon of RMS norms."""
        return self._epsilon(self.rms_epsilon)

    @property
    def layer_eps(self) -> float:
        """The epsilon of layer norms."""
        return self._epsilon(LAYER_EPSILON)

    def _epsilon(self, name: str) -> float:
        key = f"{self.arch}.{name}"
        eps = self.file.metadata.number(key)
        if not 0.0 <= eps < 1.0:
            raise ModelError(f"an epsilon of {eps}", path=self.file.path, field=key)
        return eps

    def has(self, tensor: str) -> bool:
        """Whether the file has a tensor."""
        return tensor in self.file.tensors


def head_size(file: GGUF, arch: str) -> int:
    """The size of a head: as given, or the embedding divided among the heads."""
    heads = positive(file, f"{arch}.attention.head_count")
    share = positive(file, f"{arch}.embedding_length") // heads or 1
    size = positive(file, f"{arch}.attention.key_length", share, most=MAX_HEAD_SIZE)
    if positive(file, f"{arch}.attention.value_length", size) != size:
        raise UnsupportedModel(
            "keys and values of different sizes are not supported",
            path=file.path,
            field=f"{arch}.attention.value_length",
        )
    return size


def attention(keys: Keys, rope: Rope | None, **pieces: Any) -> Attention:
    """The attention that the usual keys describe; `pieces` are the fields that differ."""
    size = head_size(keys.file, keys.arch)
    n_head = pieces.pop("n_head", None) or keys.size("attention.head_count")
    n_kv_head = pieces.pop("n_kv_head", None) or keys.size("attention.head_count_kv", n_head)
    if n_head % n_kv_head:
        raise ModelError(
            f"{n_head} heads cannot share {n_kv_head} K/V heads evenly",
            path=keys.file.path,
            field=f"{keys.arch}.attention.head_count_kv",
        )
    return Attention(
        **(
            {"scale": size**-0.5, "n_head": n_head, "n_kv_head": n_kv_head, "head_size": size, "rope": rope}
            | pieces
        )
    )


def attention_biases(keys: Keys) -> dict[str, bool]:
    """Which biases a file has, as pieces of an attention; a layer without them is refused later."""
    return {"bias": keys.has("blk.0.attn_q.bias"), "output_bias": keys.has("blk.0.attn_output.bias")}


def qk_norms(eps: float) -> dict[str, Norm]:
    """The norms of each head's query and key, by RMS, as pieces of an attention."""
    return {"q_norm": Norm("attn_q_norm", eps), "k_norm": Norm("attn_k_norm", eps)}


def decoder(keys: Keys, layers: Iterable[Layer], **pieces: Any) -> ModelSpec:
    """A spec from the keys that every architecture has; `pieces` are the fields that differ."""
    file = keys.file
    if "token_embd.weight" not in file.tensors:
        raise ModelError(
            "the tensor is missing; is this a language model?", path=file.path, field="token_embd.weight"
        )
    layers = tuple(layers)
    fields: dict[str, Any] = {
        "architecture": keys.arch,
        "n_vocab": file.tensors["token_embd.weight"].shape[0],
        "n_embd": keys.n_embd,
        "context_length": keys.size("context_length"),
        "layers": layers,
        "tied": "output.weight" not in file.tensors,
    }
    if "output_norm" not in pieces:
        fields["output_norm"] = Norm("output_norm", keys.eps)
    return ModelSpec(**(fields | pieces))


def plain_decoder(keys: Keys, mixer: Attention, **pieces: Any) -> ModelSpec:
    """A model whose layers are all the same attention and gated feed-forward, with norms before each."""
    refuse_experts(keys)
    ffn = Dense(keys.size("feed_forward_length"), bias=keys.has("blk.0.ffn_up.bias"))
    return decoder(keys, (plain_layer(mixer, ffn, keys.eps),) * keys.n_layer, **pieces)


def refuse_experts(keys: Keys) -> None:
    """Raise for what a model of plain layers does not have."""
    keys.refuse("expert_count", "a mixture of experts")
    refuse_caps(keys)


def refuse_caps(keys: Keys) -> None:
    """Raise for caps, which few architectures have."""
    keys.refuse("attn_logit_softcapping", "a cap on attention scores")
    keys.refuse("final_logit_softcapping", "a cap on logits")


def without_rope(mixer: Attention) -> Attention:
    """The same attention without positions."""
    return replace(mixer, rope=None)


# Which layers of a model attend to a window only, as files say it.

PATTERN = "attention.sliding_window_pattern"


def windowed(keys: Keys, period: int) -> list[bool]:
    """For each layer, whether it has a window: all but every `period`-th, unless the file says otherwise."""
    key = f"{keys.arch}.{PATTERN}"
    if key in keys.file.metadata and not isinstance(keys.file.metadata[key], int):
        return keys.flags(PATTERN)
    period = keys.size(PATTERN, period)
    return [i % period < period - 1 for i in range(keys.n_layer)]


def with_windows(keys: Keys, spec: ModelSpec) -> ModelSpec:
    """The spec with windows in the layers that the file lists, of an architecture that usually has none.

    Files of llama.cpp's converter do not list any: only Hugging Face folders of these architectures do.
    """
    if f"{keys.arch}.{PATTERN}" not in keys.file.metadata:
        return spec
    window, layers = keys.size("attention.sliding_window"), list(spec.layers)
    for i, has_window in enumerate(keys.flags(PATTERN)):
        mixer = layers[i].mixer
        if has_window and isinstance(mixer, Attention):
            layers[i] = replace(layers[i], mixer=replace(mixer, window=window))
    return replace(spec, layers=tuple(layers))


def both_sides(keys: Keys) -> int:
    """The window of attention in both directions: files have the width of both sides together.

    A token attends to those less than so many positions away.
    """
    return keys.size("attention.sliding_window") // 2 + 1


# The metadata of mixtures of experts, which the architectures share.

Weights = Literal["softmax", "sigmoid", "chosen"]
GATING: dict[int, Weights] = {1: "softmax", 2: "sigmoid", 3: "chosen"}  # codes of expert_gating_func


def mixture(keys: Keys, choice: Routing | None = None, **pieces: Any) -> Experts:
    """The experts that the usual keys describe; `pieces` are the fields that differ."""
    fields: dict[str, Any] = {
        "n_expert": keys.size("expert_count", most=MAX_EXPERTS),
        "n_ff": expert_width(keys),
        "routing": choice or routing(keys),
    }
    return Experts(**(fields | pieces))


def expert_width(keys: Keys) -> int:
    """The width of an expert: as given, or its share of the whole feed-forward's."""
    if f"{keys.arch}.expert_feed_forward_length" in keys.file.metadata:
        return keys.size("expert_feed_forward_length")
    return keys.size("feed_forward_length") // keys.size("expert_used_count", most=MAX_EXPERTS) or 1


def routing(keys: Keys, weights: Weights = "softmax", **pieces: Any) -> Routing:
    """The choice of experts that the usual keys describe; `pieces` are the fields that differ."""
    n_expert = keys.size("expert_count", most=MAX_EXPERTS)
    n_used = keys.size("expert_used_count", most=n_expert)
    n_group = keys.count("expert_group_count", 1, most=n_expert) or 1
    n_group_used = keys.count("expert_group_used_count", 1, most=n_group) or 1
    if n_expert % n_group or n_used > n_group_used * (n_expert // n_group):
        raise ModelError(
            f"{n_used} of {n_expert} experts cannot be taken from {n_group_used} of {n_group} equal groups",
            path=keys.file.path,
            field=f"{keys.arch}.expert_group_count",
        )
    fields: dict[str, Any] = {
        "n_used": n_used,
        "weights": weights,
        # Files that say nothing of a scale, or 0, have none.
        "scale": keys.number("expert_weights_scale", 1.0, 0.0, 1e6) or 1.0,
        "n_group": n_group,
        "n_group_used": n_group_used,
        "group_best": min(2, n_expert // n_group),
    }
    return Routing(**(fields | pieces))


def gating(keys: Keys, default: Weights) -> Weights:
    """How scores become weights, by the code in the file."""
    code = keys.count("expert_gating_func")
    if code and code not in GATING:
        raise ModelError(
            f"{code}, but 1 (softmax), 2 (sigmoid) and 3 (softmax of the chosen) are supported",
            path=keys.file.path,
            field=f"{keys.arch}.expert_gating_func",
        )
    return GATING.get(code, default)


def shared_expert(n_ff: int) -> Dense | None:
    """An expert that every token has; none of width 0."""
    return Dense(n_ff, suffix="_shexp") if n_ff else None


def shared_experts(keys: Keys) -> Dense | None:
    """So many experts that every token has, side by side as one."""
    return shared_expert(keys.count("expert_shared_count", most=MAX_EXPERTS) * expert_width(keys))


def dense_first(keys: Keys) -> int:
    """How many layers at the start have a dense feed-forward."""
    return keys.count("leading_dense_block_count", most=keys.n_layer)
