"""Specs from metadata: what the tiny files say, and hostile variants of them."""

import tracemalloc

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.models import ARCHITECTURES, read_spec
from stretto.models.spec import Dense, Norm
from stretto.weights.gguf import GGUF
from tiny_models import NAMES, tiny_file, tiny_spec


def test_llama():
    spec = tiny_spec("llama")
    assert (spec.architecture, spec.n_layer, spec.n_embd, spec.n_ff, spec.n_vocab) == ("llama", 3, 32, 48, 96)
    assert (spec.n_head, spec.n_kv_head, spec.head_size, spec.context_length) == (4, 2, 16, 128)
    assert (spec.embedding_scale, spec.tied, spec.output_norm) == (1.0, False, Norm("output_norm", 2**-9))
    for layer in spec.layers:
        assert (layer.norm, layer.ffn_norm) == (Norm("attn_norm", 2**-9), Norm("ffn_norm", 2**-9))
        assert (layer.post_norm, layer.post_ffn_norm) == (None, None)
        assert (layer.mixer.scale, layer.mixer.window, layer.mixer.bias) == (0.25, None, False)
        assert (layer.mixer.q_norm, layer.mixer.rope.pairs) == (None, "adjacent")
        assert layer.ffn == Dense(48, "silu")


def test_qwen2():
    spec = tiny_spec("qwen2")
    first = spec.layers[0]
    assert (first.mixer.bias, first.mixer.q_norm, first.post_norm, spec.tied) == (True, None, None, True)
    assert first.mixer.rope.pairs == "halves"
    assert spec.tensors()["blk.2.attn_k.bias"] == (16,)


def test_qwen3():
    spec = tiny_spec("qwen3")
    first = spec.layers[0]
    assert (first.mixer.bias, first.post_norm, spec.tied) == (False, None, True)
    assert first.mixer.k_norm == Norm("attn_k_norm", 2**-9)
    assert first.mixer.rope.pairs == "halves"
    assert spec.tensors()["blk.0.attn_q_norm.weight"] == (16,)


def test_gemma3():
    spec = tiny_spec("gemma3")
    assert [layer.mixer.window for layer in spec.layers] == [8, 8, 8, 8, 8, None, 8]
    first = spec.layers[0]
    assert (first.ffn.activation, first.mixer.q_norm.name) == ("gelu", "attn_q_norm")
    assert (first.post_norm.name, first.post_ffn_norm.name) == ("post_attention_norm", "post_ffw_norm")
    assert (spec.embedding_scale, first.mixer.scale) == (32**0.5, 0.25)
    assert spec.layers[0].mixer.rope.frequencies[1] == pytest.approx(3000 ** (-1 / 8))
    assert spec.layers[5].mixer.rope.frequencies[1] == pytest.approx(40000 ** (-1 / 8))


def test_gemma3_without_optional_keys(changed):
    spec = read_spec(changed("gemma3", {".rope.freq_base_swa": None, ".rope.dimension_count": None}))
    assert spec.layers[0].mixer.rope.frequencies[1] == pytest.approx(10_000 ** (-1 / 8))


def test_gemma3_with_another_pattern(changed):
    spec = read_spec(changed("gemma3", {".attention.sliding_window_pattern": 3}))
    assert [layer.mixer.window for layer in spec.layers] == [8, 8, None, 8, 8, None, 8]
    spec = read_spec(changed("gemma3", {".attention.sliding_window_pattern": 1}))
    assert {layer.mixer.window for layer in spec.layers} == {None}


def test_gemma3_27b_scales_attention_by_the_embedding(changed):
    file = tiny_file("gemma3")
    layers = {
        f"blk.{i}.{name.removeprefix('blk.0.')}": tensor
        for i in range(62)
        for name, tensor in file.tensors.items()
        if name.startswith("blk.0.")
    }
    spec = read_spec(changed("gemma3", {".block_count": 62}, layers))
    assert spec.layers[0].mixer.scale == (32 / 4) ** -0.5
    assert [i for i, layer in enumerate(spec.layers) if layer.mixer.window is None] == list(range(5, 62, 6))


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_is_named(name):
    spec, file = tiny_spec(name), tiny_file(name)
    assert set(spec.tensors()) == set(file.tensors) - {"rope_freqs.weight"}


def test_defaults(changed):
    keys = [".attention.key_length", ".attention.value_length", ".attention.head_count_kv", ".rope.freq_base"]
    spec = read_spec(changed("llama-linear", dict.fromkeys(keys)))
    assert (spec.head_size, spec.n_kv_head) == (8, 4)
    assert spec.layers[0].mixer.rope.frequencies[1] == pytest.approx(10_000 ** (-1 / 4) / 4)


@pytest.mark.golden
def test_real_models(smollm2_path, gemma3_path):
    spec = read_spec(GGUF(smollm2_path))
    assert (spec.architecture, spec.n_layer, spec.n_embd, spec.n_head, spec.n_kv_head) == (
        "llama",
        30,
        576,
        9,
        3,
    )
    assert (spec.head_size, spec.n_vocab, spec.tied) == (64, 49152, True)
    spec = read_spec(GGUF(gemma3_path))
    assert (spec.architecture, spec.n_layer, spec.n_embd, spec.n_head, spec.n_kv_head) == (
        "gemma3",
        18,
        640,
        4,
        1,
    )
    assert (spec.head_size, spec.n_vocab, spec.layers[0].mixer.window) == (256, 262144, 512)
    assert [i for i, layer in enumerate(spec.layers) if layer.mixer.window is None] == [5, 11, 17]


# -- hostile files --


def test_an_unsupported_architecture_names_the_supported_ones(changed):
    with pytest.raises(ModelError) as caught:
        read_spec(changed("llama", {"general.architecture": "rwkv6"}))
    message = str(caught.value)
    assert "'rwkv6'" in message
    assert ", ".join(sorted(ARCHITECTURES)) in message
    assert caught.value.field == "general.architecture"
    assert {"gemma3", "llama", "qwen2", "qwen3"} <= set(ARCHITECTURES)


REQUIRED = [
    ".embedding_length",
    ".block_count",
    ".feed_forward_length",
    ".context_length",
    ".attention.head_count",
    ".attention.layer_norm_rms_epsilon",
]
NAN, INF = float("nan"), float("inf")
COUNTS = [
    ".embedding_length",
    ".block_count",
    ".feed_forward_length",
    ".context_length",
    ".attention.head_count",
    ".attention.head_count_kv",
    ".attention.key_length",
]
HOSTILE = [
    *[("llama", {key: None}, key) for key in REQUIRED],
    *[("llama", {key: bad}, key) for key in COUNTS for bad in (0, -1, 1.5, "3", True, [3, 3, 3])],
    *[("llama", {key: 1 << 63}, key) for key in COUNTS],
    ("llama", {"general.architecture": None}, "general.architecture"),
    ("llama", {"general.architecture": 7}, "general.architecture"),
    ("gemma3", {".attention.sliding_window": None}, ".attention.sliding_window"),
    ("gemma3", {".attention.sliding_window": 0}, ".attention.sliding_window"),
    ("gemma3", {".attention.sliding_window_pattern": 0}, ".attention.sliding_window_pattern"),
    ("gemma3", {".attention.sliding_window_pattern": [True] * 7}, ".attention.sliding_window_pattern"),
    ("gemma3", {".rope.freq_base_swa": NAN}, ".rope.freq_base_swa"),
    ("gemma3", {".rope.freq_base_swa": -1.0}, ".rope.freq_base_swa"),
    ("gemma3", {".final_logit_softcapping": 30.0}, ".final_logit_softcapping"),
    ("gemma3", {".attn_logit_softcapping": 50.0}, ".attn_logit_softcapping"),
    ("gemma3", {".block_count": 1_000_000}, ".block_count"),
    ("llama", {".block_count": 1_000_000}, ".block_count"),
    ("llama", {".block_count": 1024}, "blk.3."),
    ("llama", {".attention.head_count_kv": 3}, ".attention.head_count_kv"),
    ("llama", {".attention.head_count_kv": 8}, ".attention.head_count_kv"),
    ("llama", {".attention.key_length": 1 << 31}, ".attention.key_length"),
    ("llama", {".attention.key_length": None, ".embedding_length": 1 << 31}, ".attention.key_length"),
    ("llama", {".attention.value_length": 8}, ".attention.value_length"),
    ("llama", {".expert_count": 8}, ".expert_used_count"),
    ("qwen3", {".expert_count": 128}, ".expert_count"),
    *[
        ("llama", {".attention.layer_norm_rms_epsilon": bad}, ".attention.layer_norm_rms_epsilon")
        for bad in (NAN, -1e-5, INF, 1.0, "small")
    ],
    *[("llama", {".rope.dimension_count": bad}, ".rope.dimension_count") for bad in (15, 0, -2, 18, 1 << 40)],
    *[("llama", {".rope.freq_base": bad}, ".rope.freq_base") for bad in (NAN, 0.0, 1.0, -5.0, INF)],
    ("llama", {".rope.scaling.type": "dynamic"}, ".rope.scaling.type"),
    ("llama", {".rope.scaling.type": "longrope"}, "rope_factors_long.weight"),
    ("phi3-long", {".rope.scaling.original_context_length": 0}, ".rope.scaling.original_context_length"),
    ("phi3-long", {".rope.scaling.original_context_length": None}, ".rope.scaling.original_context_length"),
    ("phi3-long", {".attention.sliding_window": -1}, ".attention.sliding_window"),
    ("mistral3", {".rope.scaling.original_context_length": None}, ".rope.scaling.original_context_length"),
    ("mistral3", {".attention.temperature_scale": NAN}, ".attention.temperature_scale"),
    *[("granite", {f".{key}": NAN}, f".{key}") for key in ("embedding_scale", "residual_scale")],
    ("granite", {".logit_scale": 0.0}, ".logit_scale"),
    ("gemma2", {".attn_logit_softcapping": -1.0}, ".attn_logit_softcapping"),
    ("gemma2", {".attention.sliding_window": 0}, ".attention.sliding_window"),
    ("exaone4", {".attention.sliding_window_pattern": [True]}, ".attention.sliding_window_pattern"),
    ("cohere2", {".attention.sliding_window_pattern": 0}, ".attention.sliding_window_pattern"),
    ("cohere2", {".logit_scale": None}, ".logit_scale"),
    *[
        ("gemma3n", {f".{key}": bad}, f".{key}")
        for key, values in {
            "attention.shared_kv_layers": (-1, 4, 5, 6, 1 << 40),
            "activation_sparsity_scale": ([1.0], [NAN] * 5, [INF] * 5, 1.0),
            "altup.active_idx": (1,),
            "altup.num_inputs": (0, 17, None),
            "embedding_length_per_layer_input": (0, None),
        }.items()
        for bad in values
    ],
    ("gemma3n", {".embedding_length_per_layer_input": 32}, "per_layer_token_embd.weight"),
    ("starcoder2", {".attention.layer_norm_epsilon": 1.0}, ".attention.layer_norm_epsilon"),
    ("llama", {".rope.scaling.type": 3}, ".rope.scaling.type"),
    *[
        ("llama-linear", {".rope.scaling.factor": bad}, ".rope.scaling.factor")
        for bad in (NAN, 0.0, -1.0, INF)
    ],
    ("llama", {".rope.scale_linear": 0.0}, ".rope.scale_linear"),
    *[
        ("llama-yarn", {f".rope.scaling.{key}": bad}, f".rope.scaling.{key}")
        for key, values in {
            "original_context_length": (0, -1, 2.5),
            "yarn_beta_fast": (NAN, 0.0, -1.0, INF, np.float64(1e-320)),
            "yarn_beta_slow": (NAN, 0.0, -1.0, INF, np.float64(1e-320)),
            "attn_factor": (NAN, 0.0, INF),
            "yarn_ext_factor": (NAN, 0.5),
            "yarn_attn_factor": (NAN, 0.0),
            "yarn_log_multiplier": (NAN, -1.0, INF),
        }.items()
        for bad in values
    ],
]


@pytest.mark.parametrize(
    ("name", "keys", "named"),
    [pytest.param(*case, id=" ".join(f"{k}={v}" for k, v in case[1].items())) for case in HOSTILE],
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
    assert str(file.path) in str(caught.value)


F32 = np.float32
TENSORS = [
    ("llama", "token_embd.weight", None),
    ("llama", "output_norm.weight", None),
    ("llama", "blk.2.ffn_down.weight", None),
    ("gemma3", "blk.6.post_ffw_norm.weight", None),
    ("qwen2", "blk.0.attn_k.bias", None),
    ("qwen3", "blk.1.attn_k_norm.weight", None),
    ("llama", "token_embd.weight", np.zeros(96, F32)),
    ("llama", "token_embd.weight", np.zeros((96, 31), F32)),
    ("llama", "output.weight", np.zeros((95, 32), F32)),
    ("llama", "output_norm.weight", np.zeros((1, 32), F32)),
    ("llama", "blk.1.attn_q.weight", np.zeros((32, 64), F32)),  # on its side
    ("qwen3", "blk.1.attn_k_norm.weight", np.zeros(32, F32)),
    # What would be ignored otherwise, and must not be.
    ("llama", "blk.1.attn_q.bias", np.zeros(64, F32)),
    ("llama", "blk.1.attn_output.bias", np.zeros(32, F32)),
    ("qwen2", "blk.1.attn_q_norm.weight", np.zeros(8, F32)),
    ("llama", "blk.3.attn_q.weight", np.zeros((64, 32), F32)),
    ("llama", "output.bias", np.zeros(96, F32)),
    ("llama-llama3", "rope_freqs.weight", np.ones(7, F32)),
    ("llama-llama3", "rope_freqs.weight", np.ones((2, 4), F32)),
    ("llama-llama3", "rope_freqs.weight", np.zeros(8, F32)),
    ("llama-llama3", "rope_freqs.weight", np.full(8, np.nan, F32)),
]


@pytest.mark.parametrize(
    ("name", "tensor", "value"),
    [
        pytest.param(*case, id=f"{case[0]} {case[1]} {'missing' if case[2] is None else case[2].shape}")
        for case in TENSORS
    ],
)
def test_hostile_tensors(changed, name, tensor, value):
    with pytest.raises(ModelError, match=tensor.replace(".", r"\.")):
        read_spec(changed(name, tensors={tensor: value}))


def test_tensors_that_repeat_the_metadata_are_passed_over(changed):
    file = changed("llama", tensors={"blk.0.attn_rot_embd.weight": np.ones(8, F32)})
    assert read_spec(file) == tiny_spec("llama")


def test_a_file_of_something_else(changed):
    file = changed("llama", {"general.architecture": "qwen2"})
    with pytest.raises(ModelError, match=r"qwen2\.\S+: the key is missing"):
        read_spec(file)
