"""Nomic's second encoder in PyTorch, which transformers has no class for: experts in every other layer.

Modules have the names of a GGUF file's tensors.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers import BertConfig

N_EXPERT, N_USED, EVERY, ROPE_BASE = 4, 2, 2, 900.0


def rotated(x: Tensor) -> Tensor:
    """x [n, heads, size] with pairs (i, i + size / 2) rotated by their positions."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x))[:, None] * ROPE_BASE ** (-torch.arange(half) / half)[None]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)


class Layer(nn.Module):
    """Attention and a feed-forward, plain or of experts; the sums are normalised."""

    def __init__(self, config: BertConfig, has_experts: bool) -> None:
        super().__init__()
        n, wide, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.n_head, self.has_experts = config.num_attention_heads, has_experts
        self.attn_qkv, self.attn_output = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.attn_output_norm, self.layer_output_norm = (nn.LayerNorm(n, eps=eps) for _ in range(2))
        if has_experts:
            self.ffn_gate_inp = nn.Linear(n, N_EXPERT, bias=False)
            self.ffn_up_exps = nn.ParameterDict({"weight": torch.zeros(N_EXPERT, wide, n)})
            self.ffn_down_exps = nn.ParameterDict({"weight": torch.zeros(N_EXPERT, n, wide)})
        else:
            self.ffn_up, self.ffn_down = nn.Linear(n, wide), nn.Linear(wide, n)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, hidden] → the same."""
        n, width = x.shape
        q, k, v = (part.view(n, self.n_head, -1) for part in self.attn_qkv(x).chunk(3, -1))
        q, k, v = (part.transpose(0, 1) for part in (rotated(q), rotated(k), v))
        scores = q @ k.transpose(1, 2) / (width // self.n_head) ** 0.5
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, width)
        x = self.attn_output_norm(x + self.attn_output(mixed))
        out: Tensor = self.layer_output_norm(x + (self.experts(x) if self.has_experts else self.dense(x)))
        return out

    def dense(self, x: Tensor) -> Tensor:
        """The plain feed-forward."""
        out: Tensor = self.ffn_down(nn.functional.gelu(self.ffn_up(x)))
        return out

    def experts(self, x: Tensor) -> Tensor:
        """The best experts of each row; their weights are of a softmax over all, and do not add up to one."""
        weights, chosen = self.ffn_gate_inp(x).softmax(-1).topk(N_USED, -1)
        rows = []
        for row, numbers, shares in zip(x, chosen, weights, strict=True):
            ups, downs = self.ffn_up_exps["weight"][numbers], self.ffn_down_exps["weight"][numbers]
            made = (downs @ nn.functional.gelu(ups @ row)[..., None])[..., 0]
            rows.append((shares[:, None] * made).sum(0))
        return torch.stack(rows)


class NomicBertMoe(nn.Module):
    """The encoder; it is called as transformers' are."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(config.vocab_size, config.hidden_size)
        self.token_types = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.token_embd_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        layers = (Layer(config, i % EVERY == 1) for i in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(layers)

    def forward(self, tokens: Tensor, token_type_ids: Tensor | None = None) -> SimpleNamespace:
        """tokens [1, n] → an object with last_hidden_state [1, n, hidden]."""
        types = torch.zeros_like(tokens) if token_type_ids is None else token_type_ids
        x = self.token_embd_norm(self.token_embd(tokens[0]) + self.token_types(types[0]))
        for layer in self.layers:
            x = layer(x)
        return SimpleNamespace(last_hidden_state=x[None])
