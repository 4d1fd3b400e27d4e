"""The oracle: an image encoder in NumPy, float32, weights dequantised. Slow, short, and meant to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import erf

import numpy as np
from numpy.typing import NDArray

from stretto.vision.encoder import merged
from stretto.vision.spec import VisionSpec
from stretto.weights.gguf import GGUF

Floats = NDArray[np.float32]


class ReferenceEncoder:
    """Runs a ViT and its projector in NumPy."""

    name = "reference 1"

    def __init__(self, file: GGUF, spec: VisionSpec) -> None:
        self.spec = spec
        self.weights = {name: file.tensors[name].dequantize() for name in spec.tensors()}

    def embed(self, patches: Floats) -> Floats:
        """[n, n_patches, patch_numbers] → [n, n_positions, n_embd]."""
        weight = self.weights["v.patch_embd.weight"].reshape(self.spec.n_embd, -1)
        x: Floats = patches @ weight.T
        x = x + self.weights.get("v.patch_embd.bias", np.float32(0))
        if self.spec.class_token:
            first = np.broadcast_to(self.weights["v.class_embd"], (len(x), 1, self.spec.n_embd))
            x = np.concatenate((first, x), axis=1)
        x = x + self.weights["v.position_embd.weight"]
        return self._norm(x, "v.pre_ln") if self.spec.pre_norm else x

    def block(self, index: int, x: Floats, rows: Callable[[], int]) -> Iterator[None]:
        """x += attention, x += feed-forward: two slices, however many rows are asked for."""
        name = f"v.blk.{index}."
        up, down = ("ffn_down", "ffn_up") if self.spec.swapped else ("ffn_up", "ffn_down")
        x += self._attention(name, self._norm(x, f"{name}ln1"))
        yield
        hidden = ACTIVATIONS[self.spec.activation](self._matmul(self._norm(x, f"{name}ln2"), name + up))
        x += self._matmul(hidden, name + down)
        yield

    def project(self, x: Floats) -> Floats:
        """[n, n_positions, n_embd] → [n, n_tokens, n_out]."""
        spec, weights = self.spec, self.weights
        if spec.post_norm:
            x = self._norm(x, "v.post_ln")
        x = x[:, spec.class_token :]
        out: Floats
        if spec.projector == "mlp":
            return self._matmul(exact_gelu(self._matmul(x, "mm.0")), "mm.2")
        if spec.projector == "idefics3":
            squares = merged(x, spec)
            out = squares.reshape(*squares.shape[:2], -1) @ weights["mm.model.fc.weight"].T
            return out
        pooled = merged(x, spec).mean(axis=2)
        root = np.sqrt(np.mean(np.square(pooled), axis=-1, keepdims=True) + np.float32(spec.norm_eps))
        out = pooled / root * weights["mm.soft_emb_norm.weight"] @ weights["mm.input_projection.weight"]
        return out

    def close(self) -> None:
        """Free the weights."""
        self.weights = {}

    def _attention(self, name: str, x: Floats) -> Floats:
        n, length, _ = x.shape
        q, k, v = (
            self._matmul(x, f"{name}attn_{part}").reshape(n, length, self.spec.n_head, -1).swapaxes(1, 2)
            for part in "qkv"
        )
        scores = q @ k.swapaxes(2, 3) * np.float32(self.spec.head_size**-0.5)  # [n, heads, length, length]
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = (scores @ v).swapaxes(1, 2).reshape(n, length, -1)
        return self._matmul(mixed, f"{name}attn_out")

    def _matmul(self, x: Floats, name: str) -> Floats:
        out: Floats = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else out + bias

    def _norm(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(axis=-1, keepdims=True)
        root = np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True) + np.float32(self.spec.norm_eps))
        out: Floats = centred / root * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return out


def exact_gelu(x: Floats) -> Floats:
    """GELU by the error function, as LLaVA's projector has it."""
    erfs = np.frompyfunc(erf, 1, 1)(x * np.float32(0.5**0.5)).astype(np.float32)
    out: Floats = np.float32(0.5) * x * (1 + erfs)
    return out


def gelu(x: Floats) -> Floats:
    """The tanh form of GELU."""
    cubed = x + np.float32(0.044715) * x * x * x
    out: Floats = np.float32(0.5) * x * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * cubed))
    return out


def quick_gelu(x: Floats) -> Floats:
    """x × sigmoid(1.702 x)."""
    return _swish(x, 1.702)


def silu(x: Floats) -> Floats:
    """x × sigmoid(x)."""
    return _swish(x, 1.0)


def _swish(x: Floats, factor: float) -> Floats:
    with np.errstate(over="ignore"):  # exp(−x) may be infinite; the quotient is then 0, as it should be
        out: Floats = x / (1 + np.exp(np.float32(-factor) * x))
    return out


ACTIVATIONS = {"gelu": gelu, "quick_gelu": quick_gelu, "silu": silu}
