"""A whole decoder as an ONNX model, from its spec and its weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import numpy as np
import onnx

from stretto.errors import Unsupported
from stretto.export.forms import CellsForm, GroupQueryForm, PlainForm
from stretto.export.graph import DataFile, Graph
from stretto.export.layers import Form, Norms, Parts, Ropes, attention, dense
from stretto.export.products import ZERO, Blocks, Encoded, Products, Weights, least_bits
from stretto.models.feed_forward import Dense, Experts
from stretto.models.mixers import Attention, Latent
from stretto.models.parts import Norm
from stretto.models.spec import Layer, ModelSpec
from stretto.weights.gguf import GGUF

# The embedding of tokens, and the logits, which often have the same matrix: it is in the model once then.

LEAST_BITS = 8  # of both matrices, unless the file has fewer
NAME = "token_embd"


class Embedding:
    """Adds the first and the last step of a model to a graph."""

    def __init__(self, graph: Graph, weights: Weights, products: Products, spec: ModelSpec) -> None:
        self._graph = graph
        self._weights = weights
        self._products = products
        self._spec = spec

    def _encoded(self, name: str) -> Encoded:
        return self._products.encode(self._weights.matrix(f"{name}.weight"), LEAST_BITS)

    def embed(self, tokens: str) -> str:
        """float32[batch, n, n_embd] of int64[batch, n]."""
        graph, encoded = self._graph, self._encoded(NAME)
        if isinstance(encoded, Blocks):
            x = self._from_blocks(tokens, encoded)
        elif self._products.precision == "f16":
            half = graph.constant(f"{NAME}.rows", encoded.astype(np.float16))
            x = graph.cast(graph.op("Gather", [half, tokens]), "float32")
        else:
            x = graph.op("Gather", [graph.constant(f"{NAME}.rows", encoded), tokens])
        return graph.scale(x, self._spec.embedding_scale)

    def _from_blocks(self, tokens: str, blocks: Blocks) -> str:
        """The rows of the tokens, dequantised by standard operators."""
        graph = self._graph
        q = graph.op("Gather", [graph.constant(f"{NAME}.blocks", blocks.pack()), tokens])
        if blocks.bits == 4:  # [batch, n, blocks, size / 2] → [batch, n, blocks, size / 2, 2]
            low = graph.op("BitwiseAnd", [q, graph.number(15, "uint8")])
            high = graph.op("BitShift", [q, graph.number(4, "uint8")], direction="RIGHT")
            pair = [graph.op("Unsqueeze", [half, graph.integers(-1)]) for half in (low, high)]
            q = graph.reshape(graph.op("Concat", pair, axis=-1), 0, 0, blocks.q.shape[1], blocks.size)
        x = graph.op("Sub", [graph.cast(q, "float32"), graph.number(float(ZERO[blocks.bits]))])
        x = graph.op("Mul", [x, self._rows("scale", blocks.scale, tokens)])
        if blocks.offset is not None:
            x = graph.op("Add", [x, self._rows("offset.rows", blocks.offset, tokens)])
        return graph.reshape(x, 0, 0, -1)

    def _rows(self, kind: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], tokens: str) -> str:
        """float32[batch, n, blocks, 1]: a number for each block of the tokens' rows."""
        graph = self._graph
        rows = graph.op("Gather", [graph.constant(f"{NAME}.{kind}", values), tokens])
        return graph.op("Unsqueeze", [rows, graph.integers(-1)])

    def logits(self, x: str) -> str:
        """float32[batch, n, n_vocab] of final hidden states, as the output "logits"."""
        spec, graph = self._spec, self._graph
        y = self._output(x)
        y = graph.cap(graph.scale(y, spec.logit_scale), spec.logit_cap)
        return graph.op("Identity", [y], output="logits")

    def _output(self, x: str) -> str:
        graph, spec = self._graph, self._spec
        name = NAME if spec.tied else "output"
        if not graph.has(f"{name}.rows"):  # blocks are shared by their name
            return self._products.product(x, name, self._encoded(name))
        w = graph.op("Transpose", [f"{name}.rows"], perm=[1, 0])
        if self._products.precision == "f16":
            return graph.cast(graph.op("MatMul", [graph.cast(x, "float16"), w]), "float32")
        return graph.op("MatMul", [x, w])


# What of a spec can be exported; the rest is refused by its name.


def check(spec: ModelSpec) -> None:
    """Raise `Unsupported` for the first part of a spec that cannot be exported."""
    whole = {
        "inputs of each layer": spec.per_layer is not None,
        "attention in both directions": not spec.causal,
        "learned positions": spec.learned_positions > 0,
        "a bias of logits": spec.output_bias,
        "types of tokens": spec.token_types > 0,
        "a norm of embeddings": spec.embedding_norm is not None,
        "scores of a text": spec.classifier is not None,
    }
    for words, there in whole.items():
        if there:
            raise _refused(spec, words)
    for i, layer in enumerate(spec.layers):
        part = next(_parts(layer), None)
        if part is not None:
            raise _refused(spec, f"{part} (layer {i})")


def _parts(layer: Layer) -> Iterator[str]:
    """The parts of a layer that cannot be exported, in words."""
    if layer.recurrent:
        yield layer.recurrent
    elif isinstance(layer.mixer, Latent):
        yield "sparse attention by an indexer" if layer.mixer.is_sparse else "latent attention"
    if isinstance(layer.ffn, Experts):
        yield "a mixture of experts"
    if isinstance(layer.ffn, Dense) and layer.ffn.cutoff is not None:
        yield "a feed-forward whose gates are mostly 0"
    if isinstance(layer.ffn, Dense) and layer.ffn.xielu:
        yield "the xIELU activation"
    if isinstance(layer.ffn, Dense) and layer.ffn.inner_norm is not None:
        yield "a norm within the feed-forward"
    if layer.parallel and layer.ffn_norm is not None:
        yield "a norm of its own for a feed-forward beside attention"
    if isinstance(layer.mixer, Attention):
        if layer.mixer.sinks:
            yield "attention sinks"
        if layer.mixer.clip:
            yield "a limit of q, k and v"
        if layer.mixer.mixed_norm is not None:
            yield "a norm of attention's result"
        if layer.mixer.chunked:
            yield "attention in chunks"
        if layer.mixer.alibi:
            yield "scores that fall with the distance (ALiBi)"
        if layer.mixer.gate:
            yield "a gate of attention"
        if layer.mixer.shared is not None:
            yield "K and V of another layer"
    named = {"low_rank": "low-rank residuals", "input": "an input of its own", "streams": "several streams"}
    named |= {"sum_norm": "a norm of sums", "ffn_sum_norm": "a norm of sums"}
    yield from (words for name, words in named.items() if getattr(layer, name) is not None)


def _refused(spec: ModelSpec, part: str) -> Unsupported:
    return Unsupported(
        f"{spec.architecture} cannot be exported to ONNX: there is no form for {part}; "
        "backend='native' runs it from its own file",
        param="model",
        value=spec.architecture,
    )


Precision = Literal["f32", "f16", "int8", "int4"]
FormName = Literal["gqa", "plain", "cells"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
FORMS: dict[str, type[PlainForm] | type[CellsForm]] = {
    form.name: form for form in (GroupQueryForm, PlainForm, CellsForm)
}
BLOCKED_OPSET = 21  # the first one whose standard operators know blocks

Progress = Callable[[int, int], None]  # layers done, of how many


def build(
    file: GGUF,
    spec: ModelSpec,
    precision: str,
    form_name: str,
    *,
    data: DataFile | None = None,
    progress: Progress | None = None,
) -> onnx.ModelProto:
    """The model of a spec; its context is the spec's. Large weights go to `data`, if there is one."""
    check(spec)
    graph, weights = Graph(data), Weights(file, spec)
    kind = FORMS[form_name]
    ropes = Ropes(graph, spec.context_length, kind.plain)
    form: Form = kind(graph, ropes, precision == "f16")
    products = Products(graph, precision, form.plain, least_bits(file.tensors.values()))
    parts = Parts(graph, weights, products, Norms(graph, weights, form.plain), ropes, form)
    embedding = Embedding(graph, weights, products, spec)
    x, addend = embedding.embed(form.tokens), None
    for i, layer in enumerate(spec.layers):
        if progress is not None:
            progress(i, spec.n_layer)
        x, addend = _layer(parts, i, layer, x, addend, spec.n_embd)
    x, _ = parts.norms.add_and_apply(spec.output_norm, x, addend, "", spec.n_embd)
    embedding.logits(form.hidden(x))
    form.finish(spec.n_vocab)
    blocked = form.plain and precision.startswith("int")
    return graph.model(
        spec.architecture, max(form.opset, BLOCKED_OPSET if blocked else 0), _metadata(spec, precision, form)
    )


def _layer(
    parts: Parts, i: int, layer: Layer, x: str, addend: str | None, n_embd: int
) -> tuple[str, str | None]:
    """A layer: the residual before its last part, and what is still to be added to it."""
    graph, norms, prefix = parts.graph, parts.norms, f"blk.{i}."

    def added(norm: Norm | None, y: str) -> str:
        return graph.scale(norms.apply(norm, y, prefix, n_embd), layer.residual_scale)

    normed, x = norms.add_and_apply(layer.norm, x, addend, prefix, n_embd)
    addend = None
    if isinstance(layer.mixer, Attention):
        addend = added(layer.post_norm, attention(parts, i, layer.mixer, normed))
    if isinstance(layer.ffn, Dense):
        if not layer.parallel:
            normed, x = norms.add_and_apply(layer.ffn_norm, x, addend, prefix, n_embd)
        more = added(layer.post_ffn_norm, dense(parts, i, layer.ffn, normed))
        addend = graph.op("Add", [addend, more]) if layer.parallel and addend is not None else more
    if layer.output_scale:
        x = x if addend is None else graph.op("Add", [x, addend])
        scale = graph.constant(
            f"{prefix}layer_output_scale", parts.weights.vector(f"{prefix}layer_output_scale.weight")
        )
        x, addend = graph.op("Mul", [x, scale]), None
    return x, addend


def _metadata(spec: ModelSpec, precision: str, form: Form) -> dict[str, str]:
    """Facts that a program cannot see in the graph: what is in the cells, and the ropes of the keys."""
    layers: list[dict[str, object] | None] = []
    for layer in spec.layers:
        mixer = layer.attention
        if mixer is None:
            layers.append(None)
            continue
        rope = mixer.rope
        layers.append(
            {
                "heads": mixer.n_head,
                "kv_heads": mixer.n_kv_head,
                "head_size": mixer.head_size,
                "window": mixer.window,
                "frequencies": None if rope is None else list(rope.frequencies),
                "norm_after_rope": mixer.norm_after_rope,
            }
        )
    facts = {"architecture": spec.architecture, "context_length": spec.context_length, "layers": layers}
    return {
        "stretto.form": form.name,
        "stretto.precision": precision,
        "stretto.model": json.dumps(facts, separators=(",", ":")),
    }
