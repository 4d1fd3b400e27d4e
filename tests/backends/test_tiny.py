"""Tiny random models of every architecture, against the logits of transformers.

Both sides compute in float32 and differ by 1.1e-5 at most, in logits of about unit variance. So the
tolerance is 5e-5, and an error of any constant or piece that a spec has must show at ten times that.
"""

from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.reference import ReferenceBackend
from stretto.backends.reference.layer import LayerWeights
from stretto.models.rope import plain_frequencies
from tiny_models import (
    NAMES,
    TEXTS,
    answer,
    text_logits,
    tiny_backend,
    tiny_spec,
    with_layers,
    with_mixers,
)

pytestmark = pytest.mark.golden

TOLERANCE = 5e-5

LLAMA = ["llama", "llama-linear", "llama-llama3", "llama-yarn"]
QWEN2 = ["qwen2", "qwen2-yarn"]
GEMMA = ["gemma3", "gemma3-linear"]
SCALED = ["llama-linear", "llama-llama3", "llama-yarn", "qwen2-yarn", "gemma3-linear"]
YARN = ["llama-yarn", "qwen2-yarn"]


def difference(backend, name, text):
    """The largest of all positions and tokens."""
    return np.abs(text_logits(backend, answer(name, f"tokens.{text}")) - answer(name, f"logits.{text}")).max()


def test_every_architecture_is_there():
    assert {tiny_spec(name).architecture for name in NAMES} == {"gemma3", "llama", "qwen2", "qwen3"}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_logits(name, text):
    assert 0.3 < answer(name, f"logits.{text}").std() < 3
    assert difference(tiny_backend(name), name, text) < TOLERANCE


# -- planted errors --


def with_ropes(spec, change, windowed=(False, True)):
    """The spec with `change` made to the ropes of its global layers, its windowed ones, or both."""
    layers = (
        replace(layer, mixer=replace(layer.mixer, rope=change(layer.mixer.rope)))
        if (layer.mixer.window is not None) in windowed
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def with_windows(spec, change):
    layers = (
        layer
        if layer.mixer.window is None
        else replace(layer, mixer=replace(layer.mixer, window=change(layer.mixer.window)))
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


def with_eps(spec, change):
    """The spec with another epsilon in every norm of its layers and at its end."""

    def changed(norm):
        return norm and replace(norm, eps=change(norm.eps))

    layers = []
    for layer in spec.layers:
        mixer = replace(layer.mixer, q_norm=changed(layer.mixer.q_norm), k_norm=changed(layer.mixer.k_norm))
        names = "norm", "ffn_norm", "post_norm", "post_ffn_norm"
        norms = {name: changed(getattr(layer, name)) for name in names}
        layers.append(replace(layer, mixer=mixer, **norms))
    return replace(spec, layers=tuple(layers), output_norm=changed(spec.output_norm))


OTHER_ACTIVATION = {"silu": "gelu", "gelu": "silu"}


def plain(base):
    """The rope unscaled, with this base."""
    return lambda rope: replace(
        rope, frequencies=tuple(plain_frequencies(base, 2 * len(rope.frequencies)).tolist())
    )


def slower(factor):
    return lambda rope: replace(rope, frequencies=tuple(f / factor for f in rope.frequencies))


def other_pairs(rope):
    return replace(rope, pairs={"halves": "adjacent", "adjacent": "halves"}[rope.pairs])


def rotate_layers(spec, by):
    """The pattern of windows, begun elsewhere."""
    return replace(spec, layers=spec.layers[by:] + spec.layers[:by])


SPEC_ERRORS = {
    "eps at its usual value": (NAMES, lambda s: with_eps(s, lambda _: 1e-6)),
    "eps doubled": (NAMES, lambda s: with_eps(s, lambda eps: 2 * eps)),
    "rope base at its usual value": (
        ["llama", "qwen2", "qwen3", "gemma3"],
        lambda s: with_ropes(s, plain(10_000.0), [False]),
    ),
    "local rope base at its usual value": (GEMMA, lambda s: with_ropes(s, plain(10_000.0), [True])),
    "one rope for all layers": (GEMMA, lambda s: with_ropes(s, lambda _: s.layers[5].mixer.rope)),
    "rope scaling ignored": (
        SCALED,
        lambda s: with_ropes(s, plain(2000.0 if s.architecture == "gemma3" else 5000.0), [False]),
    ),
    "rope scaling of another factor": (SCALED, lambda s: with_ropes(s, slower(1.25), [False])),
    "rope scaled in windowed layers": (["gemma3-linear"], lambda s: with_ropes(s, slower(8.0), [True])),
    "yarn ramp ignored": (
        YARN,
        lambda s: with_ropes(s, lambda r: slower(4.0)(plain(5000.0)(r))),
    ),
    "magnitude ignored": (YARN, lambda s: with_ropes(s, lambda r: replace(r, magnitude=1.0))),
    "magnitude invented": (
        ["llama", "llama-linear", "llama-llama3", "qwen2", "qwen3", *GEMMA],
        lambda s: with_ropes(s, lambda r: replace(r, magnitude=1.1)),
    ),
    "pairs swapped": (NAMES, lambda s: with_ropes(s, other_pairs)),
    "attention scale of the embedding's share": (
        ["llama", "llama-llama3", "llama-yarn", "qwen3", "gemma3"],
        lambda s: with_mixers(s, scale=(s.n_embd / s.n_head) ** -0.5),
    ),
    "attention not scaled": (NAMES, lambda s: with_mixers(s, scale=1.0)),
    "attention scale off by 1 %": (NAMES, lambda s: with_mixers(s, scale=1.01 * s.layers[0].mixer.scale)),
    "embeddings not scaled": (GEMMA, lambda s: replace(s, embedding_scale=1.0)),
    "embeddings scaled": (
        sorted(set(NAMES) - set(GEMMA)),
        lambda s: replace(s, embedding_scale=s.n_embd**0.5),
    ),
    "post-norms dropped": (GEMMA, lambda s: with_layers(s, post_norm=None, post_ffn_norm=None)),
    "q and k norms dropped": (["qwen3", *GEMMA], lambda s: with_mixers(s, q_norm=None, k_norm=None)),
    "q and k normed after the rope": (["qwen3", *GEMMA], lambda s: with_mixers(s, norm_after_rope=True)),
    "biases dropped": (QWEN2, lambda s: with_mixers(s, bias=False)),
    "activation swapped": (
        NAMES,
        lambda s: with_layers(
            s, ffn=replace(s.layers[0].ffn, activation=OTHER_ACTIVATION[s.layers[0].ffn.activation])
        ),
    ),
    "output matrix tied": (
        ["llama", "llama-yarn", "qwen2-yarn"],
        lambda s: replace(s, tied=True),
    ),
    "window one larger": (GEMMA, lambda s: with_windows(s, lambda w: w + 1)),
    "window one smaller": (GEMMA, lambda s: with_windows(s, lambda w: w - 1)),
    "no window": (GEMMA, lambda s: with_windows(s, lambda _: None)),
    "global layer one early": (GEMMA, lambda s: rotate_layers(s, 1)),
    "global layer one late": (GEMMA, lambda s: rotate_layers(s, -1)),
}


def swapped(one, other):
    """A layer's two norms, each where the other belongs."""

    def plant(backend):
        for i in range(backend.spec.n_layer):
            a, b = f"blk.{i}.{one}.weight", f"blk.{i}.{other}.weight"
            backend.weights[a], backend.weights[b] = backend.weights[b], backend.weights[a]

    return plant


def without_one(backend):
    """Gemma's norms as transformers stores them."""
    for name in backend.weights:
        if "norm" in name:
            backend.weights[name] = backend.weights[name] - 1


def ones(piece):
    def plant(backend):
        for name in backend.weights:
            if piece in name:
                backend.weights[name] = np.ones_like(backend.weights[name])

    return plant


def one_bias_dropped(backend):
    del backend.weights["blk.1.attn_v.bias"]


class NormedAfterSum(ReferenceBackend):
    """The ffn's first norm also replaces the stream that the ffn is added to."""

    def layer(self, i, layer, x, run):
        before = super().layer(i, replace(layer, ffn=None), x, run)
        w = LayerWeights(self.weights, i, {})
        return super().layer(i, layer, x, run) - before + w.norm(layer.ffn_norm, before)


def become(kind):
    def plant(backend):
        backend.__class__ = kind

    return plant


WEIGHT_ERRORS = {
    "norms of attention and ffn swapped": (NAMES, swapped("attn_norm", "ffn_norm")),
    "post-norm and ffn norm swapped": (GEMMA, swapped("post_attention_norm", "ffn_norm")),
    "post-norms swapped": (GEMMA, swapped("post_attention_norm", "post_ffw_norm")),
    "q and k norms swapped": (["qwen3", *GEMMA], swapped("attn_q_norm", "attn_k_norm")),
    "gemma's norms without their one": (GEMMA, without_one),
    "attention norm all ones": (NAMES, ones("attn_norm")),
    "last norm all ones": (NAMES, ones("output_norm")),
    "one layer's v bias dropped": (QWEN2, one_bias_dropped),
    "stream normed too": (NAMES, become(NormedAfterSum)),
}


def each(errors):
    return [
        pytest.param(name, plant, id=f"{name}: {what}")
        for what, (names, plant) in errors.items()
        for name in names
    ]


@pytest.mark.parametrize(("name", "plant"), each(SPEC_ERRORS))
def test_a_wrong_spec_shows(name, plant):
    backend = tiny_backend(name, spec=plant(tiny_spec(name)))
    assert difference(backend, name, 0) > 10 * TOLERANCE


@pytest.mark.parametrize(("name", "plant"), each(WEIGHT_ERRORS))
def test_a_wrong_order_of_norms_shows(name, plant):
    backend = tiny_backend(name)
    plant(backend)
    assert difference(backend, name, 0) > 10 * TOLERANCE
