"""The oracle: an image encoder in NumPy, float32, weights dequantised. Slow, short, and meant to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import erf

import numpy as np
from numpy.typing import NDArray

from stretto.vision.encoder import (
    attended,
    flattened,
    patch_kernel,
    plain_tensors,
    position_rows,
    projected,
    rope_pairs,
    rotation,
    to_windows,
    window_ends,
)
from stretto.vision.families import FAMILIES
from stretto.vision.spec import Grid, VisionSpec
from stretto.weights.gguf import GGUF

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class ReferenceEncoder:
    """Runs a ViT and its projector in NumPy."""

    name = "reference 2"

    def __init__(self, file: GGUF, spec: VisionSpec) -> None:
        self.spec = spec
        self.clamps = dict(spec.clamps)
        self.weights: dict[str, Floats] = {}
        for name, tensor, rows in plain_tensors(file, spec):
            values = flattened(name, tensor.dequantize())
            self.weights[name] = (
                values.T if name in spec.transposed else values if rows is None else values[rows]
            )
        self.weights["v.patch_embd.weight"] = patch_kernel(file, spec)

    def embed(self, patches: Floats, grid: Grid) -> Floats:
        """[n, patches, patch_numbers] → [n, positions, n_embd]."""
        x = FAMILIES[self.spec.projector].embed(self, patches)
        if self.spec.class_token:
            first = np.broadcast_to(self.weights["v.class_embd"], (len(x), 1, self.spec.n_embd))
            x = np.concatenate((first, x), axis=1)
        if self.spec.positions:
            x = x + position_rows(self.weights["v.position_embd.weight"], self.spec, grid)
        x = to_windows(x, self.spec, grid)
        return self.norm(x, "v.pre_ln") if self.spec.pre_norm else x

    def join(self, parts: Sequence[Floats]) -> Floats:
        """Images that were embedded apart, as one batch."""
        return np.concatenate(parts)

    def block(self, index: int, x: Floats, grid: Grid, rows: Callable[[], int]) -> Iterator[None]:
        """x += attention, x += feed-forward: two slices, however many rows are asked for."""
        name = f"v.blk.{index}."
        windows = window_ends(self.spec, index, grid)
        x += self._output(
            self._attention(name, self.norm(x, f"{name}ln1"), grid, windows), name, "attn", "ls1"
        )
        yield
        normed, activation = self.norm(x, f"{name}ln2"), self.spec.activation
        if self.spec.gated:
            gate = self.multiply(normed, f"{name}ffn_gate", activation)
            hidden = gate * self.multiply(normed, f"{name}ffn_up")
        else:
            hidden = self.multiply(normed, f"{name}ffn_up", activation)
        x += self._output(self.multiply(hidden, f"{name}ffn_down"), name, "ffn", "ls2")
        yield

    def project(self, x: Floats, grid: Grid, taps: Sequence[Floats] = ()) -> Floats:
        """[n, positions, n_embd] → [n, tokens, n_vector]."""
        return projected(self, x, grid, taps)

    def close(self) -> None:
        """Free the weights."""
        self.weights = {}

    def multiply(self, x: Floats, name: str, activation: str = "") -> Floats:
        """A matrix, its bias, an activation; with limits of what goes in and comes out."""
        low, high, low_out, high_out = self.clamps.get(name, (0, 0, 0, 0))
        if name in self.clamps:
            x = np.clip(x, np.float32(low), np.float32(high))
        out: Floats = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        out = out if bias is None else out + bias
        if name in self.clamps:
            out = np.clip(out, np.float32(low_out), np.float32(high_out))
        return ACTIVATIONS[activation](out) if activation else out

    def norm(self, x: Floats, name: str, eps: float | None = None) -> Floats:
        """By mean and variance if there is a bias, else by the root of mean squares."""
        bias = self.weights.get(f"{name}.bias")
        centred = x if bias is None else x - x.mean(axis=-1, keepdims=True)
        small = np.float32(self.spec.norm_eps if eps is None else eps)
        root = np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True) + small)
        out: Floats = centred / root * self.weights.get(f"{name}.weight", np.float32(1))
        return out if bias is None else out + bias

    def vector(self, name: str) -> Floats | None:
        """A vector of the file."""
        return self.weights.get(name)

    def add(self, x: Floats, numbers: Floats) -> Floats:
        """Rows of numbers, added to those of each image."""
        return x + numbers

    def attend(self, q: Floats, k: Floats, v: Floats, n_head: int) -> Floats:
        """Attention of queries to all rows of an image."""
        return attended(q, k, v, n_head)

    def _attention(self, name: str, x: Floats, grid: Grid, windows: Ints) -> Floats:
        spec, (n, length, _) = self.spec, x.shape
        q, k, v = (self.multiply(x, f"{name}attn_{part}") for part in "qkv")
        if spec.qk_norm == "all":
            q, k = self.norm(q, f"{name}attn_q_norm"), self.norm(k, f"{name}attn_k_norm")
        q, k, v = (part.reshape(n, length, spec.n_head, -1).swapaxes(1, 2) for part in (q, k, v))
        if spec.qk_norm == "head":
            q, k = self.norm(q, f"{name}attn_q_norm"), self.norm(k, f"{name}attn_k_norm")
        if spec.value_norm:
            v = self.norm(v, "")
        q, k = self._rotate(q, grid), self._rotate(k, grid)
        parts = zip(*(np.split(one, windows[:-1], axis=2) for one in (q, k, v)), strict=True)
        mixed = np.concatenate([self._mix(*part) for part in parts], axis=2)
        return self.multiply(mixed.swapaxes(1, 2).reshape(n, length, -1), f"{name}attn_out")

    def _mix(self, q: Floats, k: Floats, v: Floats) -> Floats:
        """[n, heads, length, head_size] of a window."""
        scores = q @ k.swapaxes(2, 3) * np.float32(self.spec.scale)  # [n, heads, length, length]
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: Floats = scores @ v
        return mixed

    def _rotate(self, x: Floats, grid: Grid) -> Floats:
        """[n, heads, length, head_size], each pair of numbers by its angle."""
        table = rotation(self.spec, grid)
        if table is None:
            return x
        first, second = rope_pairs(self.spec).T
        cos, sin = table[..., 0], table[..., 1]
        out = np.empty_like(x)
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def _output(self, x: Floats, name: str, half: str, scale: str) -> Floats:
        if self.spec.layer_scale:
            x = x * self.weights[f"{name}{scale}.weight"]
        return self.norm(x, f"{name}{half}_post_norm") if self.spec.output_norms else x


def exact_gelu(x: Floats) -> Floats:
    """GELU by the error function."""
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


ACTIVATIONS = {"gelu": gelu, "quick_gelu": quick_gelu, "silu": silu, "exact_gelu": exact_gelu}
