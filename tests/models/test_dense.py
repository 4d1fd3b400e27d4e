"""Specs of the dense architectures: what their files say, and what they leave to the reader."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.models import read_spec
from stretto.models.common import slopes
from stretto.models.spec import Norm, Temperature
from tiny_models import tiny_file, tiny_spec

EPS = 2.0**-9


def windows(spec):
    return [layer.mixer.window for layer in spec.layers]


def has_rope(spec):
    return [layer.mixer.rope is not None for layer in spec.layers]


def deeper(name, n):
    """Tensors of a tiny model, its first layer repeated to `n` layers."""
    first = {
        k.removeprefix("blk.0."): t for k, t in tiny_file(name).tensors.items() if k.startswith("blk.0.")
    }
    return {f"blk.{i}.{key}": tensor for i in range(n) for key, tensor in first.items()}


def test_gemma2():
    spec = tiny_spec("gemma2")
    assert windows(spec) == [5, None, 5]
    assert (spec.layers[0].mixer.cap, spec.logit_cap, spec.embedding_scale) == (1.5, 2.0, 32**0.5)


def test_gemma2_without_optional_keys(changed):
    keys = [".attention.sliding_window", ".attn_logit_softcapping", ".final_logit_softcapping"]
    spec = read_spec(changed("gemma2", dict.fromkeys(keys)))
    assert windows(spec) == [4096, None, 4096]
    assert (spec.layers[0].mixer.cap, spec.logit_cap) == (50.0, 30.0)


def test_gemma2_27b_scales_attention_by_the_embedding(changed):
    spec = read_spec(changed("gemma2", {".block_count": 46}, deeper("gemma2", 46)))
    assert spec.layers[0].mixer.scale == (32 / 4) ** -0.5
    assert tiny_spec("gemma2").layers[0].mixer.scale == 16**-0.5


def test_phi3():
    spec = tiny_spec("phi3-long")
    mixer = spec.layers[0].mixer
    assert (mixer.fused, mixer.window, len(mixer.rope.frequencies), spec.tied) == (True, None, 6, True)
    assert spec.tensors()["blk.0.attn_qkv.weight"] == (128, 64)
    assert spec.tensors()["blk.0.ffn_up.weight"] == (128, 64)
    assert windows(tiny_spec("phi3-window")) == [7, 7]


def test_phi3_with_q_k_and_v_apart(changed):
    file = tiny_file("phi3-window")
    tensors = {}
    for i in range(2):
        rows = file.tensors[f"blk.{i}.attn_qkv.weight"].dequantize()
        parts = zip("qkv", np.split(rows, [64, 96]), strict=True)
        tensors |= {f"blk.{i}.attn_{name}.weight": part for name, part in parts}
        tensors[f"blk.{i}.attn_qkv.weight"] = None
    spec = read_spec(changed("phi3-window", tensors=tensors))
    assert not spec.layers[0].mixer.fused


def test_mistral3(changed):
    spec = tiny_spec("mistral3")
    assert spec.layers[0].mixer.temperature == Temperature(0.30000001192092896, 12)
    assert spec.layers[0].mixer.rope.magnitude == 1.0
    spec = read_spec(changed("mistral3", {".attention.temperature_scale": None}))
    assert spec.layers[0].mixer.temperature is None


def test_granite(changed):
    spec = tiny_spec("granite")
    assert (spec.embedding_scale, spec.logit_scale) == (7.0, 1 / 1.25)
    assert {layer.residual_scale for layer in spec.layers} == {0.625}
    assert spec.layers[0].mixer.scale == pytest.approx(0.2)
    names = "embedding_scale", "logit_scale", "residual_scale", "attention.scale"
    plain = read_spec(changed("granite", {f".{name}": None for name in names}))
    assert (plain.embedding_scale, plain.logit_scale, plain.layers[0].mixer.scale) == (1.0, 1.0, 8**-0.5)
    assert not any(has_rope(read_spec(changed("granite", {".rope.scaling.finetuned": False}))))


def test_olmo2(changed):
    spec = tiny_spec("olmo2")
    assert spec.layers[0].mixer.k_norm == Norm("attn_k_norm", EPS, over="all")
    assert (spec.layers[0].norm, spec.layers[0].ffn_norm) == (None, None)
    assert spec.tensors()["blk.0.attn_k_norm.weight"] == (16,)
    assert windows(spec) == [None] * 3
    third = tiny_spec("olmo2-olmo3")
    assert windows(third) == [6, 6, 6, None, 6]
    assert third.layers[0].mixer.rope.magnitude == 1.0 < third.layers[3].mixer.rope.magnitude
    unsaid = read_spec(changed("olmo2-olmo3", {".attention.sliding_window_pattern": None}))
    assert windows(unsaid) == [6, 6, 6, None, 6]


def test_glm4(changed):
    mixer = tiny_spec("glm4").layers[0].mixer
    assert (mixer.rope.pairs, len(mixer.rope.frequencies), mixer.bias) == ("adjacent", 4, True)
    seeing = read_spec(changed("glm4", {".rope.dimension_sections": [2, 1, 1, 0]}))
    assert seeing.layers[0].mixer.rope.pairs == "halves"


@pytest.mark.parametrize(("name", "n"), [("exaone4", 64), ("cohere2", 5)])
def test_global_layers_beside_windowed_ones_have_no_rope(name, n):
    spec = tiny_spec(name)
    assert windows(spec) == [6 if i % 4 < 3 else None for i in range(n)]
    assert has_rope(spec) == [i % 4 < 3 for i in range(n)]


def test_exaone4_without_windows_has_a_rope_in_every_layer():
    spec = tiny_spec("exaone4-llama3")
    assert (windows(spec), has_rope(spec)) == ([None] * 3, [True] * 3)


def test_command_r():
    spec = tiny_spec("command-r-plus")
    first = spec.layers[0]
    assert first.mixer.q_norm == Norm("attn_q_norm", EPS, "layer", over="heads")
    assert spec.tensors()["blk.0.attn_q_norm.weight"] == (2, 4)
    assert (first.parallel, first.ffn_norm, spec.logit_scale) == (True, None, 0.75)
    assert tiny_spec("command-r").layers[0].mixer.q_norm is None


def test_starcoder2():
    spec = tiny_spec("starcoder2")
    first = spec.layers[0]
    assert first.norm == Norm("attn_norm", EPS, "layer", bias=True)
    assert (first.mixer.bias, first.mixer.output_bias, first.ffn.bias, first.ffn.gated) == (
        *(True, True, True),
        False,
    )
    assert spec.tensors()["output_norm.bias"] == (48,)


def test_hunyuan_normalises_after_the_rope():
    assert tiny_spec("hunyuan-dense").layers[0].mixer.norm_after_rope


def test_seed_oss_names_a_norm_differently():
    assert tiny_spec("seed_oss").layers[0].ffn_norm == Norm("post_attention_norm", EPS)


def test_gemma3n(changed):
    spec = tiny_spec("gemma3n")
    assert windows(spec) == [6, None, 6, None, 6]
    assert [layer.mixer.shared for layer in spec.layers] == [None, None, None, 1, 2]
    assert [layer.kv is None for layer in spec.layers] == [False, False, False, True, True]
    assert spec.layers[0].ffn.cutoff == pytest.approx(0.8416212)
    assert [layer.ffn.cutoff is None for layer in spec.layers] == [False, False, True, True, True]
    assert (spec.streams.n, spec.per_layer.size, spec.layers[0].low_rank.rank) == (4, 16, 8)
    assert "blk.4.attn_k.weight" not in spec.tensors()
    own = read_spec(changed("gemma3n", {".attention.shared_kv_layers": None}))
    assert {layer.mixer.shared for layer in own.layers} == {None}
    dense = read_spec(changed("gemma3n", {".activation_sparsity_scale": None}))
    assert {layer.ffn.cutoff for layer in dense.layers} == {None}


def test_baichuan_of_40_layers_has_slopes_instead_of_a_rope(changed):
    first = read_spec(changed("baichuan")).layers[0].mixer
    assert first.rope is not None
    assert first.alibi == ()
    found = read_spec(changed("baichuan", {".block_count": 40}, deeper("baichuan", 40)))
    assert {layer.mixer for layer in found.layers} == {replace(first, rope=None, alibi=slopes(4))}
