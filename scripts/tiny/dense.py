"""Tiny models whose layers are attention and dense feed-forwards."""

from __future__ import annotations

import numpy as np
from transformers import SmolLM3Config, SmolLM3ForCausalLM

from tiny.base import CONTEXT, VOCABULARY, Case, Made, adjacent, arrays, randomize, run

HIDDEN, FEED_FORWARD = 32, 48

NAMES = {  # of a layer's tensors, in transformers and in GGUF
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str, names: dict[str, str]) -> str:
    """A tensor's name in the file."""
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{names[module]}.{kind}"


def smollm3(rng: np.random.Generator) -> Made:
    """SmolLM3: a llama whose every fourth layer has no rope."""
    config = SmolLM3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=2.0**-9,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        no_rope_layer_interval=4,
        use_sliding_window=False,
        pad_token_id=0,
        attn_implementation="eager",
    )
    model = SmolLM3ForCausalLM(config).eval().float()
    randomize(model, rng)
    tensors = {}
    for name, array in arrays(model).items():
        if "q_proj" in name or "k_proj" in name:
            array = adjacent(array, HIDDEN // 4)
        tensors[gguf_name(name, NAMES)] = array
    metadata = {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": 5,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 2.0**-9,
        "rope.dimension_count": HIDDEN // 4,
        "rope.freq_base": 5000.0,
    }
    return Made("smollm3", metadata, tensors, run(model))


CASES: dict[str, Case] = {"smollm3": smollm3}
