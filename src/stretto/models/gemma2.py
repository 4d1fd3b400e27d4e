"""Gemma 2: caps on scores and logits, a window in every other layer, norms on both sides."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, alternate, attention, decoder, dense
from stretto.models.spec import ModelSpec, sandwich

PERIOD = 2  # every second layer is global, unless the file says otherwise
WINDOW = 4096  # values for files that do not have them
SCORE_CAP, LOGIT_CAP = 50.0, 30.0
LAYERS_27B = 46  # the one size that scales attention by the embedding's share of a head


def read(keys: Keys) -> ModelSpec:
    """The spec of a gemma2 file."""
    keys.refuse("expert_count", "a mixture of experts")
    wide = attention(keys, "halves", cap=keys.number("attn_logit_softcapping", SCORE_CAP, least=0.0))
    if keys.n_layer == LAYERS_27B:
        wide = replace(wide, scale=(keys.n_embd / wide.n_head) ** -0.5)
    near = replace(wide, window=keys.size("attention.sliding_window", WINDOW))
    ffn, eps = dense(keys, activation="gelu"), keys.eps
    return decoder(
        keys,
        (sandwich(mixer, ffn, eps) for mixer in alternate(keys, near, wide, PERIOD)),
        embedding_scale=keys.n_embd**0.5,
        logit_cap=keys.number("final_logit_softcapping", LOGIT_CAP, least=0.0),
    )
