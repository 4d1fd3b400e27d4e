"""A llama of two layers whose rows are whole blocks of 256, with random weights."""

import numpy as np

N_EMBD, N_FF, VOCABULARY = 256, 512, 96


def metadata():
    return {
        "general.architecture": "llama",
        "general.file_type": 1,
        "general.alignment": 64,
        "llama.block_count": 2,
        "llama.context_length": 64,
        "llama.embedding_length": N_EMBD,
        "llama.feed_forward_length": N_FF,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": N_EMBD // 4,
    }


def tensors(dtype=np.float16, seed=0):
    rng = np.random.default_rng(seed)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) * 0.1).astype(dtype)

    made = {"token_embd.weight": matrix(VOCABULARY, N_EMBD)}
    for i in range(2):
        shapes = {"attn_q": (N_EMBD, N_EMBD), "attn_k": (128, N_EMBD), "attn_v": (128, N_EMBD)}
        shapes |= {"attn_output": (N_EMBD, N_EMBD), "ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD)}
        shapes["ffn_down"] = (N_EMBD, N_FF)
        made |= {f"blk.{i}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        made |= {f"blk.{i}.{name}.weight": np.ones(N_EMBD, np.float32) for name in ("attn_norm", "ffn_norm")}
    return made | {"output_norm.weight": np.ones(N_EMBD, np.float32)}
