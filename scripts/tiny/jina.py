"""Jina's second BERT in PyTorch, which transformers has no class for: ALiBi in both directions, GeGLU.

Modules have the names of a GGUF file's tensors.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers import BertConfig


class Layer(nn.Module):
    """Attention whose scores fall with the distance, and a gated feed-forward; the sums are normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        n, wide, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.n_head = config.num_attention_heads
        self.attn_q, self.attn_k, self.attn_v, self.attn_output = (nn.Linear(n, n) for _ in range(4))
        self.attn_output_norm, self.layer_output_norm = (nn.LayerNorm(n, eps=eps) for _ in range(2))
        self.ffn_gate, self.ffn_up = (nn.Linear(n, wide, bias=False) for _ in range(2))
        self.ffn_down = nn.Linear(wide, n)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, hidden] → the same."""
        n, width = x.shape
        q, k, v = (
            part(x).view(n, self.n_head, -1).transpose(0, 1)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        positions = torch.arange(n)
        distance = (positions[:, None] - positions[None, :]).abs()
        # Eight slopes of 2^-1 … 2^-8 belong to eight heads; six heads have those of four, and two of eight.
        slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
        scores = q @ k.transpose(1, 2) / (width // self.n_head) ** 0.5 - slopes[:, None, None] * distance
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, width)
        x = self.attn_output_norm(x + self.attn_output(mixed))
        inner = nn.functional.gelu(self.ffn_gate(x)) * self.ffn_up(x)
        out: Tensor = self.layer_output_norm(x + self.ffn_down(inner))
        return out


class JinaBertV2(nn.Module):
    """The encoder; it is called as transformers' are."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(config.vocab_size, config.hidden_size)
        self.token_types = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.token_embd_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, tokens: Tensor, token_type_ids: Tensor | None = None) -> SimpleNamespace:
        """tokens [1, n] → an object with last_hidden_state [1, n, hidden]."""
        types = torch.zeros_like(tokens) if token_type_ids is None else token_type_ids
        x = self.token_embd_norm(self.token_embd(tokens[0]) + self.token_types(types[0]))
        for layer in self.layers:
            x = layer(x)
        return SimpleNamespace(last_hidden_state=x[None])
