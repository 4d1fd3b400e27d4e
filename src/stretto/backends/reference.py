"""The oracle: a decoder in NumPy, float32, weights dequantised. Slow, short, and meant to be read.

One forward serves everything: any batch, any positions, any views. What a row may attend to is a dense
mask here, made from the views or given by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities, FusedRun, NoSlots
from stretto.errors import InvalidRequest, Unsupported
from stretto.models.spec import Layer, ModelSpec, Rope
from stretto.weights.gguf import GGUF

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]


@dataclass
class Computed:
    """The results of one forward pass."""

    hidden: Floats  # float32[n, n_embd], after the last norm
    attention: list[Floats]  # a layer each: float32[n_head, n, n_cells]; empty unless asked for


class ReferenceBackend(NoSlots):
    """Runs a model in NumPy. `forward` is the protocol's; `compute` returns intermediate results."""

    name = "reference"
    precision = "exact"
    capabilities = Capabilities(attention=True)
    active_threads = 1

    def __init__(self, file: GGUF, spec: ModelSpec, n_cells: int) -> None:
        self.spec = spec
        self.n_cells = n_cells
        self.weights = {name: file.tensors[name].dequantize() for name in spec.tensors()}
        shape = (spec.n_layer, n_cells, spec.n_kv_head, spec.head_size)
        self.keys = np.zeros(shape, np.float32)
        self.values = np.zeros(shape, np.float32)
        self.cell_bytes = 2 * 4 * spec.n_layer * spec.n_kv_head * spec.head_size
        self.cell_layout = f"reference f32, {spec.n_layer} layers, {spec.n_kv_head} heads of {spec.head_size}"

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab]."""
        return self.logits(self.hidden(batch))

    def hidden(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_embd]."""
        computed = self.compute(batch, attention=len(batch.probes) > 0 or len(batch.watched) > 0)
        if len(batch.probes):
            probed = [weights[:, :, batch.probes].mean(axis=0) for weights in computed.attention]
            batch.received = np.mean(probed, axis=0, dtype=np.float32)
        batch.attention = [_row_of(computed.attention, batch, row) for row in batch.watched]
        return computed.hidden[batch.wanted]

    def logits(self, hidden: Floats) -> Floats:
        """The output matrix applied to final hidden states."""
        output = self.weights["token_embd.weight" if self.spec.tied else "output.weight"]
        logits: Floats = hidden @ output.T
        return cap(logits, self.spec.logit_cap)

    def compute(self, batch: Batch, mask: Mask | None = None, attention: bool = False) -> Computed:
        """Run a placed batch. `mask`, bool[n, n_cells], overrides which cells a row attends to."""
        spec, placement = self.spec, batch.placement
        if placement is None:
            raise InvalidRequest("the batch has no cells yet; call batch.place(cells) first")
        if mask is None:
            mask = np.zeros((len(batch), self.n_cells), bool)
            for row, (view, length) in enumerate(zip(placement.view_of, placement.lengths, strict=True)):
                mask[row, placement.views[view][:length]] = True
        elif mask.shape != (len(batch), self.n_cells) or mask.dtype != bool or not mask.any(axis=1).all():
            raise InvalidRequest(
                f"mask must be bool[{len(batch)}, {self.n_cells}] with a cell for each row to see, "
                f"not {mask.dtype}{list(mask.shape)}",
                param="mask",
            )

        x = self.weights["token_embd.weight"][batch.tokens] * np.float32(spec.embedding_scale)  # [n, n_embd]
        for row, vector in batch.vectors.items():
            x[row] = vector
        positions = batch.positions
        all_weights: list[Floats] = []
        for i, layer in enumerate(spec.layers):
            near = mask
            if layer.window is not None:
                near = mask & (placement.table[None, :] > positions[:, None] - layer.window)
            keys, values = self.keys[i], self.values[i]
            queries, keys[placement.cells], values[placement.cells] = self._project(i, layer, x, positions)
            mixed, weights = attend(queries, keys, values, near, spec.attention_scale, spec.attention_cap)
            x = x + self._norm_if(
                spec.post_norm, i, "post_attention_norm", self._matmul(mixed, i, "attn_output")
            )
            x = x + self._norm_if(spec.post_norm, i, "post_ffw_norm", self._feed_forward(i, x))
            if attention:
                all_weights.append(weights)
        return Computed(rms_norm(x, self.weights["output_norm.weight"], spec.norm_eps), all_weights)

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """Only the native backend has a loop of its own."""
        raise Unsupported(f"the {self.name} backend has no fused loop; backend='native' has")

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy K and V of cells `source` to cells `target`."""
        self.keys[:, target] = self.keys[:, source]
        self.values[:, target] = self.values[:, source]

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Rotate keys by `delta` positions: rotations add up; the magnitude is in the keys already."""
        turns = np.full(len(cells), delta)
        for i, layer in enumerate(self.spec.layers):
            self.keys[i, cells] = rotate(self.keys[i, cells], turns, replace(layer.rope, magnitude=1.0))

    def read_cells(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], in the order [n][K, V][layer][head]."""
        both = np.stack((self.keys[:, cells], self.values[:, cells]))  # [2, n_layer, n, n_kv_head, size]
        rows = np.ascontiguousarray(np.moveaxis(both, 2, 0))
        return rows.view(np.uint8).reshape(len(cells), self.cell_bytes)

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """Write K and V of `cells`, in the format of `read_cells`."""
        spec = self.spec
        shape = (len(cells), 2, spec.n_layer, spec.n_kv_head, spec.head_size)
        both = np.moveaxis(np.ascontiguousarray(data).view(np.float32).reshape(shape), 0, 2)
        self.keys[:, cells], self.values[:, cells] = both

    def close(self) -> None:
        """Free the weights and the cache."""
        self.weights = {}
        self.keys = self.values = np.zeros((0, 0, 0, 0), np.float32)

    # -- the parts of a layer --

    def _project(self, i: int, layer: Layer, x: Floats, positions: Ints) -> tuple[Floats, Floats, Floats]:
        """Queries, keys and values of each row: float32[n, heads, head_size], rotated."""
        spec = self.spec
        x = self._norm(i, "attn_norm", x)
        q, k, v = (
            self._matmul(x, i, name).reshape(len(x), -1, spec.head_size)
            for name in ("attn_q", "attn_k", "attn_v")
        )
        q, k = (
            self._norm_if(spec.qk_norm, i, "attn_q_norm", q),
            self._norm_if(spec.qk_norm, i, "attn_k_norm", k),
        )
        return rotate(q, positions, layer.rope), rotate(k, positions, layer.rope), v

    def _feed_forward(self, i: int, x: Floats) -> Floats:
        x = self._norm(i, "ffn_norm", x)
        gate, up = self._matmul(x, i, "ffn_gate"), self._matmul(x, i, "ffn_up")
        return self._matmul(ACTIVATIONS[self.spec.activation](gate) * up, i, "ffn_down")

    def _matmul(self, x: Floats, i: int, name: str) -> Floats:
        """x times a layer's matrix, plus its bias if it has one."""
        out: Floats = x @ self.weights[f"blk.{i}.{name}.weight"].T
        bias = self.weights.get(f"blk.{i}.{name}.bias")
        return out if bias is None else out + bias

    def _norm(self, i: int, name: str, x: Floats) -> Floats:
        return rms_norm(x, self.weights[f"blk.{i}.{name}.weight"], self.spec.norm_eps)

    def _norm_if(self, wanted: bool, i: int, name: str, x: Floats) -> Floats:
        return self._norm(i, name, x) if wanted else x


def _row_of(attention: list[Floats], batch: Batch, row: int) -> Floats:
    """float32[n_layer, n_head, n]: a row's attention to each cell of its view."""
    placement = batch.placement
    if placement is None:
        raise InvalidRequest("the batch has no cells yet; call batch.place(cells) first")
    view = placement.views[placement.view_of[row]][: placement.lengths[row]]
    return np.stack([weights[:, row, view] for weights in attention])


def attend(
    queries: Floats, keys: Floats, values: Floats, mask: Mask, scale: float, most: float = 0.0
) -> tuple[Floats, Floats]:
    """Attention of each row to the cells its mask allows, each K/V head shared by a group of heads.

    queries [n, n_head, size], keys and values [n_cells, n_kv_head, size], mask [n, n_cells]
    → float32[n, n_head × size] and the weights float32[n_head, n, n_cells]
    """
    n, n_head, size = queries.shape
    cells = np.flatnonzero(mask.any(axis=0))
    group = n_head // keys.shape[1]
    weights = np.zeros((n_head, n, len(keys)), np.float32)
    mixed = np.empty((n, n_head, size), np.float32)
    for head in range(n_head):
        scores = queries[:, head] @ keys[cells, head // group].T * np.float32(scale)  # [n, cells]
        scores = np.where(mask[:, cells], cap(scores, most), -np.inf)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        weights[head][:, cells] = scores
        mixed[:, head] = scores @ values[cells, head // group]
    return mixed.reshape(n, -1), weights


def rotate(x: Floats, positions: NDArray[np.integer], rope: Rope) -> Floats:
    """Apply RoPE: rotate the pairs of each head by their position: x [n, heads, size]."""
    angles = rope.angles(positions)[:, None, :]  # [n, 1, pairs]
    cos = (np.cos(angles) * rope.magnitude).astype(np.float32)
    sin = (np.sin(angles) * rope.magnitude).astype(np.float32)
    pairs = len(rope.frequencies)
    if rope.pairs == "adjacent":
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    a, b = x[..., first], x[..., second]
    out = x.copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x divided by the root of its mean square, times `weight`."""
    root: Floats = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return x / root * weight


def cap(x: Floats, most: float) -> Floats:
    """`most` × tanh(x / most), or x itself where there is no cap."""
    if not most:
        return x
    out: Floats = np.float32(most) * np.tanh(x / np.float32(most))
    return out


def silu(x: Floats) -> Floats:
    """x × sigmoid(x)."""
    with np.errstate(over="ignore"):  # exp(−x) may be infinite; the quotient is then 0, as it should be
        out: Floats = x / (1 + np.exp(-x))
    return out


def gelu(x: Floats) -> Floats:
    """The tanh form of GELU."""
    cubed = x + np.float32(0.044715) * x * x * x
    out: Floats = np.float32(0.5) * x * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * cubed))
    return out


ACTIVATIONS = {"silu": silu, "gelu": gelu}
