"""Qwen 3 VL: Qwen 3 with a rope for rows and columns of images, and features of them in early layers."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, attention, plain_decoder, qk_norms, read_rope, uniform_decoder
from stretto.models.qwen3moe import read_experts
from stretto.models.qwen35 import read_axes
from stretto.models.spec import Attention, ModelSpec


def read(keys: Keys) -> ModelSpec:
    """The spec of a qwen3vl file."""
    return _deepen(keys, plain_decoder(keys, _attends(keys)))


def read_moe(keys: Keys) -> ModelSpec:
    """The spec of a qwen3vlmoe file."""
    return _deepen(keys, uniform_decoder(keys, _attends(keys), read_experts(keys)))


def _attends(keys: Keys) -> Attention:
    rope = read_rope(keys, "halves")
    axes = read_axes(keys, len(rope.frequencies))
    return attention(keys, replace(rope, axes=axes), **qk_norms(keys.eps))


def _deepen(keys: Keys, spec: ModelSpec) -> ModelSpec:
    return replace(spec, deepstack=keys.count("n_deepstack_layers", 0, most=keys.n_layer))
