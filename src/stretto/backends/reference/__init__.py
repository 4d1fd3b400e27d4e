"""The oracle: a decoder in NumPy, float32, weights dequantised. Slow, short, and meant to be read.

One forward serves everything: any batch, any positions, any views, any spec. What a row may attend to is a
dense mask here, made from the views or given by hand. Each kind of mixer and feed-forward is a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities, FusedRun, LoRA, NextHead
from stretto.backends.batch import Placement, find_changes, make_scales
from stretto.backends.reference import feed_forward, mixers
from stretto.backends.reference.feed_forward import dense, experts
from stretto.backends.reference.layer import (
    ACTIVATIONS,
    Changes,
    Floats,
    LayerWeights,
    Mask,
    Pass,
    cap,
    changed,
    gelu,
    rms_norm,
    rotate,
    silu,
)
from stretto.backends.reference.mixers import attend
from stretto.errors import InvalidRequest, Unsupported
from stretto.models.feed_forward import Dense, FeedForward
from stretto.models.mixers import (
    Attention,
    Beside,
    Convolution,
    DeltaNet,
    KimiDelta,
    Latent,
    Mamba,
    Mamba2,
    Mixer,
    TimeMix,
)
from stretto.models.sites import Kind
from stretto.models.spec import Layer, ModelSpec
from stretto.weights.adapters import Pair
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor

__all__ = ["ACTIVATIONS", "ReferenceBackend", "attend", "cap", "gelu", "rms_norm", "rotate", "silu"]


Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]


@dataclass
class Computed:
    """The results of one forward pass."""

    hidden: Floats  # float32[n, n_embd], after the last norm
    # Of each layer that attends: float32[n_head, n, n_cells]; empty unless asked for.
    attention: list[Floats]


class ReferenceBackend:
    """Runs a model in NumPy. `forward` is the protocol's; `compute` returns intermediate results."""

    name = "reference"
    precision = "exact"
    capabilities = Capabilities(attention=True, sites=True)
    active_threads = 1
    next_head: NextHead | None = None  # set by who opens the file, as is the next
    open_head: Callable[[Path], NextHead] | None = None

    def __init__(self, file: GGUF, spec: ModelSpec, n_cells: int, n_slots: int = 1) -> None:
        self.spec = spec
        self.n_cells = n_cells
        self.weights = {
            name: file.tensors[name].dequantize().reshape(shape) for name, shape in spec.tensors().items()
        }
        self.keys: list[Floats] = [
            np.zeros((n_cells, *(layer.kv or (0, 0))), np.float32) for layer in spec.layers
        ]
        self.values: list[Floats] = [
            np.zeros((n_cells, *(layer.v or (0, 0))), np.float32) for layer in spec.layers
        ]
        self.states: list[Floats] = [
            np.zeros((n_slots, layer.state_floats), np.float32) for layer in spec.layers
        ]
        self._adapters: dict[str, dict[str, Pair]] = {}
        self._vectors: dict[str, dict[int, Floats]] = {}
        self.cell_bytes = 4 * spec.kv_floats
        self.cell_layout = f"reference f32, {spec.kv_layout}"
        self.n_slots = n_slots if spec.recurrent else 0
        self.slot_bytes = 4 * spec.state_floats
        self.slot_layout = f"reference f32, {spec.state_layout}"

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab]."""
        return self.logits(self.hidden(batch), self._changes(batch, batch.wanted))

    def hidden(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_embd]."""
        computed = self.compute(batch, attention=len(batch.probes) > 0 or len(batch.watched) > 0)
        if len(batch.probes):
            probed = [weights[:, :, batch.probes].mean(axis=0) for weights in computed.attention]
            batch.received = np.mean(probed, axis=0, dtype=np.float32)
        batch.attention = [_row_of(computed.attention, batch, row) for row in batch.watched]
        return computed.hidden[batch.wanted]

    def logits(self, hidden: Floats, changes: Changes | None = None) -> Floats:
        """The output matrix applied to final hidden states."""
        name = "token_embd.weight" if self.spec.tied else "output.weight"
        logits: Floats = hidden @ self.weights[name].T
        logits = changed(logits, hidden, (changes or {}).get(name, []))
        if self.spec.output_bias:
            logits = logits + self.weights["output.bias"]
        logits = logits * np.float32(self.spec.logit_scale)
        return cap(logits, self.spec.logit_cap)

    def update(self, file: GGUF, is_new: Callable[[Tensor], bool]) -> str:
        """Take the new tensors of a file."""
        digest = sha256()
        for name, shape in self.spec.tensors().items():
            if is_new(file.tensors[name]):
                self.weights[name] = file.tensors[name].dequantize().reshape(shape)
                digest.update(name.encode() + b"\0" + self.weights[name].tobytes())
        return digest.hexdigest()

    def load_adapter(self, name: str, lora: LoRA) -> None:
        """Have an adapter ready."""
        self._adapters[name] = find_changes(self.spec, lora.pairs)
        self._vectors[name] = lora.vectors

    def unload_adapter(self, name: str) -> None:
        """Free an adapter."""
        del self._adapters[name], self._vectors[name]

    def _changes(self, batch: Batch, rows: Ints | slice = slice(None)) -> Changes:
        """What the adapters of a batch add to products of some of its rows."""
        found: dict[str, list[tuple[Floats, Pair]]] = {}
        for name, scales in make_scales(batch.mixes or ()).items():
            for matrix, pair in self._adapters[name].items():
                found.setdefault(matrix, []).append((scales[rows], pair))
        return found

    def project(self, name: str, rows: Floats) -> Floats:
        """float32[n, rows of the matrix]: what a projection makes of pooled hidden states."""
        part, w = self.spec.projections[name], LayerWeights(self.weights, 0, {}, prefix="")
        made = w.matmul(rows, name)
        return w.norm(part.norm, made if part.activation == "none" else ACTIVATIONS[part.activation](made))

    def compute(self, batch: Batch, mask: Mask | None = None, attention: bool = False) -> Computed:
        """Run a placed batch. `mask`, bool[n, n_cells], overrides which cells a row attends to."""
        spec, placement = self.spec, batch.placement
        if placement is None:
            raise InvalidRequest("the batch has no cells yet; call batch.place(cells) first")
        causal, given = None, mask is not None
        if mask is None:
            mask = self._mask(placement, placement.lengths)
            if spec.windowed_images and placement.causal is not None:
                causal = self._mask(placement, placement.causal)
        elif mask.shape != (len(batch), self.n_cells) or mask.dtype != bool or not mask.any(axis=1).all():
            raise InvalidRequest(
                f"mask must be bool[{len(batch)}, {self.n_cells}] with a cell for each row to see, "
                f"not {mask.dtype}{list(mask.shape)}",
                param="mask",
            )

        x = self.weights["token_embd.weight"][batch.tokens] * np.float32(spec.embedding_scale)  # [n, n_embd]
        for row, vector in batch.vectors.items():
            x[row] = vector[: spec.n_embd]
        whole = LayerWeights(self.weights, 0, {}, prefix="")
        if spec.token_types:
            x = x + whole["token_types.weight"][batch.types]
        if spec.learned_positions:
            x = x + whole["position_embd.weight"][batch.positions]
        x = whole.norm(spec.embedding_norm, x)
        run = Pass(
            batch,
            placement,
            mask,
            self.keys,
            self.values,
            self.states,
            self._stored,
            attention,
            causal=causal,
            given=given,
            changes=self._changes(batch),
        )
        if spec.per_layer is not None:
            run.inputs = feed_forward.inputs(spec.per_layer, whole, batch, x)
        if spec.streams is not None:
            x = feed_forward.spread(whole, x)
        x = run.tap(0, Kind.EMBEDDING, x)
        scales = make_scales(batch.mixes or ())
        for i, layer in enumerate(spec.layers):
            x = (self.layer if layer.streams is None else self._streams_layer)(i, layer, x, run)
            if i < spec.deepstack:
                for row, vector in batch.vectors.items():
                    x[row] += vector[(i + 1) * spec.n_embd : (i + 2) * spec.n_embd]
            for name, each in scales.items():
                if i in self._vectors[name]:
                    x = x + each[:, None] * self._vectors[name][i]
            x = run.tap(i, Kind.RESIDUAL, x)
        if spec.streams is not None:
            x = feed_forward.merge(whole, x)
        return Computed(whole.norm(spec.output_norm, x), run.attention)

    def _mask(self, placement: Placement, lengths: Ints) -> Mask:
        """bool[n, n_cells]: the first `lengths` cells of each row's view."""
        mask = np.zeros((len(lengths), self.n_cells), bool)
        for row, (view, length) in enumerate(zip(placement.view_of, lengths, strict=True)):
            mask[row, placement.views[view][:length]] = True
        return mask

    def _stored(self, x: Floats) -> Floats:
        """K or V as the cache keeps it: exactly."""
        return x

    def layer(self, i: int, layer: Layer, x: Floats, run: Pass) -> Floats:
        """x with what the layer's mixer and feed-forward add to it, and its input."""
        w = LayerWeights(self.weights, i, layer.slices(), changes=run.changes)
        scale, given = np.float32(layer.residual_scale), x
        normed = before = w.norm(layer.norm, x)
        if layer.parallel and layer.ffn_norm is not None:
            before = w.norm(layer.ffn_norm, x)
        if layer.mixer is not None:
            made = run.tap(i, Kind.MIXER_IN, normed)
            made = mix(layer.mixer, w, i, made, run)
            x = x + scale * w.norm(layer.post_norm, made)
            x = w.norm(layer.sum_norm, x)
        if layer.low_rank is not None:
            x = (x + feed_forward.low_rank(layer.low_rank, w, normed)) * np.float32(0.5**0.5)
        if layer.ffn is not None:
            normed = run.tap(i, Kind.FEED_IN, before if layer.parallel else w.norm(layer.ffn_norm, x))
            if isinstance(layer.ffn, Dense) and layer.ffn.shift:
                normed = mixers.mix_channels(layer.ffn, w, i, normed, run)
            made = run.tap(i, Kind.FEED_OUT, feed(layer.ffn, w, i, normed, given, run))
            x = x + scale * w.norm(layer.post_ffn_norm, made)
            x = w.norm(layer.ffn_sum_norm, x)
        if layer.input is not None and run.inputs is not None:
            x = x + feed_forward.from_input(layer.input, w, x, run.inputs[i])
        return x * w["layer_output_scale.weight"] if layer.output_scale else x

    def _streams_layer(self, i: int, layer: Layer, xs: Floats, run: Pass) -> Floats:
        """The streams float32[n_stream, n, n_embd] after a layer that computes the first one."""
        w = LayerWeights(self.weights, i, {})
        predicted = feed_forward.predict(layer, w, xs)
        first = self.layer(i, replace(layer, input=None), predicted[0], run)
        xs = feed_forward.correct(layer, w, predicted, first)
        if layer.input is not None and run.inputs is not None:
            scaled = xs[0] * w["altup_correct_scale.weight"]
            xs[1:] += feed_forward.from_input(layer.input, w, scaled, run.inputs[i])
        return xs

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """Only the native backend has a loop of its own."""
        raise Unsupported(f"the {self.name} backend has no fused loop; backend='native' has")

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy K and V of cells `source` to cells `target`."""
        for plane in (*self.keys, *self.values):
            plane[target] = plane[source]

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Rotate keys by `delta` positions: rotations add up; the magnitude is in the keys already."""
        turns = np.full(len(cells), delta)
        for i, (keys, layer) in enumerate(zip(self.keys, self.spec.layers, strict=True)):
            rope = getattr(layer.attention or layer.mixer, "rope", None)
            if rope is None or layer.kv is None:
                continue
            # What stands before the rotated part of a compressed key stays; weights after the rope come off.
            first = getattr(layer.mixer, "rank", 0)
            weights = self._after_rope(i, layer)
            turned = rotate(keys[cells, :, first:] / weights, turns, replace(rope, magnitude=1.0))
            keys[cells, :, first:] = turned * weights
            indexer = getattr(layer.mixer, "indexer", None)
            if indexer is not None:
                index = self.values[i]
                index[cells] = rotate(index[cells], turns, replace(indexer.rope, magnitude=1.0))

    def _after_rope(self, i: int, layer: Layer) -> Floats:
        """What the layer multiplies keys with once they are rotated."""
        attention = layer.attention
        norm = attention.k_norm if attention is not None and attention.norm_after_rope else None
        if norm is None or not norm.weight:
            return np.ones(1, np.float32)
        weights = self.weights[f"blk.{i}.{norm.name}.weight"]
        return np.where(weights == 0, np.float32(1), weights)

    def read_cells(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], in the order [n][K, V][layer][head]."""
        rows = [plane[cells].reshape(len(cells), -1) for plane in (*self.keys, *self.values)]
        return np.concatenate(rows, axis=1).view(np.uint8).reshape(len(cells), self.cell_bytes)

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """Write K and V of `cells`, in the format of `read_cells`."""
        rows, at = np.ascontiguousarray(data).view(np.float32), 0
        for plane in (*self.keys, *self.values):
            size = plane.shape[1] * plane.shape[2]
            plane[cells] = rows[:, at : at + size].reshape(len(cells), *plane.shape[1:])
            at += size

    def copy_slots(self, source: Ints, target: Ints) -> None:
        """Copy the states of slots `source` to slots `target`."""
        for states in self.states:
            states[target] = states[source]

    def clear_slots(self, slots: Ints) -> None:
        """Set the states of `slots` to that of no tokens."""
        for states in self.states:
            states[slots] = 0

    def read_slots(self, slots: Ints) -> Bytes:
        """uint8[n, slot_bytes], layer by layer."""
        rows = np.concatenate([states[slots] for states in self.states], axis=1)
        return rows.view(np.uint8).reshape(len(slots), self.slot_bytes)

    def write_slots(self, slots: Ints, data: Bytes) -> None:
        """Write the states of `slots`, in the format of `read_slots`."""
        rows, at = np.ascontiguousarray(data).view(np.float32), 0
        for states in self.states:
            states[slots] = rows[:, at : at + states.shape[1]]
            at += states.shape[1]

    def close(self) -> None:
        """Free the weights and the cache."""
        if self.next_head is not None:
            self.next_head.close()
        self.weights = {}
        self.keys, self.values, self.states = [], [], []


MIXERS: dict[type, Callable[..., Floats]] = {
    Attention: mixers.mix_attention,
    Latent: mixers.mix_latent,
    DeltaNet: mixers.delta_net,
    KimiDelta: mixers.kimi_delta,
    Convolution: mixers.short_convolution,
    Mamba: mixers.mamba,
    Mamba2: mixers.mamba2,
    TimeMix: mixers.time_mix,
}


def mix(mixer: Mixer, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """The output of a layer's mixer for normalised x, by its kind."""
    if isinstance(mixer, Beside):
        other = mix_one(mixer.other, w, i, x, run)
        return mix(mixer.attention, w, i, x, run) + run.tap(i, Kind.RECURRENT_OUT, other)
    return run.tap(i, Kind.MIXER_OUT, mix_one(mixer, w, i, x, run))


def mix_one(mixer: Mixer, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """The output of a mixer that is not two."""
    return MIXERS[type(mixer)](mixer, w, i, x, run)


def feed(ffn: FeedForward, w: LayerWeights, i: int, x: Floats, given: Floats, run: Pass) -> Floats:
    """The output of a layer's feed-forward for normalised x, by its kind; `given`: what the layer got."""
    return dense(ffn, w, x) if isinstance(ffn, Dense) else experts(ffn, w, i, x, given, run)


def _row_of(attention: list[Floats], batch: Batch, row: int) -> Floats:
    """float32[n_layer, n_head, n]: a row's attention to each cell of its view."""
    placement = batch.placement
    if placement is None:
        raise InvalidRequest("the batch has no cells yet; call batch.place(cells) first")
    view = placement.views[placement.view_of[row]][: placement.lengths[row]]
    return np.stack([weights[:, row, view] for weights in attention])
