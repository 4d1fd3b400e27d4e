"""What of a spec can be exported; the rest is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator

from stretto.errors import Unsupported
from stretto.models.feed_forward import Dense, Experts
from stretto.models.mixers import Attention, Latent
from stretto.models.spec import Layer, ModelSpec


def check(spec: ModelSpec) -> None:
    """Raise `Unsupported` for the first part of a spec that cannot be exported."""
    whole = {
        "inputs of each layer": spec.per_layer is not None,
        "attention in both directions": not spec.causal,
        "learned positions": spec.learned_positions > 0,
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
        yield "latent attention"
    if isinstance(layer.ffn, Experts):
        yield "a mixture of experts"
    if isinstance(layer.ffn, Dense) and layer.ffn.cutoff is not None:
        yield "a feed-forward whose gates are mostly 0"
    if isinstance(layer.mixer, Attention):
        if layer.mixer.sinks:
            yield "attention sinks"
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
