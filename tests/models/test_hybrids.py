"""Specs of models with recurrent layers: what the files say, and files that say nonsense."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.models import read_spec
from stretto.models.mixers import Beside, Convolution, DeltaNet, Mamba2
from stretto.models.qwen35 import interleaved
from tiny_models import tiny_spec

F32 = np.float32


def kinds(name):
    return [type(layer.mixer).__name__ for layer in tiny_spec(name).layers]


def test_each_layer_has_the_mixer_that_the_file_says():
    nets = ["DeltaNet", "DeltaNet", "Attention", "DeltaNet"]
    assert kinds("qwen35") == kinds("qwen35moe") == nets
    assert kinds("qwen3next") == ["DeltaNet", "Attention"] * 2
    assert kinds("lfm2") == ["Convolution", "Convolution", "Attention", "Convolution", "Attention"]
    assert kinds("granitehybrid") == ["Mamba2", "Attention", "Mamba2", "Mamba2", "Attention"]
    assert kinds("nemotron_h") == ["Mamba2", "NoneType", "Attention", "NoneType", "Mamba2", "Attention"]
    assert kinds("falcon-h1") == ["Beside"] * 3


def test_a_list_of_recurrent_layers_goes_before_the_interval(changed):
    file = changed("qwen35", {".attention.recurrent_layers": [True, True, False, True, False]})
    assert read_spec(file) == tiny_spec("qwen35")
    with pytest.raises(ModelError, match=r"blk\.\d\."):  # the tensors are those of other layers
        read_spec(changed("qwen35", {".attention.recurrent_layers": [True, False, True, True, False]}))


@pytest.mark.parametrize("name", ["nemotron_h", "nemotron_h_moe"])
def test_nemotron_has_one_epsilon_under_either_name(changed, name):
    rms, layer = ".attention.layer_norm_rms_epsilon", ".attention.layer_norm_epsilon"
    assert read_spec(changed(name, {rms: None})) == tiny_spec(name)
    other = read_spec(changed(name, {rms: None, layer: 0.25}))
    assert {one.norm.eps for one in other.layers if one.norm} | {other.output_norm.eps} == {0.25}
    assert other.layers[0].mixer.norm.eps == 0.25
    with pytest.raises(ModelError, match="layer_norm"):
        read_spec(changed(name, {rms: None, layer: None}))


def test_states_have_the_sizes_of_the_mixers():
    spec = tiny_spec("qwen35")
    net = spec.layers[0].mixer
    assert isinstance(net, DeltaNet)
    assert spec.layers[0].state_floats == 3 * 80 + 6 * 8 * 8
    assert spec.state_floats == 3 * spec.layers[0].state_floats
    assert spec.recurrent == "gated delta net"
    assert tiny_spec("lfm2").layers[0].mixer == Convolution(32, 4)
    assert tiny_spec("lfm2").layers[0].state_floats == 3 * 32
    mamba = tiny_spec("nemotron_h").layers[0].mixer
    assert isinstance(mamba, Mamba2)
    assert mamba.state_floats == 2 * (64 + 2 * 2 * 10) + 64 * 10
    beside = tiny_spec("falcon-h1").layers[0]
    assert isinstance(beside.mixer, Beside)
    assert beside.kv == (2, 12)
    assert beside.state_floats == replace(mamba, kernel=4).state_floats


def test_positions_of_images_take_their_axes_in_turn():
    assert interleaved([11, 11, 10], 32) == (0, 1, 2) * 10 + (0, 1)
    assert interleaved([3, 1, 2, 0], 6) == (0, 1, 2, 0, 0, 2)
    assert tiny_spec("qwen35").layers[2].attention.rope.axes == (0, 1, 2, 0)


def test_a_block_that_predicts_further_tokens_needs_none_of_its_tensors(changed):
    extra = [name for name in changed("qwen35").tensors if name.startswith("blk.4.")]
    assert extra
    assert read_spec(changed("qwen35", tensors=dict.fromkeys(extra))) == tiny_spec("qwen35")


HOSTILE = [
    *[
        (name, {f".ssm.{key}": bad}, f".ssm.{key}")
        for name in ("qwen35", "nemotron_h")
        for key, values in {
            "conv_kernel": (0, 1, 17, 1 << 40, None),
            "time_step_rank": (0, 1 << 40, None),
            "group_count": (0, 5, None),
            "state_size": (0, 1 << 30, None),
            "inner_size": (0, 1 << 40, None),
        }.items()
        for bad in values
    ],
    ("qwen35", {".ssm.inner_size": 47}, ".ssm.inner_size"),
    ("qwen35", {".ssm.inner_size": 96}, "blk.0."),  # the tensors are of another size
    ("qwen35", {".nextn_predict_layers": 5}, ".nextn_predict_layers"),
    ("qwen35", {".nextn_predict_layers": -1}, ".nextn_predict_layers"),
    ("qwen35", {".nextn_predict_layers": 0}, "blk.4."),
    ("qwen35", {".rope.dimension_sections": [2, 2]}, ".rope.dimension_sections"),
    ("qwen35", {".rope.dimension_sections": [2, -1, 1]}, ".rope.dimension_sections"),
    ("qwen35", {".full_attention_interval": 0}, ".full_attention_interval"),
    ("qwen35", {".attention.recurrent_layers": [True]}, ".attention.recurrent_layers"),
    ("qwen35moe", {".expert_used_count": 5}, ".expert_used_count"),
    ("lfm2", {".shortconv.l_cache": 1}, ".shortconv.l_cache"),
    ("lfm2", {".attention.head_count_kv": [0, 0, 3, 0, 2]}, ".attention.head_count_kv"),
    ("lfm2", {".attention.head_count_kv": [0, 2]}, ".attention.head_count_kv"),
    ("lfm2moe", {".expert_gating_func": 9}, ".expert_gating_func"),
    ("granitehybrid", {".logit_scale": 0.0}, ".logit_scale"),
    ("granitehybrid", {".residual_scale": float("nan")}, ".residual_scale"),
    ("nemotron_h_moe", {".moe_latent_size": 8}, ".moe_latent_size"),
    *[
        ("rwkv7", {f".{key}": bad}, f".{key}")
        for key, values in {
            "wkv.head_size": (0, 7, 1 << 20, None),
            "attention.decay_lora_rank": (0, None),
            "attention.gate_lora_rank": (0, None),
            "attention.group_norm_epsilon": (-1.0, float("nan")),
            "token_shift_count": (1,),
        }.items()
        for bad in values
    ],
    ("rwkv7", {".attention.iclr_lora_rank": 1 << 31}, "blk.0.time_mix_a1.weight"),
    ("arwkv7", {".token_shift_count": 2}, ".token_shift_count"),
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
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            read_spec(file)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    arch = tiny_spec(name).architecture
    assert (arch + named if named[0] == "." else named) in str(caught.value)


RWKV_PARTS = [
    *("time_mix_ln.weight", "time_mix_ln.bias", "time_mix_g1.weight", "time_mix_k_a.weight"),
    *("channel_mix_lerp_k.weight", "channel_mix_key.weight", "channel_mix_value.weight"),
]


@pytest.mark.parametrize("part", RWKV_PARTS)
def test_what_is_missing_of_rwkv_is_named(changed, part):
    with pytest.raises(ModelError, match=f"blk.0.{part}: the tensor is missing"):
        read_spec(changed("rwkv7", tensors={f"blk.0.{part}": None}))


def test_the_first_layer_of_rwkv_needs_no_share_of_its_own_values(changed):
    extra = [f"blk.0.time_mix_v{i}.weight" for i in range(3)]
    assert read_spec(changed("rwkv7", tensors=dict.fromkeys(extra))) == tiny_spec("rwkv7")
    with pytest.raises(ModelError, match=r"blk.1.time_mix_v0.weight: the tensor is missing"):
        read_spec(changed("rwkv7", tensors={"blk.1.time_mix_v0.weight": None}))


def test_an_old_layout_of_projections_says_what_to_do(changed):
    with pytest.raises(ModelError, match="newer converter"):
        read_spec(changed("qwen3next", tensors={"blk.0.ssm_in.weight": np.zeros((128, 32), F32)}))
