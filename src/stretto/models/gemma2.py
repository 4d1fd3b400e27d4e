"""Gemma 2: caps on scores and logits, a window in every other layer, norms on both sides."""

from __future__ import annotations

from dataclasses import replace

from stretto.models.common import Keys, attention, decoder, head_size, windowed
from stretto.models.rope import read_rope
from stretto.models.spec import Dense, ModelSpec, sandwich
from stretto.weights.gguf import GGUF

PERIOD = 2  # every second layer is global, unless the file says otherwise
WINDOW = 4096  # values for files that do not have them
SCORE_CAP, LOGIT_CAP = 50.0, 30.0
LAYERS_27B = 46  # the one size that scales attention by the embedding's share of a head


def read(file: GGUF) -> ModelSpec:
    """The spec of a gemma2 file."""
    keys = Keys(file, "gemma2")
    keys.refuse("expert_count", "a mixture of experts")
    size = head_size(file, "gemma2")
    share = keys.n_embd / keys.size("attention.head_count")
    wide = attention(
        keys,
        read_rope(file, "gemma2", size, "halves"),
        scale=(share if keys.n_layer == LAYERS_27B else size) ** -0.5,
        cap=keys.number("attn_logit_softcapping", SCORE_CAP, least=0.0),
    )
    near = replace(wide, window=keys.size("attention.sliding_window", WINDOW))
    ffn, eps = Dense(keys.size("feed_forward_length"), "gelu"), keys.eps
    mixers = (near if narrow else wide for narrow in windowed(keys, PERIOD))
    return decoder(
        keys,
        (sandwich(mixer, ffn, eps) for mixer in mixers),
        embedding_scale=keys.n_embd**0.5,
        logit_cap=keys.number("final_logit_softcapping", LOGIT_CAP, least=0.0),
    )
