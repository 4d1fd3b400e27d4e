"""RWKV 7: time mixing instead of attention, channel mixing as the feed-forward; ARWKV 7 has a gated one."""

from __future__ import annotations

from dataclasses import replace

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.spec import Dense, Layer, ModelSpec, Norm, TimeMix

MAX_HEAD_SIZE = 1 << 10  # a state is the square of it
HEAD_EPSILON = 64e-5  # of the norms of heads, where files do not say it


def read(keys: Keys) -> ModelSpec:
    """The spec of an rwkv7 file."""
    _check_shifts(keys, 2)
    mixing = Dense(keys.size("feed_forward_length"), "relu2", gated=False, shift=keys.n_embd)
    norms = common.layer_norm(keys, "attn_norm"), common.layer_norm(keys, "attn_norm_2")
    layers = (Layer(mixer, mixing, *norms) for mixer in time_mixers(keys))
    return common.decoder(
        keys,
        layers,
        embedding_norm=common.layer_norm(keys, "token_embd_norm"),
        output_norm=common.layer_norm(keys, "output_norm"),
    )


def read_attention_free(keys: Keys) -> ModelSpec:
    """The spec of an arwkv7 file: a Qwen 2 whose attention is time mixing."""
    _check_shifts(keys, 1)
    norms = Norm("attn_norm", keys.eps), Norm("ffn_norm", keys.eps)
    gated, normed = (keys.has(f"blk.0.time_mix_{name}.weight") for name in ("g1", "ln"))
    mixers = time_mixers(keys, gated, normed)
    return common.decoder(keys, (Layer(mixer, common.dense(keys), *norms) for mixer in mixers))


def time_mixers(keys: Keys, gated: bool = True, normed: bool = True) -> list[TimeMix]:
    """The time mixing of each layer."""
    size = keys.size("wkv.head_size", most=MAX_HEAD_SIZE)
    if keys.n_embd % size:
        raise keys.error("wkv.head_size", f"{keys.n_embd} numbers of a row cannot be divided by {size}")
    eps = keys.number("attention.group_norm_epsilon", HEAD_EPSILON, least=0.0, most=1.0)
    norm = Norm("time_mix_ln", eps, "layer", bias=True)
    later = TimeMix(
        n_head=keys.n_embd // size,
        head_size=size,
        decay_rank=keys.size("attention.decay_lora_rank"),
        rate_rank=keys.size("attention.iclr_lora_rank"),
        value_rank=keys.size("attention.value_residual_mix_lora_rank"),
        gate_rank=keys.size("attention.gate_lora_rank") if gated else 0,
        norm=norm if normed else None,
    )
    return [replace(later, value_rank=0), *[later] * (keys.n_layer - 1)]


def _check_shifts(keys: Keys, shifts: int) -> None:
    """Check how many parts of a layer read the row before."""
    if keys.count("token_shift_count", shifts) != shifts:
        raise keys.error("token_shift_count", f"only {shifts} is possible in {keys.arch}")
