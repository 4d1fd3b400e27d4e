"""Gemma 3n: four streams, embeddings for each layer, low-rank residuals, sparse gates, shared K and V."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stretto.errors import ModelError
from stretto.models.common import Keys, attention, decoder, head_size, qk_norms, windowed
from stretto.models.rope import plain_frequencies, read_base, read_rope
from stretto.models.spec import (
    Attention,
    Dense,
    LayerInput,
    LowRank,
    ModelSpec,
    Norm,
    PerLayer,
    Rope,
    Streams,
    sandwich,
)
from stretto.weights.gguf import GGUF

ARCH = "gemma3n"
PERIOD = 5  # every fifth layer is global, unless the file says otherwise
LOCAL_BASE = 10_000.0  # of the rope in windowed layers
LOGIT_CAP = 30.0
MAX_STREAMS = 16


def read(file: GGUF) -> ModelSpec:
    """The spec of a gemma3n file."""
    keys = Keys(file, ARCH)
    keys.refuse("expert_count", "a mixture of experts")
    keys.refuse("altup.active_idx", "a layer that computes another stream than the first")
    eps, size = keys.eps, keys.size("embedding_length_per_layer_input")
    streams = Streams(keys.size("altup.num_inputs", most=MAX_STREAMS), Norm("altup_router_norm", eps))
    low_rank = LowRank(_rank(file), Norm("laurel_post_norm", eps))
    layers = (
        replace(
            sandwich(mixer, Dense(n_ff, "gelu", cutoff=cutoff), eps),
            low_rank=low_rank,
            input=LayerInput(size, Norm("post_norm", eps)),
            streams=streams,
        )
        for mixer, n_ff, cutoff in zip(
            _mixers(keys), keys.sizes("feed_forward_length"), _cutoffs(keys), strict=True
        )
    )
    return decoder(
        keys,
        layers,
        embedding_scale=keys.n_embd**0.5,
        logit_cap=keys.number("final_logit_softcapping", LOGIT_CAP, least=0.0),
        per_layer=PerLayer(size, Norm("per_layer_proj_norm", eps)),
    )


def _mixers(keys: Keys) -> list[Attention]:
    """The attention of each layer; the last ones read K and V of the last layer of their kind before them."""
    file, size, eps = keys.file, head_size(keys.file, ARCH), keys.eps
    norms = qk_norms(eps) | {"v_norm": Norm("", eps, weight=False)}
    wide = attention(keys, read_rope(file, ARCH, size, "halves"), scale=1.0, **norms)
    base = read_base(file, f"{ARCH}.rope.freq_base_swa", LOCAL_BASE)
    local = Rope(tuple(plain_frequencies(base, size).tolist()), "halves")
    near = replace(wide, rope=local, window=keys.size("attention.sliding_window"))
    narrow = windowed(keys, PERIOD)
    n_own = keys.n_layer - keys.count("attention.shared_kv_layers")
    found: list[Attention] = []
    for i, is_narrow in enumerate(narrow):
        mixer = near if is_narrow else wide
        if i >= n_own:
            sources = [j for j in range(max(n_own, 0)) if narrow[j] == is_narrow]
            if not sources:
                raise ModelError(
                    f"layer {i} has no layer of its kind to share K and V with",
                    path=file.path,
                    field=f"{ARCH}.attention.shared_kv_layers",
                )
            mixer = replace(mixer, shared=sources[-1])
        found.append(mixer)
    return found


def _cutoffs(keys: Keys) -> list[float | None]:
    """For each layer, how many standard deviations a gate must be above the mean; −∞ for layers without."""
    key = f"{ARCH}.activation_sparsity_scale"
    if key not in keys.file.metadata:
        return [None] * keys.n_layer
    values = np.asarray(keys.file.metadata.array(key), np.float64)
    if values.shape != (keys.n_layer,) or np.isnan(values).any() or (values > 100).any():
        raise ModelError(
            f"{keys.n_layer} numbers are needed, one for each layer", path=keys.file.path, field=key
        )
    return [None if value == -np.inf else float(value) for value in values]


def _rank(file: GGUF) -> int:
    """The rank of the low-rank residuals, which no key tells."""
    name = "blk.0.laurel_l.weight"
    if name not in file.tensors:
        raise ModelError("the tensor is missing; is the file complete?", path=file.path, field=name)
    return file.tensors[name].shape[0]
