"""Gemma 3n: four streams, embeddings for each layer, low-rank residuals, sparse gates, shared K and V."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stretto.models import common
from stretto.models.common import Keys
from stretto.models.parts import LayerInput, LowRank, PerLayer, Streams
from stretto.models.spec import Attention, Dense, ModelSpec, Norm, sandwich

PERIOD = 5  # every fifth layer is global, unless the file says otherwise
LOGIT_CAP = 30.0
MAX_STREAMS = 16


def read(keys: Keys) -> ModelSpec:
    """The spec of a gemma3n file."""
    keys.refuse("expert_count", "a mixture of experts")
    keys.refuse("altup.active_idx", "a layer that computes another stream than the first")
    eps, size = keys.eps, keys.size("embedding_length_per_layer_input")
    streams = Streams(keys.size("altup.num_inputs", most=MAX_STREAMS), Norm("altup_router_norm", eps))
    # No key tells the rank of the low-rank residuals.
    low_rank = LowRank(keys.tensor("blk.0.laurel_l.weight").shape[0], Norm("laurel_post_norm", eps))
    given = LayerInput(size, Norm("post_norm", eps))
    parts = zip(_mixers(keys), keys.sizes("feed_forward_length"), _cutoffs(keys), strict=True)
    plain = (sandwich(mixer, Dense(n_ff, "gelu", cutoff=cutoff), eps) for mixer, n_ff, cutoff in parts)
    return common.decoder(
        keys,
        (replace(layer, low_rank=low_rank, input=given, streams=streams) for layer in plain),
        embedding_scale=keys.n_embd**0.5,
        logit_cap=keys.number("final_logit_softcapping", LOGIT_CAP, least=0.0),
        per_layer=PerLayer(size, Norm("per_layer_proj_norm", eps)),
    )


def _mixers(keys: Keys) -> list[Attention]:
    """The attention of each layer; the last ones read K and V of the last layer of their kind before them."""
    norms = common.qk_norms(keys.eps) | {"v_norm": Norm("", keys.eps, weight=False)}
    wide = common.attention(keys, "halves", scale=1.0, **norms)
    window = keys.size("attention.sliding_window")
    near = replace(wide, rope=common.read_local_rope(keys), window=window)
    found = common.alternate(keys, near, wide, PERIOD)
    n_own = keys.n_layer - keys.count("attention.shared_kv_layers")
    last = {mixer.window: i for i, mixer in enumerate(found[: max(n_own, 0)])}
    for i in range(max(n_own, 0), keys.n_layer):
        if found[i].window not in last:
            reason = f"layer {i} has no layer of its kind to share K and V with"
            raise keys.error("attention.shared_kv_layers", reason)
        found[i] = replace(found[i], shared=last[found[i].window])
    return found


def _cutoffs(keys: Keys) -> list[float | None]:
    """For each layer, how many standard deviations a gate must be above the mean; −∞ for layers without."""
    name = "activation_sparsity_scale"
    if name not in keys:
        return [None] * keys.n_layer
    values = np.asarray(keys.file.metadata.array(keys.key(name)), np.float64)
    if values.shape != (keys.n_layer,) or np.isnan(values).any() or (values > 100).any():
        raise keys.error(name, f"{keys.n_layer} numbers are needed, one for each layer")
    return [None if value == -np.inf else float(value) for value in values]
