"""Settings that configurations leave out, where the classes of transformers have them as defaults.

The configuration of a language model inside that of a larger model holds only what differs from these.
"""

from __future__ import annotations

from typing import Any

_GEMMA: dict[str, Any] = {
    "num_attention_heads": 8,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
GEMMA3 = {
    **_GEMMA,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
GEMMA3N = {
    **_GEMMA,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "sliding_window": 512,
    "num_kv_shared_layers": 15,
    "hidden_size_per_layer_input": 256,
}
GEMMA4 = {
    **_GEMMA,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
}
QWEN35: dict[str, Any] = {
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32_768,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
WINDOW = {"sliding_window": 4096}  # of Mistral, and of Qwen with use_sliding_window
