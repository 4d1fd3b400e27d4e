"""Tiny random models that llama.cpp reads, with a byte tokenizer; Stretto does not know Deci."""

import numpy as np

from stretto.text.bpe import ALPHABET
from stretto.weights.writer import write_gguf

N_EMBD, N_LAYER, N_FF, N_HEAD = 64, 2, 96, 4
TOKENS = [*ALPHABET, "th", "<|start|>", "<|end|>"]
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": np.array([1] * 257 + [3] * 2, np.int32),
    "tokenizer.ggml.merges": ["t h"],
    "tokenizer.ggml.eos_token_id": 258,
    "tokenizer.ggml.bos_token_id": 257,
}


class Weights(dict):
    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def matrix(self, name, *shape):
        self[name] = (self.rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def ones(self, name, n):
        self[name] = np.ones(n, np.float32)


CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def deci(path):
    """A llama by another name."""
    return _llama(path, "deci")


def llama(path):
    """The one that is none of the strange: it can be loaded everywhere, and chats."""
    return _llama(path, "llama", {"tokenizer.chat_template": CHAT_TEMPLATE})


def _llama(path, architecture, others=()):
    weights = Weights()
    weights.matrix("token_embd.weight", len(TOKENS), N_EMBD)
    weights.matrix("output.weight", len(TOKENS), N_EMBD)
    weights.ones("output_norm.weight", N_EMBD)
    for i in range(N_LAYER):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights.matrix(f"blk.{i}.{name}.weight", N_EMBD, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_up.weight", N_FF, N_EMBD)
        weights.matrix(f"blk.{i}.ffn_down.weight", N_EMBD, N_FF)
        for name in ("attn_norm", "ffn_norm"):
            weights.ones(f"blk.{i}.{name}.weight", N_EMBD)
    sizes = {
        "context_length": 512,
        "embedding_length": N_EMBD,
        "block_count": N_LAYER,
        "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD,
        "attention.head_count_kv": N_HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": N_EMBD // N_HEAD,
    }
    return _write(path, architecture, sizes, weights, others)


def mamba(path):
    """A recurrent model: it has a state and no K and V."""
    inner, state, rank, kernel = 2 * N_EMBD, 8, 4, 4
    weights = Weights()
    weights.matrix("token_embd.weight", len(TOKENS), N_EMBD)
    weights.ones("output_norm.weight", N_EMBD)
    for i in range(N_LAYER):
        part = f"blk.{i}"
        weights.ones(f"{part}.attn_norm.weight", N_EMBD)
        weights.matrix(f"{part}.ssm_in.weight", 2 * inner, N_EMBD)
        weights.matrix(f"{part}.ssm_conv1d.weight", inner, kernel)
        weights.ones(f"{part}.ssm_conv1d.bias", inner)
        weights.matrix(f"{part}.ssm_x.weight", rank + 2 * state, inner)
        weights.matrix(f"{part}.ssm_dt.weight", inner, rank)
        weights.ones(f"{part}.ssm_dt.bias", inner)
        weights[f"{part}.ssm_a"] = -np.ones((inner, state), np.float32)
        weights.ones(f"{part}.ssm_d", inner)
        weights.matrix(f"{part}.ssm_out.weight", N_EMBD, inner)
    sizes = {
        "context_length": 512,
        "embedding_length": N_EMBD,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": N_LAYER,
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": rank,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    return _write(path, "mamba", sizes, weights)


def _write(path, architecture, sizes, weights, others=()):
    named = {f"{architecture}.{key}": value for key, value in sizes.items()}
    write_gguf(
        path, {"general.architecture": architecture, **named, **TOKENIZER, **dict(others)}, dict(weights)
    )
    return path
