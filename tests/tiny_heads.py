"""Random EAGLE-3 heads for the tiny models, as Hugging Face folders and as files of llama.cpp's converter.

And what tests of all heads that draft open tiny models with.
"""

import json

import numpy as np

from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.weights.writer import write_gguf

CELLS = 256
PROMPT = [1, 2, 3, 4, 5, 6, 7]
OPTIONS = {"max_tokens": 40, "ignore_eos": True}
N_FF, HEADS, KV_HEADS, EPS = 48, 4, 2, 1e-5


def native(file, spec, n_cells):
    return NativeBackend(file, spec, n_cells, 1, repack=False, n_slots=32)


def reference(file, spec, n_cells):
    return ReferenceBackend(file, spec, n_cells, 32)


def head_tensors(spec, n_draft=None, n=None, seed=5, count=3):
    """The tensors of a head by the names of a folder; with `n_draft` it knows so many tokens only."""
    rng = np.random.default_rng(seed)
    n = n or spec.n_embd

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm():
        return rng.uniform(0.8, 1.2, n).astype(np.float32)

    size = n // HEADS
    tensors = {
        "fc.weight": matrix(n, count * spec.n_embd),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.self_attn.q_proj.weight": matrix(HEADS * size, 2 * n),
        "midlayer.self_attn.k_proj.weight": matrix(KV_HEADS * size, 2 * n),
        "midlayer.self_attn.v_proj.weight": matrix(KV_HEADS * size, 2 * n),
        "midlayer.self_attn.o_proj.weight": matrix(n, HEADS * size),
        "midlayer.post_attention_layernorm.weight": norm(),
        "midlayer.mlp.gate_proj.weight": matrix(N_FF, n),
        "midlayer.mlp.up_proj.weight": matrix(N_FF, n),
        "midlayer.mlp.down_proj.weight": matrix(n, N_FF),
        "norm.weight": norm(),
        "lm_head.weight": 4 * matrix(n_draft or spec.n_vocab, n),
    }
    if n != spec.n_embd:
        tensors["embed_tokens.weight"] = matrix(spec.n_vocab, n)
    if n_draft:
        chosen = np.sort(rng.permutation(spec.n_vocab)[:n_draft])
        tensors["d2t"] = chosen - np.arange(n_draft)
        tensors["t2d"] = np.isin(np.arange(spec.n_vocab), chosen)
    return tensors


def head_config(spec, tensors, **settings):
    """The configuration of a folder."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": len(tensors["norm.weight"]),
        "intermediate_size": N_FF,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128,
        "rms_norm_eps": EPS,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "vocab_size": spec.n_vocab,
        "draft_vocab_size": len(tensors["lm_head.weight"]),
        "eagle_aux_hidden_state_layer_ids": [0, 1, spec.n_layer],
    } | settings


def write_head(folder, tensors, config):
    """A folder with a head."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    kinds, head, data = {"float32": "F32", "int64": "I64", "bool": "BOOL"}, {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        head[name] = {
            "dtype": kinds[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


GGUF_NAMES = {
    "fc": "fc",
    "midlayer.input_layernorm": "blk.0.attn_norm",
    "midlayer.hidden_norm": "blk.0.attn_norm_2",
    "midlayer.self_attn.q_proj": "blk.0.attn_q",
    "midlayer.self_attn.k_proj": "blk.0.attn_k",
    "midlayer.self_attn.v_proj": "blk.0.attn_v",
    "midlayer.self_attn.o_proj": "blk.0.attn_output",
    "midlayer.post_attention_layernorm": "blk.0.ffn_norm",
    "midlayer.mlp.gate_proj": "blk.0.ffn_gate",
    "midlayer.mlp.up_proj": "blk.0.ffn_up",
    "midlayer.mlp.down_proj": "blk.0.ffn_down",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
}


def write_head_file(path, spec, tensors, layers, **keys):
    """The same head as llama.cpp's converter writes it: tokens as such, pairs of the rope side by side."""
    n = len(tensors["norm.weight"])
    metadata = {
        "general.architecture": "eagle3",
        "eagle3.block_count": 1,
        "eagle3.context_length": 128,
        "eagle3.embedding_length": n,
        "eagle3.feed_forward_length": N_FF,
        "eagle3.attention.head_count": HEADS,
        "eagle3.attention.head_count_kv": KV_HEADS,
        "eagle3.attention.layer_norm_rms_epsilon": EPS,
        "eagle3.rope.freq_base": 10_000.0,
        "eagle3.rope.dimension_count": n // HEADS,
        "eagle3.vocab_size": spec.n_vocab,
        "eagle3.extract_layers": layers,
        "eagle3.target_hidden_size": spec.n_embd,
        "eagle3.norm_before_residual": False,
    }
    stored = {}
    for name, array in tensors.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            halves = array.reshape(-1, 2, n // HEADS // 2, array.shape[1])
            array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        if name.endswith(".weight"):
            stored[f"{GGUF_NAMES[name.removesuffix('.weight')]}.weight"] = array
    if "d2t" in tensors:
        stored["d2t"] = tensors["d2t"] + np.arange(len(tensors["d2t"]))
    write_gguf(path, metadata | keys, stored)
    return path
