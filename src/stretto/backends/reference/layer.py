"""What the parts of a layer get to compute with: its weights, and the pass they belong to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch
from stretto.backends.batch import Placement
from stretto.models.parts import Norm, Rope, Slice
from stretto.models.sites import Kind
from stretto.weights.adapters import Pair

# Norms, rotations and activations in NumPy, float32.

erf: Callable[[NDArray[np.float64]], NDArray[np.float64]] = np.vectorize(math.erf, otypes=[np.float64])


def rms_norm(x: Floats, weight: Floats | None, eps: float) -> Floats:
    """x divided by the root of its mean square, times `weight`."""
    root: Floats = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return x / root if weight is None else x / root * weight


def layer_norm(x: Floats, weight: Floats | None, bias: Floats | None, eps: float) -> Floats:
    """x less its mean, divided by its standard deviation, times `weight`, plus `bias`."""
    x = rms_norm(x - np.mean(x, axis=-1, keepdims=True), weight, eps)
    return x if bias is None else x + bias


def rotate(
    x: Floats, positions: NDArray[np.integer], rope: Rope, lengths: NDArray[np.integer] | None = None
) -> Floats:
    """Apply RoPE: rotate the pairs of each head by their position: x [n, heads, size]."""
    angles = rope.angles(positions, lengths)[:, None, :]  # [n, 1, pairs]
    cos = (np.cos(angles) * rope.magnitude).astype(np.float32)
    sin = (np.sin(angles) * rope.magnitude).astype(np.float32)
    first, second = rope.sides
    a, b = x[..., first], x[..., second]
    out = x.copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def cap(x: Floats, most: float) -> Floats:
    """`most` × tanh(x / most), or x itself where there is no cap."""
    if not most:
        return x
    out: Floats = np.float32(most) * np.tanh(x / np.float32(most))
    return out


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e^−x)."""
    with np.errstate(over="ignore"):  # exp(−x) may be infinite; the quotient is then 0, as it should be
        out: Floats = np.reciprocal(1 + np.exp(-x))
    return out


def softmax(x: Floats) -> Floats:
    """Along the last axis."""
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    out: Floats = x / x.sum(axis=-1, keepdims=True)
    return out


def silu(x: Floats) -> Floats:
    """x × sigmoid(x)."""
    with np.errstate(over="ignore"):
        out: Floats = x / (1 + np.exp(-x))
    return out


def softplus(x: Floats) -> Floats:
    """log(1 + e^x)."""
    return np.logaddexp(x, np.float32(0))


def gelu(x: Floats) -> Floats:
    """The tanh form of GELU."""
    cubed = x + np.float32(0.044715) * x * x * x
    out: Floats = np.float32(0.5) * x * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * cubed))
    return out


def gelu_erf(x: Floats) -> Floats:
    """GELU as it is defined: x times the probability that a standard normal number is below it."""
    out: Floats = (0.5 * x * (1.0 + erf(x.astype(np.float64) * 0.5**0.5))).astype(np.float32)
    return out


def relu2(x: Floats) -> Floats:
    """The square of what is above 0."""
    out: Floats = np.square(np.maximum(x, 0))
    return out


def relu(x: Floats) -> Floats:
    """What is above 0."""
    out: Floats = np.maximum(x, 0)
    return out


def xielu(x: Floats, alpha_p: float, alpha_n: float, beta: float, eps: float) -> Floats:
    """A parabola above 0, and what bends towards a line below."""
    below = np.float32(alpha_n) * (np.expm1(np.minimum(x, np.float32(eps))) - x)
    out: Floats = np.where(x > 0, np.float32(alpha_p) * x * x, below) + np.float32(beta) * x
    return out


def tanh(x: Floats) -> Floats:
    """The hyperbolic tangent."""
    out: Floats = np.tanh(x)
    return out


ACTIVATIONS = {
    "silu": silu,
    "gelu": gelu,
    "relu2": relu2,
    "gelu_erf": gelu_erf,
    "relu": relu,
    "tanh": tanh,
}


Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Mask = NDArray[np.bool_]


# The changes of each matrix by adapters, with their scales for each row, float32[n].
Changes = Mapping[str, list[tuple[Floats, Pair]]]
NO_CHANGES: Changes = {}


def changed(out: Floats, x: Floats, changes: list[tuple[Floats, Pair]]) -> Floats:
    """A product of rows x, with what adapters add to it: scale × b (a x) for each row."""
    for scales, pair in changes:
        added = (x @ pair.a.T * (scales * np.float32(pair.scale))[:, None]) @ pair.b.T
        out = np.where(scales[:, None] != 0, out + added, out)
    return out


class LayerWeights:
    """The tensors of one layer, by their names without its prefix."""

    def __init__(
        self,
        weights: Mapping[str, Floats],
        index: int,
        slices: Mapping[str, Slice],
        prefix: str | None = None,
        changes: Changes = NO_CHANGES,
    ) -> None:
        self._weights = weights
        self._changes = changes
        self._prefix = f"blk.{index}." if prefix is None else prefix
        self._slices = slices

    def get(self, name: str) -> Floats | None:
        """A tensor, or None if the layer has none of that name."""
        if name in self._slices:
            at = self._slices[name]
            whole, rows = self._weights[self._prefix + at.tensor], slice(at.first, at.first + at.rows)
            return whole[:, rows] if at.experts else whole[rows]
        return self._weights.get(self._prefix + name)

    def __getitem__(self, name: str) -> Floats:
        found = self.get(name)
        if found is None:
            raise KeyError(self._prefix + name)
        return found

    def expert(self, name: str, e: int) -> Floats:
        """The matrix of one expert, in one tensor with the others or in a tensor of its own."""
        stacked = self.get(f"{name}.weight")
        return self[f"{name.removesuffix('_exps')}.{e}.weight"] if stacked is None else stacked[e]

    def matmul(self, x: Floats, name: str) -> Floats:
        """x times a matrix, with what adapters add, plus its bias if it has one."""
        out: Floats = x @ self[f"{name}.weight"].T
        out = changed(out, x, self._changes.get(f"{self._prefix}{name}.weight", []))
        bias = self.get(f"{name}.bias")
        return out if bias is None else out + bias

    def norm(self, norm: Norm | None, x: Floats) -> Floats:
        """x normalised along its last axis, or x itself where there is no norm."""
        if norm is None:
            return x
        weight = self[norm.weight_name] if norm.weight else None
        if norm.kind == "rms":
            return rms_norm(x, weight, norm.eps)
        return layer_norm(x, weight, self[f"{norm.name}.bias"] if norm.bias else None, norm.eps)

    def norm_heads(self, norm: Norm | None, x: Floats) -> Floats:
        """x [n, heads, size], normalised over what the norm says."""
        if norm is not None and norm.over == "all":
            return self.norm(norm, x.reshape(len(x), -1)).reshape(x.shape)
        return self.norm(norm, x)


@dataclass
class Pass:
    """One forward pass: the batch, what its rows see, and the memory that the layers read and write."""

    batch: Batch
    placement: Placement
    mask: Mask  # bool[n, n_cells]: the cells that a row attends to
    keys: list[Floats]  # of each layer: float32[n_cells, heads, size]
    values: list[Floats]
    states: list[Floats]  # of each layer: float32[n_slots, state_floats]
    stored: Callable[[Floats], Floats]  # K or V as the cache keeps it
    wanted: bool  # whether attention weights are asked for
    inputs: Floats | None = None  # of each layer, beside x: float32[n_layer, n, size]
    # Of each layer that attends: float32[n_head, n, n_cells].
    causal: Mask | None = None  # the mask of layers without a window, if it is another
    attention: list[Floats] = field(default_factory=list)
    given: bool = False  # the mask is the caller's, also for attention in both directions
    changes: Changes = field(default_factory=dict)  # by adapters
    chosen: dict[int, Mask] = field(default_factory=dict)  # by layers with an indexer: what is attended to
    first_values: Floats | None = None  # of the first layer with time mixing: float32[n, width]

    def tap(self, i: int, kind: Kind, x: Floats) -> Floats:
        """Values at layer i's site of a kind: shown to those who asked for rows, and as they change them."""
        for tap in self.batch.taps:
            if (tap.site.layer, tap.site.kind) != (i, kind):
                continue
            tap.values[:] = x[tap.rows]
            if tap.change is not None:
                tap.change(tap.values)
                x = x.copy()
                x[tap.rows] = tap.values
        return x

    def beside_rows(self, n: int, size: int) -> Floats:
        """float32[n, size]: the last numbers of the rows' vectors, zeros for tokens without one."""
        found = np.zeros((n, size), np.float32)
        for row, vector in self.batch.vectors.items():
            found[row] = vector[-size:]
        return found

    @property
    def positions(self) -> Ints:
        """The position of each row."""
        return self.batch.positions

    @property
    def whole(self) -> Mask:
        """The mask of attention in both directions: the whole view of each row."""
        if self.given:
            return self.mask
        mask = np.zeros_like(self.mask)
        for row, view in enumerate(self.placement.view_of):
            mask[row, self.placement.views[view]] = True
        return mask

    @cached_property
    def view_lengths(self) -> Ints:
        """int32[n]: how many cells the whole view of each row has."""
        views = self.placement.views
        return np.array([len(views[view]) for view in self.placement.view_of], np.int32)

    @property
    def rotated(self) -> Ints:
        """int32[n] or int32[n, 3]: what each row is rotated by."""
        return self.positions if self.placement.rotated is None else self.placement.rotated
