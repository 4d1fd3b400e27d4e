"""The two halves in PyTorch: the image encoder that is trained, and the language model that is not.

The encoder is the one that stretto.vision runs from an `mmproj` file with the projector `mlp`; the language
model is a plain Llama on weights that prepare.py took from a GGUF file, as they are there.
Needs torch and NumPy.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

IMAGE, PATCH, WIDTH, FF, HEADS, BLOCKS = 128, 16, 256, 1024, 4, 6
EPS = 1e-5
MEAN = STD = 0.5
N_TOKENS = (IMAGE // PATCH) ** 2


class Block(nn.Module):
    """A block of the ViT: attention among all patches, then feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH, eps=EPS)
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.ln2 = nn.LayerNorm(WIDTH, eps=EPS)
        self.ffn_up, self.ffn_down = nn.Linear(WIDTH, FF), nn.Linear(FF, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 64, WIDTH] → the same."""
        h = self.ln1(x)
        q, k, v = (
            part(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.attn_out(mixed)
        return x + self.ffn_down(F.gelu(self.ffn_up(self.ln2(x)), approximate="tanh"))


class Sketch(nn.Module):
    """ViT and projector: pixels [n, 128, 128, 3] to vectors [n, 64, n_out]."""

    def __init__(self, n_out: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position = nn.Parameter(torch.randn(N_TOKENS, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.post_ln = nn.LayerNorm(WIDTH, eps=EPS)
        self.mm0, self.mm2 = nn.Linear(WIDTH, n_out), nn.Linear(n_out, n_out)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=module.in_features**-0.5 * 0.7)
                nn.init.zeros_(module.bias)
        for block in self.blocks:  # the residual stream grows by little at first
            for last in (block.attn_out, block.ffn_down):
                last.weight.data *= (2 * BLOCKS) ** -0.5

    def features(self, pixels: Tensor) -> Tensor:
        """uint8 [n, 128, 128, 3] → [n, 64, WIDTH]: what the projector takes."""
        x = (pixels.permute(0, 3, 1, 2).float() / 255 - MEAN) / STD
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.post_ln(x)

    def project(self, features: Tensor) -> Tensor:
        """[n, 64, WIDTH] → [n, 64, n_out]."""
        return self.mm2(F.gelu(self.mm0(features)))

    def arrays(self) -> dict[str, np.ndarray]:
        """The weights by their names in an `mmproj` file: matrices in float16, the rest in float32."""
        found = {}
        for name, parameter in self.named_parameters():
            array = parameter.detach().float().cpu().numpy()
            found[_file_name(name)] = array.astype(np.float16 if array.ndim > 1 else np.float32)
        return found

    def set_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Take up what `arrays` gave."""
        for name, parameter in self.named_parameters():
            parameter.data.copy_(torch.from_numpy(arrays[_file_name(name)].astype(np.float32)))


def _file_name(name: str) -> str:
    whole = {
        "patch.weight": "v.patch_embd.weight",
        "patch.bias": "v.patch_embd.bias",
        "position": "v.position_embd.weight",
    }
    if name in whole:
        return whole[name]
    for ours, theirs in (
        ("blocks.", "v.blk."),
        ("mm0.", "mm.0."),
        ("mm2.", "mm.2."),
        ("post_ln.", "v.post_ln."),
    ):
        name = name.replace(ours, theirs)
    return name


class Heads(nn.Module):
    """What a scene shows, read off the encoder's features: a second teacher, which is not exported."""

    def __init__(self, colours: int, shapes: int, counts: int, letters: int, alphabet: int) -> None:
        super().__init__()
        self.colour, self.shape = nn.Linear(WIDTH, 1 + colours), nn.Linear(WIDTH, 1 + shapes)
        self.count = nn.Linear(2 * WIDTH, counts)
        self.letters = nn.Linear(N_TOKENS * 32, letters * alphabet)
        self.narrow = nn.Linear(WIDTH, 32)
        self.alphabet = alphabet

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Colour and shape at each patch, the number of things, and letters by place."""
        pooled = torch.cat((features.mean(1), features.amax(1)), -1)
        letters = self.letters(F.gelu(self.narrow(features)).flatten(1)).unflatten(-1, (-1, self.alphabet))
        return self.colour(features), self.shape(features), self.count(pooled), letters


class Llama(nn.Module):
    """A frozen Llama: embeddings in, final states out. Pairs of a head that turn together are neighbours."""

    def __init__(self, weights: dict[str, np.ndarray], config: dict[str, float], dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.kv_heads = int(config["head_count"]), int(config["head_count_kv"])
        self.layers, self.eps, self.base = int(config["block_count"]), config["eps"], config["freq_base"]
        for name, array in weights.items():
            self.register_buffer(name.replace(".", "_"), torch.from_numpy(array).to(dtype), persistent=False)

    @property
    def embeddings(self) -> Tensor:
        """[n_vocab, n_embd], the output matrix too."""
        return self.token_embd_weight

    def forward(self, x: Tensor) -> Tensor:
        """[n, length, n_embd] → the same, after the last norm. Each position sees those before it."""
        n, length, width = x.shape
        size = width // self.heads
        angles = torch.outer(
            torch.arange(length, device=x.device).double(),
            self.base ** (-torch.arange(0, size, 2, device=x.device).double() / size),
        )
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

        def turn(y: Tensor) -> Tensor:
            a, b = y.unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

        for i in range(self.layers):

            def weight(name: str, i: int = i) -> Tensor:
                return getattr(self, f"blk_{i}_{name}_weight")

            h = F.rms_norm(x, (width,), weight("attn_norm"), self.eps)
            q, k, v = (
                F.linear(h, weight(f"attn_{part}")).view(n, length, -1, size).transpose(1, 2)
                for part in "qkv"
            )
            mixed = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
            x = x + F.linear(mixed.transpose(1, 2).flatten(2), weight("attn_output"))
            h = F.rms_norm(x, (width,), weight("ffn_norm"), self.eps)
            x = x + F.linear(
                F.silu(F.linear(h, weight("ffn_gate"))) * F.linear(h, weight("ffn_up")), weight("ffn_down")
            )
        return F.rms_norm(x, (width,), self.output_norm_weight, self.eps)
