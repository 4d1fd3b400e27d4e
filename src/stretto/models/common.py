"""Metadata that the architectures share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import log, log2
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError, UnsupportedModel
from stretto.models.feed_forward import Activation, FeedForward
from stretto.models.mixers import Mixer
from stretto.models.parts import ByLength
from stretto.models.rope import plain_frequencies, yarn
from stretto.models.spec import Attention, Dense, Experts, Layer, ModelSpec, Norm, Rope, Routing, plain_layer
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor

# Far above any model; a damaged count should not cost memory.
MAX_LAYERS = 1024
MAX_HEAD_SIZE = 1 << 16
MAX_EXPERTS = 4096
MAX_HEADS = 1 << 16
LAYER_EPSILON = "attention.layer_norm_epsilon"


def positive(file: GGUF, key: str, default: int | None = None, most: int = 1 << 31) -> int:
    """The integer at `key`, which must be from 1 to `most`."""
    value = file.metadata.integer(key, default)
    if not 1 <= value <= most:
        raise file.error(key, f"{value}, but 1 to {most} is possible")
    return value


class Keys:
    """The keys of one architecture in a file, checked: `keys.size("block_count")` is at least 1."""

    def __init__(self, file: GGUF, arch: str) -> None:
        self.file = file
        self.arch = arch
        self.rms_epsilon = "attention.layer_norm_rms_epsilon"

    def key(self, name: str) -> str:
        """The whole key in the file."""
        return f"{self.arch}.{name}"

    def __contains__(self, name: str) -> bool:
        return self.key(name) in self.file.metadata

    def error(self, name: str, reason: str) -> ModelError:
        """The error about the value of a key."""
        return self.file.error(self.key(name), reason)

    def size(self, name: str, default: int | None = None, most: int = 1 << 31) -> int:
        """A count, from 1 to `most`."""
        return positive(self.file, self.key(name), default, most)

    def count(self, name: str, default: int = 0, most: int = 1 << 31) -> int:
        """A count that may be 0."""
        value = self.file.metadata.integer(self.key(name), default)
        if not 0 <= value <= most:
            raise self.error(name, f"{value}, but 0 to {most} is possible")
        return value

    def rotated(self, name: str, head_size: int, default: int | None = None) -> int:
        """How many numbers of a head a rope rotates: an even count."""
        size = self.size(name, default, most=head_size)
        if size % 2:
            raise self.error(name, f"{size} rotated numbers; pairs are needed")
        return size

    def sizes(self, name: str, default: int | None = None, least: int = 1) -> list[int]:
        """A count for each layer: an array of them, or one for all."""
        if name not in self or isinstance(self.file.metadata[self.key(name)], int):
            one = self.count(name, default or 0) if least == 0 else self.size(name, default)
            return [one] * self.n_layer
        values: list[Any] = self.file.metadata.array(self.key(name)).tolist()
        if len(values) != self.n_block or not all(type(v) is int and least <= v <= 1 << 31 for v in values):
            integers = f"{self.n_block} integers from {least} are needed, one for each layer"
            raise self.error(name, f"{len(values)} numbers; {integers}")
        return values[: self.n_layer]

    def flags(self, name: str) -> list[bool]:
        """A boolean for each layer."""
        values = [bool(v) for v in self.file.metadata.array(self.key(name)).tolist()]
        if len(values) != self.n_block:
            raise self.error(name, f"{len(values)} values for {self.n_block} layers")
        return values[: self.n_layer]

    def number(
        self, name: str, default: float | None = None, least: float = -1e30, most: float = 1e30
    ) -> float:
        """A finite number within limits."""
        value = self.file.metadata.number(self.key(name), default)
        if not least <= value <= most:
            raise self.error(name, f"{value}, but {least:g} to {most:g} is possible")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        return self.file.metadata.flag(self.key(name), default)

    def refuse(self, name: str, what: str, harmless: float = 0.0) -> None:
        """Raise for a part of a model that would be ignored otherwise: a key with a value that matters."""
        value, key = self.number(name, harmless), self.key(name)
        if value != harmless:
            raise UnsupportedModel(f"{what} ({value:g}) is not supported", path=self.file.path, field=key)

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
        eps = self.number(name)
        if not 0.0 <= eps < 1.0:
            raise self.error(name, f"an epsilon of {eps}")
        return eps

    def has(self, tensor: str) -> bool:
        """Whether the file has a tensor."""
        return tensor in self.file.tensors

    def tensor(self, name: str, hint: str = "is the file complete?") -> Tensor:
        """A tensor that the model needs."""
        if name not in self.file.tensors:
            raise self.file.error(name, f"the tensor is missing; {hint}")
        return self.file.tensors[name]


# Rotary frequencies with the scalings that models come with: none, linear, Llama 3's, YaRN, LongRoPE.

Pairs = Literal["adjacent", "halves"]
LOCAL_BASE = 10_000.0  # of the rope in windowed layers, where the file does not say it


def read_base(keys: Keys, name: str = "rope.freq_base") -> float:
    """The base of a rope's frequencies."""
    base = keys.number(name, LOCAL_BASE)
    if not 1.0 < base < 1e12:
        raise keys.error(name, f"a base of {base}")
    return base


def read_rope(keys: Keys, pairs: Pairs, size: int | None = None) -> Rope:
    """The rope of a model's (global) layers, with heads of that size, or of the usual one."""
    size, base = _read_size(keys, size), read_base(keys)
    frequencies = plain_frequencies(base, size)
    # Llama 3 stores the divisors of its frequencies as a tensor.
    if keys.has("rope_freqs.weight"):
        frequencies = frequencies / _read_divisors(keys, "rope_freqs.weight", size // 2)
    scaled, longer = _scale(keys, frequencies, base)
    rope = Rope(_tuple(scaled), pairs, longer)
    kind = keys.file.metadata.text(keys.key("rope.scaling.type"), "")
    if kind == "longrope" or keys.has("rope_factors_long.weight"):
        long = _tuple(scaled / _read_divisors(keys, "rope_factors_long.weight", size // 2))
        short = _tuple(scaled / _read_divisors(keys, "rope_factors_short.weight", size // 2))
        rope = replace(rope, by_length=ByLength(keys.size(ORIGINAL), short, long))
    return rope.within(keys.size("context_length"))


def read_plain_rope(keys: Keys, pairs: Pairs) -> Rope:
    """The rope of layers that a model's scaling is not for."""
    return Rope(_tuple(plain_frequencies(read_base(keys), _read_size(keys))), pairs)


def read_local_rope(keys: Keys, size: int | None = None) -> Rope:
    """The rope of windowed layers that have a base of their own."""
    base = read_base(keys, "rope.freq_base_swa")
    return Rope(_tuple(plain_frequencies(base, size or head_size(keys))), "halves")


def _tuple(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(values.tolist())


def _read_size(keys: Keys, of_head: int | None = None) -> int:
    """How many numbers of a head are rotated."""
    of_head = of_head or head_size(keys)
    size = keys.file.metadata.integer(keys.key("rope.dimension_count"), of_head)
    if not 2 <= size <= of_head or size % 2:
        reason = f"{size} rotated numbers in heads of {of_head}; an even number up to that is needed"
        raise keys.error("rope.dimension_count", reason)
    return size


def _read_divisors(keys: Keys, name: str, n: int) -> NDArray[np.float64]:
    """A tensor of what each frequency is divided by."""
    tensor = keys.tensor(name)
    factors = tensor.dequantize().astype(np.float64) if tensor.shape == (n,) else None
    if factors is None or not (np.isfinite(factors) & (factors > 0)).all():
        reason = f"{n} positive factors are needed, found shape {tensor.shape}"
        raise keys.file.error(f"tensor {name!r}", reason)
    return factors


SCALING = "rope.scaling"
ORIGINAL = f"{SCALING}.original_context_length"


def _scale(keys: Keys, frequencies: NDArray[np.float64], base: float) -> tuple[NDArray[np.float64], float]:
    """The frequencies with the scaling of the metadata, and the magnitude that belongs to it."""
    # Files from before 2024 have only a linear scale, under a name of its own.
    kind = keys.file.metadata.text(keys.key(f"{SCALING}.type"), "linear")
    factor = _factor(keys, "factor", keys.number("rope.scale_linear", 1.0, 1e-6, 1e6))
    longer = _factor(keys, "attn_factor", 1.0)
    if kind == "linear":
        frequencies = frequencies / factor
    elif kind == "yarn":
        frequencies = _stretch(keys, frequencies, base, factor)
        longer *= _yarn_magnitude(keys, factor)
    elif kind not in ("none", "longrope"):  # the factors of the latter are tensors
        known = "supported are none, linear, yarn, longrope, Llama 3's"
        raise keys.error(f"{SCALING}.type", f"rope scaling {kind!r} is not supported; {known}")
    return frequencies, longer


def _factor(keys: Keys, name: str, default: float) -> float:
    return keys.number(f"{SCALING}.{name}", default, 1e-6, 1e6)


def _stretch(
    keys: Keys, frequencies: NDArray[np.float64], base: float, factor: float, whole: bool = True
) -> NDArray[np.float64]:
    """The frequencies as YaRN stretches them, by the usual keys."""
    keys.refuse(f"{SCALING}.yarn_ext_factor", "an extrapolation factor", harmless=1.0)
    original = keys.size(ORIGINAL, keys.size("context_length"))
    fast, slow = _factor(keys, "yarn_beta_fast", 32.0), _factor(keys, "yarn_beta_slow", 1.0)
    return yarn(frequencies, base, factor, original, fast, slow, whole)


def _yarn_magnitude(keys: Keys, factor: float) -> float:
    """How much longer YaRN makes queries and keys: by its own formula, divided, or as given."""
    given = _factor(keys, "yarn_attn_factor", 1.0)
    if given != 1.0:  # which is what tools write for "as usual"
        return given
    divisor = keys.number(f"{SCALING}.yarn_log_multiplier", 0.0, 0.0, 1e3)
    growth = log(max(factor, 1.0))
    return (0.1 * growth + 1.0) / (0.1 * divisor * growth + 1.0)


def read_frequencies(keys: Keys, size: int, whole: bool = True) -> tuple[tuple[float, ...], float]:
    """The frequencies of `size` rotated numbers, and the factor that some are stretched by, or 1.

    They are for YaRN as gpt-oss and DeepSeek have it, with a ramp or a magnitude of their own. `whole`: the
    ramp between plain and stretched frequencies begins and ends at whole pairs.
    """
    base = read_base(keys)
    frequencies = plain_frequencies(base, size)
    kind = keys.file.metadata.text(keys.key(f"{SCALING}.type"), "none")
    if kind == "none":
        return _tuple(frequencies), 1.0
    if kind != "yarn":
        reason = f"rope scaling {kind!r} is not supported for this architecture; supported are none and yarn"
        raise keys.error(f"{SCALING}.type", reason)
    keys.refuse(f"{SCALING}.yarn_attn_factor", "a magnitude of its own", harmless=1.0)
    factor = keys.number(f"{SCALING}.factor", 1.0, 1.0, 1e6)
    return _tuple(_stretch(keys, frequencies, base, factor, whole)), factor


# The parts of decoders.


def head_size(keys: Keys) -> int:
    """The size of a head: as given, or the embedding divided among the heads."""
    share = keys.n_embd // keys.size("attention.head_count") or 1
    return check_head_size(keys, keys.size("attention.key_length", share, most=MAX_HEAD_SIZE))


def check_head_size(keys: Keys, size: int, suffix: str = "") -> int:
    """The size of a head of keys, which values must have too."""
    name = f"attention.value_length{suffix}"
    if keys.size(name, size) != size:
        reason = "keys and values of different sizes are not supported"
        raise UnsupportedModel(reason, path=keys.file.path, field=keys.key(name))
    return size


def attention(keys: Keys, rope: Rope | Pairs | None, **pieces: Any) -> Attention:
    """The attention that the usual keys describe; `pieces` are the fields that differ.

    `rope` may say only which numbers of a head form a pair: the rest is read.
    """
    size = head_size(keys)
    n_head = pieces.pop("n_head", None) or keys.size("attention.head_count")
    n_kv_head = pieces.pop("n_kv_head", None) or keys.size("attention.head_count_kv", n_head)
    if n_head % n_kv_head:
        reason = f"{n_head} heads cannot share {n_kv_head} K/V heads evenly"
        raise keys.error("attention.head_count_kv", reason)
    fields: dict[str, Any] = {
        "scale": size**-0.5,
        "n_head": n_head,
        "n_kv_head": n_kv_head,
        "head_size": size,
        "rope": read_rope(keys, rope) if isinstance(rope, str) else rope,
    }
    return Attention(**(fields | pieces))


def attention_biases(keys: Keys, i: int = 0) -> dict[str, bool]:
    """Which biases layer i has, as pieces of an attention; another layer without them is refused later."""
    names = {"bias": "attn_q", "output_bias": "attn_output"}
    return {piece: keys.has(f"blk.{i}.{name}.bias") for piece, name in names.items()}


def qk_norms(eps: float) -> dict[str, Norm]:
    """The norms of each head's query and key, by RMS, as pieces of an attention."""
    return {"q_norm": Norm("attn_q_norm", eps), "k_norm": Norm("attn_k_norm", eps)}


def whole_norms(eps: float) -> dict[str, Norm]:
    """The norms of queries and keys over all heads together, by RMS, as pieces of an attention."""
    return {f"{name}_norm": Norm(f"attn_{name}_norm", eps, over="all") for name in "qk"}


def fused_biases(keys: Keys) -> dict[str, bool]:
    """Whether q, k and v are one tensor, and which biases there are, as pieces of an attention."""
    fused = keys.has("blk.0.attn_qkv.weight")
    bias = keys.has(f"blk.0.attn_{'qkv' if fused else 'q'}.bias")
    return {"fused": fused, "bias": bias, "output_bias": keys.has("blk.0.attn_output.bias")}


def layer_norm(keys: Keys, name: str) -> Norm:
    """A layer norm by that name, with a bias if the file has one; outside of layers too."""
    has_bias = keys.has(f"blk.0.{name}.bias") or keys.has(f"{name}.bias")
    return Norm(name, keys.layer_eps, "layer", bias=has_bias)


def dense(keys: Keys, **pieces: Any) -> Dense:
    """The feed-forward that the usual keys describe; `pieces` are the fields that differ."""
    return Dense(keys.size("feed_forward_length"), **pieces)


def ungated(keys: Keys, activation: Activation) -> Dense:
    """A feed-forward of two matrices, with the biases that the file has."""
    return dense(keys, activation=activation, gated=False, bias=keys.has("blk.0.ffn_up.bias"))


def learned_positions(keys: Keys) -> dict[str, int]:
    """The number of learned positions, and the context that they allow, as pieces of a spec."""
    rows = keys.tensor("position_embd.weight").shape[0]
    return {"learned_positions": rows, "context_length": min(rows, keys.size("context_length"))}


def slopes(n_head: int, most: float = 8.0) -> tuple[float, ...]:
    """How much each head's scores fall with each position of distance (ALiBi): a geometric series.

    The first slope is 2^(−most / heads). Where the number of heads is no power of two, those beyond it take
    every other slope of twice as many.

    >>> slopes(2)
    (0.0625, 0.00390625)
    """
    whole = 1 << int(log2(n_head))
    found = [2 ** (-most * (i + 1) / whole) for i in range(whole)]
    found += [2 ** (-most / 2 * (2 * i + 1) / whole) for i in range(n_head - whole)]
    return tuple(found)


def decoder(keys: Keys, layers: Iterable[Layer], **pieces: Any) -> ModelSpec:
    """A spec from the keys that every architecture has; `pieces` are the fields that differ."""
    fields: dict[str, Any] = {
        "architecture": keys.arch,
        "n_vocab": keys.tensor("token_embd.weight", "is this a language model?").shape[0],
        "n_embd": keys.n_embd,
        "context_length": keys.size("context_length"),
        "layers": tuple(layers),
        "tied": not keys.has("output.weight"),
    }
    if "output_norm" not in pieces:
        fields["output_norm"] = Norm("output_norm", keys.eps)
    return ModelSpec(**(fields | pieces))


def uniform_decoder(keys: Keys, mixer: Mixer, ffn: FeedForward, **pieces: Any) -> ModelSpec:
    """A model whose layers are all the same, with RMS norms before each part."""
    return decoder(keys, (plain_layer(mixer, ffn, keys.eps),) * keys.n_layer, **pieces)


def layer_norm_decoder(
    keys: Keys, mixer: Attention, ffn: FeedForward, *, parallel: bool | None = None, **pieces: Any
) -> ModelSpec:
    """A model whose layers are all the same, with layer norms before each part.

    `parallel`: attention and feed-forward stand side by side; None: they do if a file has one norm for both.
    """
    has_both = keys.has("blk.0.ffn_norm.weight")
    ffn_norm = layer_norm(keys, "ffn_norm") if has_both else None
    parallel = not has_both if parallel is None else parallel
    layer = Layer(mixer, ffn, layer_norm(keys, "attn_norm"), ffn_norm, parallel=parallel)
    return decoder(
        keys, (layer,) * keys.n_layer, **({"output_norm": layer_norm(keys, "output_norm")} | pieces)
    )


def plain_decoder(keys: Keys, mixer: Attention) -> ModelSpec:
    """A model whose layers are all the same attention and gated feed-forward."""
    refuse_experts(keys)
    return uniform_decoder(keys, mixer, dense(keys, bias=keys.has("blk.0.ffn_up.bias")))


def refuse_experts(keys: Keys) -> None:
    """Raise for what a model of plain layers does not have."""
    keys.refuse("expert_count", "a mixture of experts")
    refuse_caps(keys)


def refuse_caps(keys: Keys) -> None:
    """Raise for caps, which few architectures have."""
    keys.refuse("attn_logit_softcapping", "a cap on attention scores")
    keys.refuse("final_logit_softcapping", "a cap on logits")


def remove_rope(mixer: Attention) -> Attention:
    """The same attention without positions."""
    return replace(mixer, rope=None)


# Which layers of a model attend to a window only, as files say it.

PATTERN = "attention.sliding_window_pattern"


def windowed(keys: Keys, period: int) -> list[bool]:
    """For each layer, whether it has a window: all but every `period`-th, unless the file says otherwise."""
    if PATTERN in keys and not isinstance(keys.file.metadata[keys.key(PATTERN)], int):
        return keys.flags(PATTERN)
    period = keys.size(PATTERN, period)
    return [i % period < period - 1 for i in range(keys.n_layer)]


def alternate(keys: Keys, near: Attention, wide: Attention, period: int) -> list[Attention]:
    """The attention of each layer: `near` where it has a window, `wide` elsewhere."""
    return [near if narrow else wide for narrow in windowed(keys, period)]


def add_windows(keys: Keys, spec: ModelSpec) -> ModelSpec:
    """The spec with windows in the layers that the file lists, of an architecture that usually has none.

    Files of llama.cpp's converter do not list any: only Hugging Face folders of these architectures do.
    """
    if PATTERN not in keys:
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

Weights = Literal["softmax", "sigmoid", "chosen", "one by one"]
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
    if "expert_feed_forward_length" in keys:
        return keys.size("expert_feed_forward_length")
    return keys.size("feed_forward_length") // keys.size("expert_used_count", most=MAX_EXPERTS) or 1


def routing(keys: Keys, weights: Weights = "softmax", **pieces: Any) -> Routing:
    """The choice of experts that the usual keys describe; `pieces` are the fields that differ."""
    n_expert = keys.size("expert_count", most=MAX_EXPERTS)
    n_used = keys.size("expert_used_count", most=n_expert)
    n_group = keys.count("expert_group_count", 1, most=n_expert) or 1
    n_group_used = keys.count("expert_group_used_count", 1, most=n_group) or 1
    if n_expert % n_group or n_used > n_group_used * (n_expert // n_group):
        groups = f"{n_group_used} of {n_group} equal groups"
        raise keys.error(
            "expert_group_count", f"{n_used} of {n_expert} experts cannot be taken from {groups}"
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
        known = "1 (softmax), 2 (sigmoid) and 3 (softmax of the chosen)"
        raise keys.error("expert_gating_func", f"{code}, but {known} are supported")
    return GATING.get(code, default)


def shared_expert(n_ff: int) -> Dense | None:
    """An expert that every token has; none of width 0."""
    return Dense(n_ff, suffix="_shexp") if n_ff else None


def shared_experts(keys: Keys) -> Dense | None:
    """So many experts that every token has, side by side as one."""
    return shared_expert(keys.count("expert_shared_count", most=MAX_EXPERTS) * expert_width(keys))


def corrected(keys: Keys) -> bool:
    """Whether the routers have a bias for the choice."""
    return any(keys.has(f"blk.{i}.exp_probs_b{end}") for i in range(keys.n_layer) for end in ("", ".bias"))


def routed(keys: Keys, ffn: Experts) -> list[FeedForward]:
    """The feed-forward of each layer: layers without a router are dense."""
    has_router = [keys.has(f"blk.{i}.ffn_gate_inp.weight") for i in range(keys.n_layer)]
    plain = ffn if all(has_router) else dense(keys)
    return [ffn if routed else plain for routed in has_router]


def routed_decoder(keys: Keys, mixers: Iterable[Mixer], ffn: Experts) -> ModelSpec:
    """A model of layers with RMS norms before each part, with these experts where there is a router."""
    layers = zip(mixers, routed(keys, ffn), strict=True)
    return decoder(keys, (plain_layer(mixer, ffn, keys.eps) for mixer, ffn in layers))


def dense_first(keys: Keys) -> int:
    """How many layers at the start have a dense feed-forward."""
    return keys.count("leading_dense_block_count", most=keys.n_layer)
