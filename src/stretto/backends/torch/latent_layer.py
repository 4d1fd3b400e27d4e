"""Latent attention (MLA): attention over one compressed vector for each cell."""

from __future__ import annotations

import torch

from stretto.backends.torch import attention, planes
from stretto.backends.torch.attention_layer import watch
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.heads import head_product
from stretto.backends.torch.matrix import product
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.rowwise import norm
from stretto.backends.torch.scoring import Scoring
from stretto.backends.torch.weights import LayerWeights
from stretto.models.mixers import Latent


class LatentLayer:
    """Attention with one K/V head, whose V is the first part of K."""

    def __init__(self, mixer: Latent, w: LayerWeights, index: int, n_embd: int) -> None:
        self.mixer, self.index, self.dtype = mixer, index, w.dtype
        rows = mixer.n_head * (mixer.nope_size + mixer.rope_size)
        self.compress = w.matrix({"attn_q_a": mixer.q_rank}, n_embd) if mixer.q_rank else None
        self.q_norm = w.norm(mixer.q_norm, mixer.q_rank)
        self.query = w.matrix({"attn_q_b" if mixer.q_rank else "attn_q": rows}, mixer.q_rank or n_embd)
        self.latent = w.matrix({"attn_kv_a_mqa": mixer.rank + mixer.rope_size}, n_embd)
        self.kv_norm = w.norm(mixer.kv_norm, mixer.rank)
        self.k_b = w.heads("attn_k_b", mixer.n_head, mixer.rank, mixer.nope_size)
        self.v_b = w.heads("attn_v_b", mixer.n_head, mixer.value_size, mixer.rank)
        self.output = w.matrix({"attn_output": n_embd}, mixer.n_head * mixer.value_size)
        self.rope = w.weights.rope(mixer.rope)
        self.scoring = Scoring(mixer.scale)

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        """dtype[n, n_embd]: what the layer adds, from normalised rows."""
        mixer, n, keys = self.mixer, len(x), run.memory.keys[self.index]
        assert keys is not None
        q = x if self.compress is None else norm(product(x, self.compress), self.q_norm, self.dtype)
        q = product(q, self.query).view(n, mixer.n_head, -1)
        cos, sin = self.rope.at(run.turns)
        plain = head_product(q[..., : mixer.nope_size], self.k_b)
        rotated = self.rope.rotate(q[..., mixer.nope_size :].float(), cos, sin)
        queries = torch.cat((plain.float(), rotated), dim=2).to(planes.operand(keys))
        compressed = product(x, self.latent, out_dtype=torch.float32)
        latent = norm(compressed[:, : mixer.rank], self.kv_norm, torch.float32)
        key = self.rope.rotate(compressed[:, None, mixer.rank :], cos, sin)[:, 0]
        attention.store(torch.cat((latent, key), dim=1)[:, None], None, keys, None, run.cells)
        work, values = run.plan.work(None, True), keys[..., : mixer.rank]
        watch(run, queries, keys, work, self.scoring)
        mixed = torch.empty(n, mixer.n_head * mixer.rank, dtype=self.dtype, device=x.device)
        attention.attend(queries, keys, values, work, self.scoring, mixed)
        heads = head_product(mixed.view(n, mixer.n_head, -1), self.v_b)
        return product(heads.reshape(n, -1), self.output)
