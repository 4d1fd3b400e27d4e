"""DeepSeek V3.2 and GLM 5: DeepSeek V3 whose rows attend to the cells that an indexer chooses (DSA)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from stretto.models import common
from stretto.models.common import MAX_HEAD_SIZE, Keys
from stretto.models.deepseek2 import latent, with_experts
from stretto.models.spec import Indexer, Latent, ModelSpec, Norm

TYPES = "attention.indexer.types"
# Files of GLM 5.2 from before that key: after three layers every fourth one chooses. It has a longer context.
CONTEXT_OF_5_2 = 1 << 20


def read(keys: Keys) -> ModelSpec:
    """The spec of a deepseek32 file."""
    return with_experts(keys, [_indexed(keys, "halves")] * keys.n_layer)


def read_glm(keys: Keys) -> ModelSpec:
    """The spec of a glm-dsa file: some layers take the choice of one before them."""
    mixer, last, mixers = _indexed(keys, "adjacent"), 0, []
    for i, chooses in enumerate(_choosing(keys)):
        last = i if chooses else last
        mixers.append(mixer if chooses else replace(mixer, indexer=None, chosen_by=last))
    return with_experts(keys, mixers)


def _choosing(keys: Keys) -> list[bool]:
    """Whether each layer chooses cells itself."""
    n = keys.n_layer
    if TYPES not in keys:
        if keys.size("context_length") < CONTEXT_OF_5_2:
            return [True] * n
        return [max(i - 2, 0) % 4 == 0 for i in range(n)]
    values = [bool(value) for value in keys.file.metadata.array(keys.key(TYPES)).tolist()]
    if len(values) not in (n, keys.n_block):
        raise keys.error(TYPES, f"{len(values)} values for {n} layers")
    if not values[0]:
        raise keys.error(TYPES, "the first layer has none before it whose choice it could take")
    return values[:n]


def _indexed(keys: Keys, pairs: Literal["adjacent", "halves"]) -> Latent:
    """Attention to chosen cells; `pairs`: of the indexer's rope."""
    mixer = latent(keys)
    if mixer.rope is None or not mixer.q_rank:
        raise keys.error("attention.q_lora_rank", "an indexer needs compressed queries")
    size = keys.size("attention.indexer.key_length", most=MAX_HEAD_SIZE)
    if size < mixer.rope_size:
        raise keys.error("attention.indexer.key_length", f"{size}, but {mixer.rope_size} numbers are rotated")
    indexer = Indexer(
        n_head=keys.size("attention.indexer.head_count", most=common.MAX_HEADS),
        head_size=size,
        top_k=keys.size("attention.indexer.top_k"),
        rope=replace(mixer.rope, pairs=pairs),
        k_norm=Norm("indexer.k_norm", 1e-6, "layer", bias=True),
    )
    return replace(mixer, indexer=indexer)
