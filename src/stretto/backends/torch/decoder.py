"""A model on the device: its layers, made from the spec, and one function that runs a pass through them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stretto.backends.torch import cuda
from stretto.backends.torch.activations import activate
from stretto.backends.torch.attention_layer import AttentionLayer, LatentLayer
from stretto.backends.torch.cells import DeviceCells
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.feed_layer import DenseLayer, ExpertsLayer, feed_layer
from stretto.backends.torch.host_experts import HostExperts, LayerOnHost
from stretto.backends.torch.matrix import Prefetch, product
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.recurrent_layer import RecurrentLayer
from stretto.backends.torch.rowwise import NormWeights, add_norm, cap, norm
from stretto.backends.torch.streams_layer import (
    InputLayer,
    LowRankLayer,
    PerLayerInputs,
    StreamsLayer,
    WholeStreams,
)
from stretto.backends.torch.weights import LayerWeights, Weights
from stretto.models.mixers import Attention, Beside, Latent, Mixer
from stretto.models.spec import Layer

Mixing = Callable[[Tensor, Pass], Tensor]


class Residual:
    """The sum that layers add to: float32[n, n_embd].

    What is added waits until the next norm, which is then one kernel with the addition.
    """

    def __init__(self, x: Tensor, dtype: torch.dtype, norms_alone: bool = False) -> None:
        self._x, self._dtype, self._norms_alone = x, dtype, norms_alone
        self._pending: tuple[Tensor, float, NormWeights | None] | None = None

    def add(self, y: Tensor, scale: float = 1.0, post: NormWeights | None = None) -> None:
        """Add scale × y, y normalised by `post` first."""
        self.sum()
        self._pending = y, scale, post

    def sum(self) -> Tensor:
        """What has been added up."""
        if self._pending is not None:
            add_norm(self._x, *self._take(), None, self._dtype)
        return self._x

    def normed(self, weights: NormWeights | None, prefetch: Prefetch | None = None) -> Tensor:
        """The sum, normalised."""
        if weights is None:
            return self.sum().to(self._dtype)
        if self._norms_alone and weights.weight is not None:
            return cuda.add_rms(self._x, self._take()[0], weights.weight, weights.part.eps, self._dtype)
        return add_norm(self._x, *self._take(), weights, self._dtype, prefetch=prefetch)

    def become_normed(self, weights: NormWeights | None) -> None:
        """Be normalised from now on, as encoders are."""
        if weights is not None:
            add_norm(self._x, *self._take(), weights, torch.float32, keep=True)

    def become(self, x: Tensor) -> None:
        """Be another sum."""
        self._x, self._pending = x, None

    def _take(self) -> tuple[Tensor | None, float, NormWeights | None]:
        pending, self._pending = self._pending, None
        return pending or (None, 1.0, None)


class DecoderLayer:
    """One layer: what mixer and feed-forward add."""

    def __init__(
        self, layer: Layer, w: LayerWeights, index: int, n_embd: int, on_host: LayerOnHost | None = None
    ) -> None:
        self.layer, self.index = layer, index
        self.norm, self.post_norm = w.norm(layer.norm, n_embd), w.norm(layer.post_norm, n_embd)
        self.sum_norm = w.norm(layer.sum_norm, n_embd)
        self.mixer = None if layer.mixer is None else _mixer(layer.mixer, w, index, n_embd)
        self.low_rank = None if layer.low_rank is None else LowRankLayer(layer.low_rank, w, n_embd)
        self.ffn_norm, self.post_ffn_norm = (
            w.norm(layer.ffn_norm, n_embd),
            w.norm(layer.post_ffn_norm, n_embd),
        )
        self.ffn_sum_norm = w.norm(layer.ffn_sum_norm, n_embd)
        self.ffn = None if layer.ffn is None else feed_layer(layer.ffn, w, n_embd, on_host)
        self.input = None if layer.input is None else InputLayer(layer.input, w, n_embd)
        self.streams = None if layer.streams is None else StreamsLayer(layer.streams, w, n_embd)
        self.output_scale = w.vector("layer_output_scale.weight", 1) if layer.output_scale else None

    def run(self, x: Residual, run: Pass) -> None:
        """Add to x what the layer makes of it."""
        layer, scale = self.layer, self.layer.residual_scale
        prefetch = run.prefetch(self.mixer.projection) if isinstance(self.mixer, AttentionLayer) else None
        before, scores = None, None
        if isinstance(self.ffn, ExpertsLayer) and self.ffn.ffn.routing.early:
            scores = self.ffn.scores(x.sum())
        if layer.parallel and self.ffn_norm is not None:
            before = norm(x.sum(), self.ffn_norm, self.norm_dtype)
        normed = x.normed(self.norm, prefetch)
        before = normed if before is None else before
        if self.mixer is not None:
            x.add(self.mixer(normed, run), scale, self.post_norm)
            x.become_normed(self.sum_norm)
        if self.low_rank is not None:
            x.add(self.low_rank(normed))
            x.become(x.sum() * 0.5**0.5)
        if self.ffn is not None:
            prefetch = run.prefetch(self.ffn.inner) if isinstance(self.ffn, DenseLayer) else None
            normed = before if layer.parallel else x.normed(self.ffn_norm, prefetch)
            ffn = self.ffn
            made = ffn(normed, run, scores) if isinstance(ffn, ExpertsLayer) else ffn(normed)
            x.add(made, scale, self.post_ffn_norm)
            x.become_normed(self.ffn_sum_norm)
        if self.input is not None and self.streams is None and run.inputs is not None:
            x.add(self.input(x.sum(), run.inputs[self.index]))
        if self.output_scale is not None:
            x.become(x.sum() * self.output_scale)

    def run_streams(self, xs: Tensor, run: Pass) -> Tensor:
        """The streams float32[n_stream, n, n_embd] after a layer that computes the first one."""
        assert self.streams is not None
        predicted = self.streams.predict(xs)
        first = Residual(predicted[0].clone(), self.norm_dtype)
        self.run(first, run)
        xs = self.streams.correct(predicted, first.sum())
        if self.input is not None and run.inputs is not None:
            xs[1:] += self.input(xs[0] * self.streams.scale, run.inputs[self.index])
        return xs

    norm_dtype = torch.float32  # of normalised rows; set by the decoder


class Decoder:
    """All layers of a model, its embeddings and its output; `host` has the experts that a CPU computes."""

    norms_alone = False  # plain RMS norms are `cuda.add_rms`: chain.py has their bits

    def __init__(self, weights: Weights, memory: DeviceCells, host: HostExperts | None = None) -> None:
        self.spec, self.dtype, self.memory = weights.spec, weights.dtype, memory
        spec, whole, width = self.spec, weights.whole, self.spec.n_embd
        self.embeddings = whole.matrix({"token_embd": spec.n_vocab}, width)
        self.positions, self.types = (
            whole.matrix({name: rows}, width) if rows else None
            for name, rows in (("position_embd", spec.learned_positions), ("token_types", spec.token_types))
        )
        self.embedding_norm = whole.norm(spec.embedding_norm, width)
        self.per_layer = None
        if spec.per_layer is not None:
            self.per_layer = PerLayerInputs(spec.per_layer, whole, spec)
        self.streams = None if spec.streams is None else WholeStreams(spec.streams, whole, width)
        self.layers = [
            DecoderLayer(layer, weights.layer(i), i, width, None if host is None else host.layer(i))
            for i, layer in enumerate(spec.layers)
        ]
        for layer in self.layers:
            layer.norm_dtype = self.dtype
        self.output_norm = whole.norm(spec.output_norm, width)
        self.output = self.embeddings if spec.tied else whole.matrix({"output": spec.n_vocab}, width)
        self.output_bias = whole.vector("output.bias", spec.n_vocab) if spec.output_bias else None
        self.projections = {
            name: (part, whole.matrix({name: part.rows}, part.columns), whole.biases({name: part.rows}),
                   whole.norm(part.norm, part.rows))
            for name, part in spec.projections.items()
        }  # fmt: skip
        for i, made in enumerate(self.layers):
            memory.after_rope |= _weights_after_rope(i, made)

    def run(self, run: Pass) -> Tensor:
        """Final hidden states dtype[n, n_embd]; K, V and states of all rows are written."""
        x = self.embed(run)
        if self.per_layer is not None:
            run.inputs = self.per_layer(x, run)
        if self.streams is not None:
            xs = self.streams.spread(x)
            for layer in self.layers:
                xs = layer.run_streams(xs, run)
            return norm(self.streams.merge(xs), self.output_norm, self.dtype)
        residual = Residual(x, self.dtype, self.norms_alone)
        for i, layer in enumerate(self.layers):
            layer.run(residual, run)
            if i < self.spec.deepstack and run.vectors is not None:
                rows, vectors = run.vectors
                width = self.spec.n_embd
                residual.sum()[rows] += vectors[:, (i + 1) * width : (i + 2) * width]
        return residual.normed(self.output_norm, run.prefetch(self.output))

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """float32[n, n_vocab] of final hidden states."""
        return self.scaled(product(hidden, self.output, out=out, out_dtype=torch.float32))

    def scaled(self, made: Tensor) -> Tensor:
        """Products with the output matrix as logits."""
        if self.output_bias is not None:
            made += self.output_bias
        if self.spec.logit_scale != 1.0:
            made *= self.spec.logit_scale
        if self.spec.logit_cap:
            made.copy_(cap(made, self.spec.logit_cap))
        return made

    def project(self, name: str, rows: Tensor) -> Tensor:
        """float32[n, rows of the matrix]: what a projection makes of pooled hidden states."""
        part, matrix, bias, weights = self.projections[name]
        made = product(rows.to(self.dtype), matrix, bias=bias, out_dtype=torch.float32)
        if part.activation != "none":
            made = activate(part.activation, made)
        return norm(made, weights, torch.float32)

    def embed(self, run: Pass) -> Tensor:
        """float32[n, n_embd]: what the layers begin with."""
        spec = self.spec
        x = self.embeddings.row(run.tokens)
        if spec.embedding_scale != 1.0:
            x = x * spec.embedding_scale
        if run.vectors is not None:
            rows, vectors = run.vectors
            x[rows] = vectors[:, : spec.n_embd]
        if self.types is not None:
            types = run.types if run.types is not None else torch.zeros_like(run.tokens)
            x = x + self.types.row(types)
        if self.positions is not None:
            x = x + self.positions.row(run.positions)
        return norm(x, self.embedding_norm, torch.float32).contiguous()


def _mixer(mixer: Mixer, w: LayerWeights, index: int, n_embd: int) -> Mixing:
    if isinstance(mixer, Attention):
        return AttentionLayer(mixer, w, index, n_embd)
    if isinstance(mixer, Latent):
        return LatentLayer(mixer, w, index, n_embd)
    if isinstance(mixer, Beside):
        attend = AttentionLayer(mixer.attention, w, index, n_embd)
        other = RecurrentLayer(mixer.other, w, index, n_embd)
        return lambda x, run: attend(x, run).float() + other(x, run).float()
    return RecurrentLayer(mixer, w, index, n_embd)


def _weights_after_rope(index: int, made: DecoderLayer) -> dict[int, Tensor]:
    """What the layer multiplies keys with once they are rotated, if it does."""
    attention = made.layer.attention
    if attention is None or not attention.norm_after_rope or not isinstance(made.mixer, AttentionLayer):
        return {}
    weights = made.mixer.k_norm
    if weights is None or weights.weight is None:
        return {}
    return {index: torch.where(weights.weight == 0, 1.0, weights.weight)}
