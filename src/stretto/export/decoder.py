"""A whole decoder as an ONNX model, from its spec and its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal, get_args

import onnx

from stretto.export.cells import CellsForm
from stretto.export.checks import check
from stretto.export.embedding import Embedding
from stretto.export.graph import DataFile, Graph
from stretto.export.layers import Form, Parts, attention, dense
from stretto.export.norms import Norms
from stretto.export.past import GroupQueryForm, PlainForm
from stretto.export.products import Products, least_bits
from stretto.export.rope import Ropes
from stretto.export.weights import Weights
from stretto.models.feed_forward import Dense
from stretto.models.mixers import Attention
from stretto.models.parts import Norm
from stretto.models.spec import Layer, ModelSpec
from stretto.weights.gguf import GGUF

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
        return graph.scaled(norms.apply(norm, y, prefix, n_embd), layer.residual_scale)

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
