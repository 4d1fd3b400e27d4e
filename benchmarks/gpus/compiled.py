"""A dense decoder as gpt-fast has it: a static KV cache, the decode step compiled whole with CUDA graphs.

Only the design is gpt-fast's. The greedy token stays on the device, and is the next step's input.
"""

import time

import torch
import torch.nn.functional as nnf
from torch import nn

from gpus.clock import synchronize


class Block(nn.Module):
    def __init__(self, keys, rows, length):
        super().__init__()
        width, self.heads = keys["embedding_length"], keys["attention.head_count"]
        self.kv_heads = keys["attention.head_count_kv"]
        self.size = keys.get("attention.key_length", width // self.heads)
        ff, inner = keys["feed_forward_length"], self.heads * self.size
        self.sizes = inner, self.kv_heads * self.size, self.kv_heads * self.size
        self.qkv, self.out = (
            nn.Linear(width, sum(self.sizes), bias=False),
            nn.Linear(inner, width, bias=False),
        )
        self.gate_up, self.down = nn.Linear(width, 2 * ff, bias=False), nn.Linear(ff, width, bias=False)
        eps = keys["attention.layer_norm_rms_epsilon"]
        self.norm, self.ff_norm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
        has_norms = "attention.key_length" in keys  # Qwen3 norms queries and keys
        self.q_norm, self.k_norm = (nn.RMSNorm(self.size, eps) if has_norms else nn.Identity() for _ in "qk")
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(rows, self.kv_heads, length, self.size))

    def forward(self, x, at, mask, turn):
        rows = x.shape[0]
        q, k, v = self.qkv(self.norm(x)).split(self.sizes, -1)
        q = turned(self.q_norm(q.view(rows, -1, self.heads, self.size)), turn).transpose(1, 2)
        k = turned(self.k_norm(k.view(rows, -1, self.kv_heads, self.size)), turn).transpose(1, 2)
        self.keys[:, :, at] = k
        self.values[:, :, at] = v.view(rows, -1, self.kv_heads, self.size).transpose(1, 2)
        group = self.heads // self.kv_heads
        seen = (each.repeat_interleave(group, 1) for each in (self.keys, self.values))
        mixed = nnf.scaled_dot_product_attention(q, *seen, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, -1, self.sizes[0]))
        gate, up = self.gate_up(self.ff_norm(x)).chunk(2, -1)
        return x + self.down(nnf.silu(gate) * up)


def turned(x, turn):
    """Apply RoPE to pairs of neighbours."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turn
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


class Decoder(nn.Module):
    def __init__(self, shape, rows, length):
        super().__init__()
        keys = shape.keys
        width = keys["embedding_length"]
        self.embedding = nn.Embedding(shape.n_vocab, width)
        self.blocks = nn.ModuleList(Block(keys, rows, length) for _ in range(shape.n_layer))
        self.norm = nn.RMSNorm(width, keys["attention.layer_norm_rms_epsilon"])
        self.output = nn.Linear(width, shape.n_vocab, bias=False)
        if shape.tied:
            self.output.weight = self.embedding.weight
        size = self.blocks[0].size
        angles = torch.outer(
            torch.arange(length), keys["rope.freq_base"] ** (-torch.arange(0, size, 2) / size)
        )
        self.register_buffer("cos", angles.cos()[:, None])
        self.register_buffer("sin", angles.sin()[:, None])
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).tril())

    def forward(self, tokens, at):
        """The most probable token after each row: int64[rows, 1]."""
        x, mask = self.embedding(tokens), self.mask[at]
        turn = self.cos[at].float(), self.sin[at].float()
        for block in self.blocks:
            x = block(x, at, mask, turn)
        return self.output(self.norm(x[:, -1:])).argmax(-1)


class Compiled:
    """Random weights; the cache is as long as the test needs, as gpt-fast makes it."""

    def __init__(self, shape, rows, depth, tokens, device="cuda"):
        length = -(-(depth + tokens + 1) // 8) * 8
        with torch.device("meta"):
            model = Decoder(shape, rows, length)
        model = model.to_empty(device=device).to(torch.bfloat16)
        fill(model, shape, length)
        self.rows, self.depth, self.tokens, self.device = rows, depth, tokens, device
        self.model = model.eval()
        self.step = (
            torch.compile(model, mode="reduce-overhead", fullgraph=True) if device == "cuda" else model
        )

    @torch.no_grad()
    def decode(self):
        """Tokens a second."""
        tokens = torch.ones(self.rows, 1, dtype=torch.int64, device=self.device)
        at = torch.tensor([self.depth], device=self.device)
        synchronize()
        begun = time.perf_counter()
        for _ in range(self.tokens):
            torch.compiler.cudagraph_mark_step_begin()
            tokens = self.step(tokens, at).clone()
            at = at + 1
        synchronize()
        return self.rows * self.tokens / (time.perf_counter() - begun)

    def close(self):
        del self.model, self.step
        torch.compiler.reset()


def fill(model, shape, length):
    """Random weights, and the tables, which `to_empty` left undefined."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.fill_(1)
        else:
            parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    with torch.device(model.cos.device):
        size = model.blocks[0].size
        powers = -torch.arange(0, size, 2) / size
        angles = torch.outer(torch.arange(length), shape.keys["rope.freq_base"] ** powers)
        model.cos = angles.cos()[:, None]
        model.sin = angles.sin()[:, None]
        model.mask = torch.ones(length, length, dtype=torch.bool).tril()
    for block in model.blocks:
        block.keys.normal_()
        block.values.normal_()
