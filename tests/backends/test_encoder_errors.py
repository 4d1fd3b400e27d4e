"""Errors planted into the specs of tiny encoders show in their hidden states."""

from dataclasses import replace

import numpy as np
import pytest

import planted
from tiny_encoders import NAMES, answers, hidden_of, reference, spec_of, text_of

pytestmark = pytest.mark.golden

POST = ["bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe"]
ROTARY = ["gemma-embedding", "jina-bert-v3", "modern-bert", "nomic-bert", "nomic-bert-moe"]
WINDOWED = ["gemma-embedding", "modern-bert"]
EXACT_GELU = ["bert", "jina-bert-v2", "jina-bert-v3", "modern-bert"]
SHOWS = 2e-4  # ten times the tolerance of test_encoders.py; the two forms of GELU differ by 4e-4


def no_sums(layer):
    return replace(layer, sum_norm=None, ffn_sum_norm=None)


def norms_before(layer):
    """The norms of the sums before attention and feed-forward."""
    return replace(no_sums(layer), norm=layer.sum_norm, ffn_norm=layer.ffn_sum_norm)


def sums(change):
    """`change` made to the norms of the sums."""
    return planted.layers(
        lambda a: replace(a, sum_norm=change(a.sum_norm), ffn_sum_norm=change(a.ffn_sum_norm))
    )


def slopes(change):
    return planted.mixers(lambda mixer: replace(mixer, alibi=change(mixer.alibi)))


ERRORS = {
    "no later tokens": (NAMES, planted.mixer(causal=True)),
    "no rope": (ROTARY, planted.mixer(rope=None)),
    "pairs swapped": (ROTARY, planted.ropes(planted.other_pairs)),
    "one rope for windows and without": (WINDOWED, planted.rope_everywhere),
    "windows dropped": (WINDOWED, planted.windows(lambda _: None)),
    "windows one larger": (WINDOWED, planted.windows(lambda window: window + 1)),
    "windows one smaller": (WINDOWED, planted.windows(lambda window: window - 1)),
    "pattern of layers shifted": (WINDOWED, planted.pattern_shifted),
    "tanh form of gelu": (EXACT_GELU, planted.ffns(activation="gelu")),
    "exact gelu": (["gemma-embedding"], planted.ffns(activation="gelu_erf")),
    "sums not normalised": (POST, planted.layers(no_sums)),
    "norms before instead of after": (POST, planted.layers(norms_before)),
    "eps doubled": (POST, sums(lambda norm: replace(norm, eps=2 * norm.eps))),
    "biases of the norms dropped": (POST, sums(lambda norm: replace(norm, bias=False))),
    "rms norms": (POST, sums(lambda norm: replace(norm, kind="rms", bias=False))),
    "embeddings not normalised": (
        [*POST, "modern-bert"],
        lambda spec: replace(spec, embedding_norm=None),
    ),
    "no last norm": (WINDOWED, lambda spec: replace(spec, output_norm=None)),
    "no positions": (["bert"], lambda spec: replace(spec, learned_positions=0)),
    "no token types": (POST, lambda spec: replace(spec, token_types=0)),
    "embeddings not scaled": (["gemma-embedding"], lambda spec: replace(spec, embedding_scale=1.0)),
    "slopes dropped": (["jina-bert-v2"], slopes(lambda _: ())),
    "slopes reversed": (["jina-bert-v2"], slopes(lambda found: found[::-1])),
    "slopes of eight heads": (["jina-bert-v2"], slopes(lambda _: tuple(2.0**-i for i in range(1, 7)))),
    "no bias of the last matrix": (["jina-bert-v2"], planted.ffns(down_bias=False)),
    "no biases": (["bert", "jina-bert-v3"], planted.mixer(bias=False)),
}


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        pytest.param(name, plant, id=f"{name}: {what}")
        for what, (names, plant) in ERRORS.items()
        for name in names
    ],
)
def test_a_wrong_spec_shows(name, plant):
    backend = reference(name, plant(spec_of(name)))
    found = hidden_of(backend, text_of(name, 0))
    assert np.abs(found - answers(name)["hidden.0"]).max() > SHOWS


@pytest.mark.parametrize("name", ["bert", "nomic-bert", "jina-bert-v2"])
def test_token_types_matter(name):
    tokens, types = text_of(name, 1)
    assert any(types)
    found = hidden_of(reference(name), (tokens, [0] * len(tokens)))
    assert np.abs(found - answers(name)["hidden.1"]).max() > SHOWS


@pytest.mark.parametrize("name", ["jina-bert-v2", "modern-bert"])
def test_gate_and_up_swapped_show(name):
    backend = reference(name)
    for i in range(backend.spec.n_layer):
        gate, up = f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight"
        if gate in backend.weights:
            backend.weights[gate], backend.weights[up] = backend.weights[up], backend.weights[gate]
        else:
            backend.weights[up] = np.roll(backend.weights[up], len(backend.weights[up]) // 2, axis=0)
    found = hidden_of(backend, text_of(name, 0))
    assert np.abs(found - answers(name)["hidden.0"]).max() > SHOWS
