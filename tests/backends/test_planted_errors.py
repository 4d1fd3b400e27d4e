"""Errors planted into the specs of tiny dense models show in their logits.

The reference and transformers differ by 5e-5 at most in models of 64 layers, by 1e-5 in the others.
"""

from dataclasses import replace

import numpy as np
import pytest

import planted
from stretto.models.rope import plain_frequencies
from stretto.models.spec import Norm
from tiny_models import answer, text_logits, tiny_backend, tiny_spec

pytestmark = pytest.mark.golden

PLAIN = ["ernie4_5", "granite", "hunyuan-dense", "mistral3", "seed_oss", "smollm3"]
SANDWICH = ["gemma2", "glm4"]
AFTER = ["exaone4", "exaone4-llama3", "olmo2", "olmo2-olmo3"]
COHERE = ["cohere2", "command-r", "command-r-plus"]
PHI = ["phi3-long", "phi3-short", "phi3-window"]
WINDOWED = ["cohere2", "exaone4", "gemma2", "gemma3n", "olmo2-olmo3", "phi3-window"]
MIXED = ["cohere2", "exaone4", "gemma2", "olmo2-olmo3", "smollm3"]  # layers that are not alike
CASES = [*PLAIN, *SANDWICH, *AFTER, *COHERE, *PHI, "gemma", "gemma3n", "starcoder2"]
GEMMA3N = ["gemma3n"]
SHOWS = 1e-3  # ten times the tolerance of test_architectures.py


def difference(backend, name):
    """The largest between its logits and those of transformers."""
    return np.abs(text_logits(backend, answer(name, "tokens.0")) - answer(name, "logits.0")).max()


def whole_rope(mixer):
    """A rope of all numbers of a head."""
    frequencies = tuple(plain_frequencies(5000.0, mixer.head_size).tolist())
    return replace(mixer, rope=replace(mixer.rope, frequencies=frequencies))


def wide_rope_in_windows(spec):
    """OLMo 3's scaled rope in the layers that it is not for."""
    return planted.mixer(rope=spec.layers[3].mixer.rope)(spec)


def one_after_the_other(layer):
    """The feed-forward reads what attention has added to."""
    return replace(layer, parallel=False, ffn_norm=layer.norm)


def cooler(change):
    return planted.mixers(lambda mixer: replace(mixer, temperature=change(mixer.temperature)))


def other_source(spec):
    """The last layer shares K and V with the first one of its kind, not the last."""
    last = spec.layers[-1]
    return replace(spec, layers=(*spec.layers[:-1], replace(last, mixer=replace(last.mixer, shared=0))))


SPEC_ERRORS = {
    "eps doubled": (CASES, planted.norms(lambda norm: replace(norm, eps=2 * norm.eps))),
    "rms norms for layer norms": ([*COHERE, "starcoder2"], planted.norms(lambda n: replace(n, kind="rms"))),
    "pairs swapped": (CASES, planted.ropes(planted.other_pairs)),
    "no rope": (CASES, planted.mixer(rope=None)),
    "rope in every layer": (["smollm3", "exaone4", "cohere2"], planted.rope_everywhere),
    "rope of the whole head": (["glm4", "phi3-long", "phi3-short"], planted.mixers(whole_rope)),
    "rope scaling in windowed layers": (["olmo2-olmo3"], wide_rope_in_windows),
    "short factors for long": (["phi3-long"], lambda spec: spec.within(16)),
    "long factors for short": (["phi3-short"], lambda spec: spec.within(2048)),
    "magnitude invented": (
        ["mistral3", "olmo2"],
        planted.ropes(lambda rope: replace(rope, magnitude=1.05)),
    ),
    "magnitude ignored": (
        ["phi3-long", "phi3-short", "olmo2-olmo3"],
        planted.ropes(lambda rope: replace(rope, magnitude=1.0)),
    ),
    "windows dropped": (WINDOWED, planted.windows(lambda _: None)),
    "windows one larger": (WINDOWED, planted.windows(lambda window: window + 1)),
    "windows one smaller": (WINDOWED, planted.windows(lambda window: window - 1)),
    "pattern of layers shifted": (MIXED, planted.pattern_shifted),
    "temperature dropped": (["mistral3"], planted.mixer(temperature=None)),
    "temperature of another length": (["mistral3"], cooler(lambda t: replace(t, length=t.length + 1))),
    "temperature of another slope": (["mistral3"], cooler(lambda t: replace(t, slope=1.1 * t.slope))),
    "scores not capped": (["gemma2"], planted.mixer(cap=0.0)),
    "logits not capped": (["gemma2", "gemma3n"], lambda spec: replace(spec, logit_cap=0.0)),
    "embeddings not scaled": (
        ["gemma", "gemma2", "gemma3n", "granite"],
        lambda spec: replace(spec, embedding_scale=1.0),
    ),
    "logits not scaled": (["granite", *COHERE], lambda spec: replace(spec, logit_scale=1.0)),
    "residuals not scaled": (["granite"], planted.layers(lambda layer: replace(layer, residual_scale=1.0))),
    "scores of the usual scale": (["granite"], planted.mixer(scale=8**-0.5)),
    "scores scaled by the embedding's share": (
        ["ernie4_5", "gemma", "gemma2", "glm4", "mistral3", "seed_oss"],
        lambda spec: planted.mixer(scale=(spec.n_embd / spec.n_head) ** -0.5)(spec),
    ),
    "biases of q, k and v dropped": (["glm4", "seed_oss", "starcoder2"], planted.mixer(bias=False)),
    "bias of attention's output dropped": (["starcoder2"], planted.mixer(output_bias=False)),
    "biases of the feed-forward dropped": (["starcoder2"], planted.ffns(bias=False)),
    "biases of the norms dropped": (["starcoder2"], planted.norms(lambda n: replace(n, bias=False))),
    "q and k normalised on the other side of the rope": (
        ["command-r-plus", "exaone4-llama3", "hunyuan-dense", "olmo2"],
        planted.mixers(lambda mixer: replace(mixer, norm_after_rope=not mixer.norm_after_rope)),
    ),
    "q and k not normalised": (
        ["command-r-plus", "hunyuan-dense", *AFTER],
        planted.mixer(q_norm=None, k_norm=None),
    ),
    "norms after dropped": (
        ["exaone4-llama3", "olmo2", "olmo2-olmo3", *SANDWICH],
        planted.layers(lambda layer: replace(layer, post_norm=None, post_ffn_norm=None)),
    ),
    "norms before instead of after": (
        AFTER,
        planted.layers(lambda a: replace(a, norm=a.post_norm, ffn_norm=a.post_ffn_norm, post_norm=None)),
    ),
    "branches one after the other": (COHERE, planted.layers(one_after_the_other)),
    "silu for gelu": (["gemma", "gemma2", "starcoder2"], planted.ffns(activation="silu")),
    "gelu for silu": (["granite", "glm4", "phi3-long"], planted.ffns(activation="gelu")),
    "one stream": (GEMMA3N, planted.layers(lambda layer: replace(layer, streams=None))),
    "router's norm of another eps": (
        GEMMA3N,
        planted.layers(lambda a: replace(a, streams=replace(a.streams, norm=Norm("altup_router_norm", 0.1)))),
    ),
    "no low-rank residual": (GEMMA3N, planted.layers(lambda layer: replace(layer, low_rank=None))),
    "no inputs of layers": (GEMMA3N, planted.layers(lambda layer: replace(layer, input=None))),
    "inputs of layers normalised with another eps": (
        GEMMA3N,
        lambda spec: replace(spec, per_layer=replace(spec.per_layer, norm=Norm("per_layer_proj_norm", 0.1))),
    ),
    "gates not cut off": (GEMMA3N, planted.ffns(cutoff=None)),
    "gates cut off in all layers": (GEMMA3N, planted.ffns(cutoff=0.5)),
    "K and V not shared": (GEMMA3N, planted.mixer(shared=None)),
    "K and V of another layer": (GEMMA3N, other_source),
    "v not normalised": (GEMMA3N, planted.mixer(v_norm=None)),
    "one rope for windows and without": (GEMMA3N, planted.rope_everywhere),
    "output matrix tied": (["glm4", "phi3-short"], lambda spec: replace(spec, tied=True)),
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
    assert difference(backend, name) > SHOWS


@pytest.mark.parametrize("name", ["glm4", *PHI])
def test_gate_and_up_swapped_show(name):
    backend = tiny_backend(name)
    for key in [key for key in backend.weights if key.endswith("ffn_up.weight")]:
        backend.weights[key] = np.roll(backend.weights[key], len(backend.weights[key]) // 2, axis=0)
    assert difference(backend, name) > SHOWS
