"""Specs of the architectures with experts, latent attention or Gemma 4's parts: what their files say."""

import tracemalloc
from math import log

import numpy as np
import pytest

from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.errors import ModelError
from stretto.models import read_spec
from stretto.models.spec import Dense, Experts, Norm
from tiny_models import answer, text_logits, tiny_file, tiny_spec

EPS = 2.0**-9


def ffns(spec):
    return [layer.ffn for layer in spec.layers]


def test_mixtral():
    ffn = tiny_spec("mixtral").layers[1].ffn
    assert (ffn.n_expert, ffn.n_ff, ffn.shared) == (7, 32, None)
    assert (ffn.routing.n_used, ffn.routing.weights, ffn.routing.normalize) == (3, "softmax", True)
    assert tiny_spec("mixtral").tensors()["blk.0.ffn_down_exps.weight"] == (7, 32, 32)


def test_qwen2moe():
    ffn = tiny_spec("qwen2moe").layers[0].ffn
    assert (ffn.n_ff, ffn.shared.n_ff, ffn.shared_gate, ffn.routing.normalize) == (32, 64, True, False)


def test_qwen2moe_without_the_experts_widths(changed):
    keys = [".expert_feed_forward_length", ".expert_shared_feed_forward_length"]
    spec = read_spec(changed("qwen2moe", dict.fromkeys(keys)))
    assert spec == tiny_spec("qwen2moe")  # 64 for all is 32 for each of two


def test_granitemoe():
    spec = tiny_spec("granitemoe-shared")
    assert spec.logit_scale == pytest.approx(1 / 0.6)
    assert (spec.layers[0].residual_scale, spec.layers[0].mixer.scale) == pytest.approx((0.4, 0.21))
    assert spec.layers[0].ffn.shared.n_ff == 64
    assert tiny_spec("granitemoe").layers[0].ffn.shared is None


def test_granitemoe_without_positions(changed):
    spec = read_spec(changed("granitemoe", {".rope.scaling.finetuned": False}))
    assert spec.layers[0].mixer.rope is None


def test_glm4moe():
    spec = tiny_spec("glm4moe")
    assert [type(ffn) for ffn in ffns(spec)] == [Dense, Experts]
    routing = spec.layers[1].ffn.routing
    assert (routing.weights, routing.correction, routing.normalize) == ("sigmoid", True, True)
    assert (spec.layers[1].ffn.shared.n_ff, len(spec.layers[0].mixer.rope.frequencies)) == (64, 2)


def test_blocks_that_predict_further_tokens_are_left_out():
    assert tiny_file("glm4moe").metadata.integer("glm4moe.block_count") == 3
    spec = tiny_spec("glm4moe")
    assert spec.n_layer == 2
    assert not any(name.startswith("blk.2.") for name in spec.tensors())


def test_blocks_without_that_key_are_layers(changed):
    with pytest.raises(ModelError, match=r"blk\.2\.nextn"):
        read_spec(changed("glm4moe", {".nextn_predict_layers": None}))


def test_gptoss():
    spec = tiny_spec("gpt-oss")
    assert [layer.mixer.window for layer in spec.layers] == [11, None]
    mixer, ffn = spec.layers[0].mixer, spec.layers[0].ffn
    assert (mixer.sinks, mixer.bias, mixer.output_bias, mixer.rope.magnitude) == (
        True,
        True,
        True,
        pytest.approx(1 + 0.1 * log(4)),
    )
    assert (ffn.limit, ffn.alpha, ffn.bias, ffn.routing.bias, ffn.routing.weights) == (
        7.0,
        1.702,
        True,
        True,
        "chosen",
    )


def test_gptoss_without_a_scaled_rope(changed):
    rope = read_spec(changed("gpt-oss", {".rope.scaling.type": None})).layers[0].mixer.rope
    assert rope.magnitude == 1.0
    np.testing.assert_allclose(rope.frequencies, 4.0 ** -(np.arange(8) / 8))


def test_deepseek3():
    spec = tiny_spec("deepseek3")
    mixer, routing = spec.layers[0].mixer, spec.layers[1].ffn.routing
    assert (mixer.n_head, mixer.q_rank, mixer.rank) == (3, 32, 32)
    assert (mixer.nope_size, mixer.rope_size, mixer.value_size) == (16, 8, 24)
    assert mixer.scale == pytest.approx((1 + 0.1 * log(3)) ** 2 * 24**-0.5)
    assert mixer.rope.magnitude == 1.0
    assert spec.layers[0].kv == (1, 40)
    assert (routing.n_group, routing.n_group_used, routing.group_best) == (4, 2, 2)
    assert (routing.weights, routing.correction) == ("sigmoid", True)


def test_deepseek2_lite_in_both_layouts():
    recent, old = tiny_spec("deepseek2-lite"), tiny_spec("deepseek2-lite-old")
    assert (recent.layers[0].mixer.fused, old.layers[0].mixer.fused) == (False, True)
    assert recent.layers[0].kv == old.layers[0].kv == (1, 16)
    assert old.tensors()["blk.0.attn_kv_b.weight"] == (28, 12)
    assert [type(ffn) for ffn in ffns(old)] == [Dense] * 24 + [Experts] * 2
    assert (old.layers[0].mixer.q_rank, old.layers[0].mixer.q_norm) == (0, None)


def test_gating_that_a_file_does_not_name(changed):
    """Those of V2 came without it, and so do those of GLM 4.7 Flash."""
    for name, weights in (("deepseek2-lite", "softmax"), ("glm4-flash", "sigmoid")):
        assert (
            read_spec(changed(name, {".expert_gating_func": None})).layers[-1].ffn.routing.weights == weights
        )


def test_groups_of_v2_are_chosen_by_their_best_expert(changed):
    keys = {".expert_count": 4, ".expert_group_count": 2, ".expert_group_used_count": 1}
    tensors = {
        name: tensor.dequantize()[:4]
        for name, tensor in tiny_file("deepseek2-lite").tensors.items()
        if "_exps" in name or "gate_inp" in name
    }
    routing = read_spec(changed("deepseek2-lite", keys, tensors)).layers[-1].ffn.routing
    assert (routing.n_group, routing.n_group_used, routing.group_best) == (2, 1, 1)


def test_deepseek_without_experts(changed):
    tensors = dict.fromkeys(name for name in tiny_file("deepseek3").tensors if name.startswith("blk.1."))
    file = changed("deepseek3", {".block_count": 1, ".leading_dense_block_count": 1}, tensors)
    assert ffns(read_spec(file)) == [Dense(48)]


def test_gemma4():
    spec = tiny_spec("gemma4")
    assert [layer.mixer.window for layer in spec.layers] == [9, 9, None, 9, None]
    assert [layer.kv for layer in spec.layers] == [(2, 8), (2, 8), (1, 16), (2, 8), (1, 16)]
    assert [layer.mixer.values_are_keys for layer in spec.layers] == [False, False, True, False, True]
    assert all(layer.output_scale and layer.mixer.scale == 1.0 for layer in spec.layers)
    assert spec.layers[0].mixer.v_norm == Norm("attn_v_norm", EPS, weight=False)
    rotated = np.array(spec.layers[2].mixer.rope.frequencies) > 1e-20
    assert rotated.tolist() == [True] * 3 + [False] * 5
    assert (spec.logit_cap, spec.embedding_scale, spec.per_layer) == (4.0, 32**0.5, None)


def test_gemma4_with_embeddings_for_each_layer():
    spec = tiny_spec("gemma4-e")
    assert [layer.mixer.shared for layer in spec.layers] == [None, None, None, 1, 2]
    assert [layer.kv for layer in spec.layers] == [(2, 8), (2, 8), (2, 16), None, None]
    assert [ffn.n_ff for ffn in ffns(spec)] == [32, 32, 32, 64, 64]
    assert "blk.3.attn_k.weight" not in spec.tensors()
    assert spec.tensors()["per_layer_token_embd.weight"] == (96, 160)
    assert spec.tensors()["blk.4.proj.weight"] == (32, 32)


def test_gemma4_with_and_without_tensors_that_nothing_reads(changed):
    file = tiny_file("gemma4-e")
    unused = [f"blk.{i}.{name}.weight" for i in (3, 4) for name in ("attn_k", "attn_v", "attn_k_norm")]
    assert tiny_spec("gemma4-e").unused() == set(unused) <= file.tensors.keys()
    assert read_spec(changed("gemma4-e", tensors=dict.fromkeys(unused))) == tiny_spec("gemma4-e")


def test_gemma4_with_experts():
    spec = tiny_spec("gemma4-moe")
    ffn = spec.layers[0].ffn
    assert (ffn.fused, ffn.output_scale, ffn.shared) == (True, True, Dense(32, "gelu"))
    assert ffn.routing.norm == Norm("ffn_gate_inp.scale", EPS, bare=True)
    assert spec.layers[0].ffn_norm is None
    assert spec.tensors()["blk.1.ffn_gate_inp.scale"] == (32,)
    assert spec.tensors()["blk.1.ffn_gate_up_exps.weight"] == (6, 64, 32)


def test_gemma4_with_gate_and_up_apart(changed):
    tensors = {}
    for i in range(2):
        both = f"blk.{i}.ffn_gate_up_exps.weight"
        gate, up = np.split(tiny_file("gemma4-moe").tensors[both].dequantize(), 2, axis=1)
        tensors |= {both: None, f"blk.{i}.ffn_gate_exps.weight": gate, f"blk.{i}.ffn_up_exps.weight": up}
    assert not read_spec(changed("gemma4-moe", tensors=tensors)).layers[0].ffn.fused


def test_routers_of_their_own(changed):
    routing = ffns(tiny_spec("phimoe"))[0].routing
    assert (routing.weights, routing.jitter) == ("one by one", pytest.approx(0.3))
    routing = ffns(read_spec(changed("phimoe", {".expert_jitter": None})))[0].routing
    assert routing.jitter == 0.01
    assert tiny_spec("phimoe").tensors()["output.bias"] == (96,)
    ffn = ffns(tiny_spec("smallthinker"))[0]
    assert (ffn.routing.early, ffn.routing.weights, ffn.activation) == (True, "sigmoid", "relu")
    ffn = ffns(tiny_spec("cohere2moe"))[1]
    assert (ffn.shared_scale, ffn.routing.scale, ffn.shared.n_ff) == (0.5, 0.5, 32)


def test_llama4(changed):
    near, wide = (tiny_spec("llama4").layers[i].mixer for i in (0, 3))
    assert (near.window, near.chunked, near.q_norm.weight, near.norm_after_rope) == (9, True, False, True)
    assert (wide.rope, wide.window, wide.q_norm, wide.temperature.length) == (None, None, None, 5)
    assert [type(ffn) for ffn in ffns(tiny_spec("llama4"))] == [Dense, Experts] * 2
    keys = ".attention.sliding_window", ".attention.temperature_scale", ".attention.temperature_length"
    near, wide = (read_spec(changed("llama4", dict.fromkeys(keys))).layers[i].mixer for i in (0, 3))
    assert (near.window, wide.temperature.length, wide.temperature.slope) == (8192, 8192, 0.1)
    spec = read_spec(changed("llama4", {".attention.sliding_window": 0}))
    assert {(layer.mixer.window, layer.mixer.rope is None) for layer in spec.layers} == {(None, False)}


def test_the_first_of_four_layers_is_global():
    mixers = [layer.mixer for layer in tiny_spec("smallthinker").layers]
    assert [mixer.window for mixer in mixers] == [None, 6, 6, 6, None]
    assert [mixer.rope is None for mixer in mixers] == [True, False, False, False, True]


def test_dense_layers_at_the_start_have_a_rope(changed):
    for n_dense, expected in ((1, [False] * 4 + [True]), (0, [True, *[False] * 3, True])):
        layers = read_spec(changed("cohere2moe", {".leading_dense_block_count": n_dense})).layers
        assert [layer.mixer.rope is None for layer in layers] == expected


NAN = float("nan")
HOSTILE = [
    *[("mixtral", {".expert_count": bad}, ".expert_count") for bad in (-1, 5000, 1 << 40, 2.5)],
    *[("mixtral", {".expert_used_count": bad}, ".expert_used_count") for bad in (None, 0, 8, "2")],
    ("mixtral", {".expert_group_count": 2}, ".expert_group_count"),
    ("mixtral", {".expert_weights_scale": NAN}, ".expert_weights_scale"),
    ("mixtral", {".expert_count": 6}, "blk.0.ffn_gate_inp.weight"),
    ("mixtral", {".final_logit_softcapping": 30.0}, ".final_logit_softcapping"),
    ("deepseek3", {".expert_group_used_count": 5}, ".expert_group_used_count"),
    ("deepseek3", {".expert_group_used_count": 1}, ".expert_group_count"),
    ("deepseek3", {".expert_group_count": 3}, ".expert_group_count"),
    ("deepseek3", {".expert_gating_func": 4}, ".expert_gating_func"),
    ("deepseek3", {".leading_dense_block_count": 3}, ".leading_dense_block_count"),
    ("deepseek3", {".expert_shared_count": 1 << 40}, ".expert_shared_count"),
    *[("deepseek3", {".rope.dimension_count": bad}, ".rope.dimension_count") for bad in (0, 7, 24, 1 << 31)],
    ("deepseek3", {".rope.scaling.type": "linear"}, ".rope.scaling.type"),
    ("deepseek3", {".rope.scaling.yarn_log_multiplier": NAN}, ".rope.scaling.yarn_log_multiplier"),
    ("deepseek3", {".attention.kv_lora_rank": None}, ".attention.kv_lora_rank"),
    ("deepseek3", {".attention.value_length_mla": 0}, ".attention.value_length_mla"),
    ("deepseek3", {".attention.temperature_scale": 0.1}, ".attention.temperature_scale"),
    *[("glm4moe", {".nextn_predict_layers": bad}, ".nextn_predict_layers") for bad in (-1, 3, 1 << 62)],
    ("gpt-oss", {".attention.sliding_window": None}, ".attention.sliding_window"),
    *[("gpt-oss", {".rope.scaling.factor": bad}, ".rope.scaling.factor") for bad in (NAN, 0.5, -1.0)],
    ("gpt-oss", {".rope.scaling.original_context_length": 0}, ".rope.scaling.original_context_length"),
    ("phimoe", {".expert_used_count": 3}, ".expert_used_count"),
    ("phimoe", {".expert_jitter": NAN}, ".expert_jitter"),
    ("llama4", {".attention.temperature_length": 0}, ".attention.temperature_length"),
    ("cohere2moe", {".attention.layer_norm_epsilon": None}, ".attention.layer_norm_epsilon"),
    ("olmoe", {".attention.clamp_kqv": 8.0}, ".attention.clamp_kqv"),
    ("minimax-m2", {".expert_gating_func": 9}, ".expert_gating_func"),
    ("ernie4_5-moe", {".expert_shared_count": 1 << 40}, ".expert_shared_count"),
    ("granitemoe", {".logit_scale": 0.0}, ".logit_scale"),
    ("granitemoe", {".residual_scale": NAN}, ".residual_scale"),
    *[
        ("gemma4-e", {".attention.shared_kv_layers": bad}, ".attention.shared_kv_layers")
        for bad in (-1, 5, 1 << 40)
    ],
    ("gemma4-e", {".attention.shared_kv_layers": 4}, ".attention.head_count_kv"),
    ("gemma4-e", {".attention.sliding_window_pattern": [True]}, ".attention.sliding_window_pattern"),
    ("gemma4-e", {".embedding_length_per_layer_input": 1 << 40}, ".embedding_length_per_layer_input"),
    ("gemma4-e", {".feed_forward_length": [32, 32, 0, 32, 32]}, ".feed_forward_length"),
    ("gemma4", {".attention.head_count_kv": [2, 2, 3, 2, 1]}, ".attention.head_count_kv"),
    ("gemma4", {".attention.value_length_swa": 16}, ".attention.value_length_swa"),
    ("gemma4", {".rope.dimension_count_swa": 9}, ".rope.dimension_count_swa"),
    ("gemma4", {".rope.dimension_count_swa": 7}, ".rope.dimension_count_swa"),
]


@pytest.mark.parametrize(
    ("name", "keys", "named"),
    [
        pytest.param(*case, id=f"{case[0]} " + " ".join(f"{k}={v}" for k, v in case[1].items()))
        for case in HOSTILE
    ],
)
def test_hostile_metadata(changed, name, keys, named):
    file = changed(name, keys)
    arch = tiny_spec(name).architecture
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            read_spec(file)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert (arch + named if named[0] == "." else named) in str(caught.value)


def mixtral_of_2023():
    """The tensors of Mixtral with one for each expert, and those that they replace."""
    changes = {}
    for name, tensor in tiny_file("mixtral").tensors.items():
        if "_exps" in name:
            matrices = tensor.dequantize()
            changes[name] = None
            changes |= {name.replace("_exps", f".{e}"): matrix for e, matrix in enumerate(matrices)}
    return changes


def test_mixtral_with_a_tensor_for_each_expert(changed):
    file = changed("mixtral", tensors=mixtral_of_2023())
    spec = read_spec(file, 64)
    assert "blk.1.ffn_gate.6.weight" in spec.tensors()
    tokens = answer("mixtral", "tokens.0")
    for backend, options in ((ReferenceBackend, ()), (NativeBackend, (1,))):
        same = backend(tiny_file("mixtral"), tiny_spec("mixtral"), 64, *options)
        assert (text_logits(backend(file, spec, 64, *options), tokens) == text_logits(same, tokens)).all()


def test_an_expert_too_few_is_named(changed):
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.6\.weight.*missing; is the file complete"):
        read_spec(changed("mixtral", tensors=mixtral_of_2023() | {"blk.1.ffn_up.6.weight": None}))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("qwen3moe", "blk.0.ffn_up_exps.weight", "blk.0.ffn_up.0.weight"),
        ("qwen3", "blk.0.attn_q.weight", "blk.0.attn_qkv.weight"),
    ],
)
def test_an_outdated_layout_is_named(changed, name, old, new):
    array = tiny_file(name).tensors[old].dequantize()
    with pytest.raises(ModelError, match=rf"'{new}' is there: .*a recent converter"):
        read_spec(changed(name, tensors={old: None, new: array}))


def test_the_layout_of_another_converter_is_named(changed):
    with pytest.raises(ModelError, match=r"'gptoss' is a layout of another converter.*'gpt-oss'"):
        read_spec(changed("gpt-oss", {"general.architecture": "gptoss"}))


def test_layers_without_a_router_are_dense():
    assert [type(ffn) for ffn in ffns(tiny_spec("ernie4_5-moe"))] == [Dense, Experts, Experts]
    assert ffns(tiny_spec("ernie4_5-moe"))[1].shared.n_ff == 32


def test_queries_and_keys_normalised_as_a_whole():
    for name, rotated in (("olmoe", 8), ("minimax-m2", 4)):
        mixer = tiny_spec(name).layers[0].mixer
        assert mixer.q_norm == Norm("attn_q_norm", EPS, over="all")
        assert 2 * len(mixer.rope.frequencies) == rotated
    assert not ffns(tiny_spec("olmoe"))[0].routing.normalize


def test_a_correction_with_an_axis_more(changed):
    bias = tiny_file("ernie4_5-moe").tensors["blk.1.exp_probs_b.bias"].dequantize()
    file = changed("ernie4_5-moe", tensors={"blk.1.exp_probs_b.bias": bias[None]})
    tokens, spec = answer("ernie4_5-moe", "tokens.0")[:9], read_spec(file, 64)
    for backend, options in ((ReferenceBackend, ()), (NativeBackend, (1,))):
        same = backend(tiny_file("ernie4_5-moe"), spec, 64, *options)
        assert (text_logits(backend(file, spec, 64, *options), tokens) == text_logits(same, tokens)).all()


def test_windows_beside_global_layers():
    spec = tiny_spec("exaone-moe")
    assert [layer.mixer.window for layer in spec.layers] == [6, 6, 6, None]
    assert [layer.mixer.rope is None for layer in spec.layers] == [False, False, False, True]
    mellum = [layer.mixer for layer in tiny_spec("mellum").layers]
    assert [mixer.window for mixer in mellum] == [7, None, 7]
    assert (mellum[0].rope.magnitude, mellum[1].rope.magnitude) == (1.0, pytest.approx(1 + 0.1 * log(4)))


def test_minicpm_has_its_multipliers_where_files_do_not_say_them(changed):
    names = ".embedding_scale", ".residual_scale", ".logit_scale"
    spec = read_spec(changed("minicpm", dict.fromkeys(names)))
    n = spec.n_layer
    assert (spec.embedding_scale, spec.logit_scale) == (12.0, pytest.approx(256 / 48))
    assert spec.layers[0].residual_scale == pytest.approx(1.4 * n**-0.5)


def test_latent_attention_in_a_dense_model():
    spec = tiny_spec("minicpm3", 24)
    mixer = spec.layers[0].mixer
    assert (mixer.rope.pairs, mixer.rope.chosen, mixer.fused) == ("halves", "rope up to 24 tokens", True)
    longer = tiny_spec("minicpm3", 64)
    assert longer.layers[0].mixer.rope.chosen == "rope beyond 24 tokens"
    assert spec.kv_layout != longer.kv_layout
