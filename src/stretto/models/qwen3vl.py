"""Qwen 3 VL: Qwen 3 with a rope for rows and columns of images, and features of them in early layers."""

from __future__ import annotations

from dataclasses import replace

from stretto.errors import ModelError
from stretto.models.common import (
    Keys,
    attention,
    decoder,
    head_size,
    mixture,
    plain_decoder,
    qk_norms,
    refuse_caps,
    routing,
)
from stretto.models.qwen35 import interleaved
from stretto.models.rope import read_rope
from stretto.models.spec import Attention, ModelSpec, plain_layer
from stretto.weights.gguf import GGUF


def read(file: GGUF) -> ModelSpec:
    """The spec of a qwen3vl file."""
    keys = Keys(file, "qwen3vl")
    return replace(plain_decoder(keys, _attends(keys)), deepstack=_deepstack(keys))


def read_moe(file: GGUF) -> ModelSpec:
    """The spec of a qwen3vlmoe file."""
    keys = Keys(file, "qwen3vlmoe")
    refuse_caps(keys)
    ffn = mixture(keys, routing(keys, normalize=keys.flag("expert_weights_norm", True)))
    spec = decoder(keys, (plain_layer(_attends(keys), ffn, keys.eps),) * keys.n_layer)
    return replace(spec, deepstack=_deepstack(keys))


def _attends(keys: Keys) -> Attention:
    rope = read_rope(keys.file, keys.arch, head_size(keys.file, keys.arch), "halves")
    axes = _axes(keys, len(rope.frequencies))
    return attention(keys, replace(rope, axes=axes), **qk_norms(keys.eps))


def _deepstack(keys: Keys) -> int:
    return keys.count("n_deepstack_layers", 0, most=keys.n_layer)


def _axes(keys: Keys, pairs: int) -> tuple[int, ...]:
    key = f"{keys.arch}.rope.dimension_sections"
    sections = keys.file.metadata.array(key).tolist()
    if not 3 <= len(sections) <= 4 or not all(type(n) is int and 0 <= n <= pairs for n in sections):
        raise ModelError(
            f"{sections}; counts of at most {pairs} pairs for time, row and column are needed",
            path=keys.file.path,
            field=key,
        )
    return interleaved(sections, pairs)
