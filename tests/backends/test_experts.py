"""Errors planted into specs with experts, latent attention, embeddings for each layer: each must be seen."""

from dataclasses import replace

import numpy as np
import pytest

from planted import layers, mixer, mixers, norms, other_pairs, pattern_shifted, ropes, windows
from stretto.models.rope import plain_frequencies, yarn
from stretto.models.spec import Experts, LayerInput, Norm, PerLayer
from tiny_models import answer, text_logits, tiny_backend, tiny_spec

pytestmark = pytest.mark.golden

SEEN = 3e-3  # thirty times the tolerance of the right spec

CHOSEN = ["mixtral", "qwen3moe", "granitemoe", "hunyuan-moe", "mellum"]  # softmax, weights that add up to one
CORRECTED = [
    "hy_v3",
    "glm4moe",
    "deepseek3",
    "glm4-flash",
    "dots1",
    "exaone-moe",
]  # sigmoid, corrected by a bias
LITE = ["deepseek2-lite", "deepseek2-lite-old"]
LATENT = [*LITE, "deepseek3", "glm4-flash", "minicpm3"]
GRANITE = ["granitemoe", "granitemoe-shared"]
GEMMA = ["gemma4", "gemma4-e", "gemma4-moe"]
PLAIN = [*CHOSEN, "granitemoe-shared", *CORRECTED, *LITE, "qwen2moe", "gpt-oss", "gpt-oss-ramp"]
ALL = [*PLAIN, "gemma4-moe"]


def experts(change):
    """`change` made to every mixture of experts."""
    return layers(
        lambda layer: replace(layer, ffn=change(layer.ffn)) if isinstance(layer.ffn, Experts) else layer
    )


def mixture(**fields):
    """Every mixture of experts with these fields."""
    return experts(lambda ffn: replace(ffn, **fields))


def routing(change):
    """`change` made to every routing."""
    return experts(lambda ffn: replace(ffn, routing=change(ffn.routing)))


def routed(**fields):
    """Every routing with these fields."""
    return routing(lambda routing: replace(routing, **fields))


def spec_with(**fields):
    return lambda spec: replace(spec, **fields)


def frequencies(values):
    """Every rope with these frequencies."""
    return ropes(lambda rope: replace(rope, frequencies=tuple(values.tolist())))


def shared_with(change):
    """Layers that read K and V of another layer read those of `change` of it."""
    return mixers(lambda m: m if m.shared is None else replace(m, shared=change(m.shared)))


ERRORS = {
    "experts of a softmax": (["phimoe"], routed(weights="softmax", normalize=True)),
    "a narrower band": (["phimoe"], routed(jitter=0.01)),
    "rms norms for layer norms": (["phimoe", "cohere2moe"], norms(lambda norm: replace(norm, kind="rms"))),
    "logits without their bias": (["phimoe"], spec_with(output_bias=False)),
    "router behind attention": (["smallthinker"], routed(early=False)),
    "SiLU for ReLU": (["smallthinker"], mixture(activation="silu")),
    "windows for chunks": (["llama4"], mixers(lambda m: replace(m, chunked=False))),
    "chunks one longer": (["llama4"], windows(lambda window: window + 1)),
    "queries that do not grow": (["llama4"], mixer(temperature=None)),
    "growth one position late": (
        ["llama4"],
        mixers(lambda m: (m.temperature and replace(m, temperature=replace(m.temperature, offset=0.0))) or m),
    ),
    "weights behind the experts": (["llama4"], mixture(weighs_inputs=False)),
    "the shared expert whole": (["cohere2moe"], mixture(shared_scale=1.0)),
    "one expert fewer": (ALL, routing(lambda r: replace(r, n_used=r.n_used - 1))),
    "one expert more": (ALL, routing(lambda r: replace(r, n_used=r.n_used + 1))),
    "shared expert missing": (
        ["granitemoe-shared", *CORRECTED, *LITE, "qwen2moe", "gemma4-moe", "ernie4_5-moe", "hunyuan-moe"],
        mixture(shared=None, shared_gate=False),
    ),
    "shared expert without its gate": (["qwen2moe"], mixture(shared_gate=False)),
    "weights left unnormalised": ([*CHOSEN, *CORRECTED, "gemma4-moe"], routed(normalize=False)),
    "weights normalised": ([*LITE, "qwen2moe", "olmoe"], routed(normalize=True)),
    "weights not scaled": ([*CORRECTED, *LITE], routed(scale=1.0)),
    "weights' scale off by 1 %": (PLAIN, routing(lambda r: replace(r, scale=1.01 * r.scale))),
    "softmax for sigmoid": ([*CORRECTED, "minimax-m2"], routed(weights="softmax")),
    "sigmoid for softmax": ([*CHOSEN, *LITE, "qwen2moe", "gemma4-moe"], routed(weights="sigmoid")),
    "softmax of all experts": (["gpt-oss"], routed(weights="softmax")),
    "correction ignored": ([*CORRECTED, "ernie4_5-moe", "minimax-m2"], routed(correction=False)),
    "groups ignored": (["deepseek3"], routed(n_group=1, n_group_used=1)),
    "groups by their best expert": (["deepseek3"], routed(group_best=1)),
    "one group more": (["deepseek3"], routed(n_group_used=3)),
    "activation swapped": ([*CHOSEN, *CORRECTED, *LITE, "qwen2moe"], mixture(activation="gelu")),
    "router without its bias": (["gpt-oss"], routed(bias=False)),
    "experts without biases": (["gpt-oss"], mixture(bias=False)),
    "SwiGLU not clamped": (["gpt-oss"], mixture(limit=1e6)),
    "SwiGLU of the usual kind": (["gpt-oss"], mixture(limit=0.0)),
    "SwiGLU with another slope": (["gpt-oss"], mixture(alpha=1.0)),
    "sinks left out": (["gpt-oss"], mixer(sinks=False)),
    "biases of q, k and v dropped": (["gpt-oss", "qwen2moe", "glm4moe"], mixer(bias=False)),
    "output bias dropped": (["gpt-oss"], mixer(output_bias=False)),
    "no windows": (
        ["gpt-oss", "llama4", "smallthinker", "cohere2moe", "exaone-moe", "mellum", *GEMMA],
        mixer(window=None),
    ),
    "windows one longer": (["gpt-oss", *GEMMA], windows(lambda window: window + 1)),
    "windows in the other layers": (["gpt-oss"], pattern_shifted),
    "ramp between whole pairs": (
        ["gpt-oss-ramp"],
        frequencies(yarn(plain_frequencies(900.0, 16), 900.0, 4.0, 24, 8.0, 0.5)),
    ),
    "rope's magnitude ignored": (["gpt-oss"], ropes(lambda rope: replace(rope, magnitude=1.0))),
    "q and k norms dropped": (
        ["llama4", "qwen3moe", "glm4moe", "olmoe", "hunyuan-moe", "minimax-m2", *GEMMA],
        mixer(q_norm=None, k_norm=None),
    ),
    "whole heads rotated": (["glm4moe"], frequencies(plain_frequencies(4000.0, 8))),
    "q and k normed before the rope": (["hunyuan-moe"], mixer(norm_after_rope=False)),
    "pairs swapped": (
        ["ernie4_5-moe", "minimax-m2", *CHOSEN, *CORRECTED, *LITE, "gpt-oss", "gemma4"],
        ropes(other_pairs),
    ),
    "eps at its usual value": (
        sorted(set(ALL) - set(LATENT)),
        norms(lambda norm: replace(norm, eps=1e-6)),
    ),
    "latent norm's eps at its usual value": (LATENT, mixer(kv_norm=Norm("attn_kv_a_norm", 1e-6))),
    "residuals not scaled": (
        [*GRANITE, "minicpm3"],
        layers(lambda layer: replace(layer, residual_scale=1.0)),
    ),
    "embeddings not scaled": (["minicpm3", *GRANITE, *GEMMA], spec_with(embedding_scale=1.0)),
    "logits not scaled": ([*GRANITE, "minicpm3"], spec_with(logit_scale=1.0)),
    "logits without their cap": (GEMMA, spec_with(logit_cap=0.0)),
    "attention scaled by the head": (GRANITE, mixer(scale=8**-0.5)),
    "attention scaled at all": (GEMMA, mixers(lambda m: replace(m, scale=m.head_size**-0.5))),
    "scores without YaRN's magnitude": ([*LITE, "deepseek3"], mixers(lambda m: replace(m, scale=m_size(m)))),
    "YaRN's magnitude in the rope": (["deepseek3"], ropes(lambda rope: replace(rope, magnitude=1.1))),
    "queries not normalised": (["deepseek3", "glm4-flash", "minicpm3"], mixer(q_norm=None)),
    "latent norm without weights": (LATENT, mixer(kv_norm=Norm("attn_kv_a_norm", 2.0**-9, weight=False))),
    "values not normalised": (GEMMA, mixer(v_norm=None)),
    "K and V of an earlier layer": (["gemma4-e"], shared_with({1: 0, 2: 2}.get)),
    "layers not scaled": (GEMMA, layers(lambda layer: replace(layer, output_scale=False))),
    "no embeddings for each layer": (["gemma4-e"], layers(lambda layer: replace(layer, input=None))),
    "their projection without its norm's weights": (
        ["gemma4-e"],
        spec_with(per_layer=PerLayer(32, Norm("per_layer_proj_norm", 2.0**-9, weight=False))),
    ),
    "their norm's eps at its usual value": (
        ["gemma4-e"],
        spec_with(per_layer=PerLayer(32, Norm("per_layer_proj_norm", 1e-6))),
    ),
    "layers' inputs added without a norm's weights": (
        ["gemma4-e"],
        layers(lambda layer: replace(layer, input=LayerInput(32, Norm("post_norm", 2.0**-9, weight=False)))),
    ),
    "router's input not normalised": (["gemma4-moe"], routed(norm=None)),
    "router's scores not scaled": (["gemma4-moe"], routed(score_scale=1.0)),
    "experts not scaled": (["gemma4-moe"], mixture(output_scale=False)),
    "experts' input not normalised": (["gemma4-moe"], mixture(norm=None)),
    "experts' output not normalised": (["gemma4-moe"], mixture(post_norm=None)),
    "dense input not normalised": (["gemma4-moe"], mixture(shared_norm=None)),
    "dense output not normalised": (["gemma4-moe"], mixture(shared_post_norm=None)),
}


def m_size(latent):
    """The scale of latent attention without a rope that is scaled."""
    return (latent.nope_size + latent.rope_size) ** -0.5


def difference(name, spec):
    logits = text_logits(tiny_backend(name, spec=spec), answer(name, "tokens.0"))
    return np.abs(logits - answer(name, "logits.0")).max()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(name, change, id=f"{name}: {error}")
        for error, (names, change) in ERRORS.items()
        for name in names
    ],
)
def test_error_is_seen(name, change):
    wrong = change(tiny_spec(name))
    assert wrong != tiny_spec(name)
    assert difference(name, wrong) > SEEN
