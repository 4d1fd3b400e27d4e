"""AWQ and GPTQ folders: the same numbers as their matrices in full, and refusals that name the setting."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.errors import ModelError
from stretto.models import read_spec
from stretto.weights.folder import Folder
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.writer import write_gguf
from tiny_models import text_logits

HIDDEN, INNER, HEADS, VOCABULARY, GROUP = 64, 96, 4, 64, 32
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": 128,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
MATRICES = {
    **{f"self_attn.{kind}_proj": (HIDDEN, HIDDEN) for kind in "qkvo"},
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}


def pack_words(numbers, order=range(8)):
    """uint8[..., n] as int32[..., n / 8]: number order[i] of each eight in bits 4i to 4i + 3."""
    eights = numbers.reshape(*numbers.shape[:-1], -1, 8).astype(np.uint32)
    words = sum(eights[..., column] << np.uint32(4 * i) for i, column in enumerate(order))
    return np.ascontiguousarray(words.astype(np.uint32)).view(np.int32)


def packed_matrix(rng, shape, settings):
    """A random matrix as it is stored, by part, and in full."""
    n_out, n_in = shape
    group = n_in if settings["group_size"] == -1 else settings["group_size"]
    numbers = rng.integers(0, 16, (n_in, n_out), dtype=np.uint8)
    is_gptq = settings["quant_method"] == "gptq"
    zeros = rng.integers(1, 16, (n_in // group, n_out), dtype=np.uint8)
    if settings.get("sym"):
        zeros[:] = 8
    scales = rng.uniform(0.005, 0.05, zeros.shape).astype(np.float16)
    groups = np.arange(n_in) // group
    full = scales[groups].astype(np.float32) * (numbers.astype(np.float32) - zeros[groups])
    if is_gptq:
        less = settings.get("checkpoint_format", "gptq") == "gptq"
        weights = np.ascontiguousarray(pack_words(np.ascontiguousarray(numbers.T)).T)
        parts = {"qweight": weights, "qzeros": pack_words(zeros - less), "scales": scales}
        parts["g_idx"] = groups.astype(np.int32)
    else:
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        parts = {"qweight": pack_words(numbers, order), "qzeros": pack_words(zeros, order), "scales": scales}
    return parts, np.ascontiguousarray(full.T)


def make_folders(tmp_path, settings, change=None):
    """Two folders of one model: packed, and in full."""
    rng = np.random.default_rng(5)
    norms = ["model.norm.weight"]
    norms += [f"model.layers.{i}.{n}_layernorm.weight" for i in (0, 1) for n in ("input", "post_attention")]
    plain = {name: np.ones(HIDDEN, np.float32) for name in norms}
    plain["model.embed_tokens.weight"] = rng.normal(0, 0.5, (VOCABULARY, HIDDEN)).astype(np.float32)
    packed = dict(plain)
    for layer in range(2):
        for name, shape in MATRICES.items():
            stem = f"model.layers.{layer}.{name}"
            parts, plain[f"{stem}.weight"] = packed_matrix(rng, shape, settings)
            packed |= {f"{stem}.{part}": array for part, array in parts.items()}
            if settings["quant_method"] == "gptq":
                packed[f"{stem}.bias"] = np.zeros(shape[0], np.float16)  # as some tools write it
    if change:
        change(packed)
    folders = tmp_path / "packed", tmp_path / "full"
    for folder, tensors, more in zip(
        folders, (packed, plain), ({"quantization_config": settings}, {}), strict=True
    ):
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**CONFIG, **more}))
    return folders


@pytest.mark.parametrize(
    ("settings", "fmt"),
    [
        (AWQ, Format.Q5_0),
        ({**AWQ, "group_size": -1}, Format.Q5_0),
        (GPTQ, Format.Q4_0),
        ({**GPTQ, "checkpoint_format": "gptq_v2"}, Format.Q4_0),
        ({**GPTQ, "sym": False}, Format.Q5_0),
        ({**GPTQ, "group_size": -1}, Format.Q4_0),
    ],
)
def test_packed_numbers_are_exactly_those_in_full(tmp_path, settings, fmt):
    packed, full = (Folder(path) for path in make_folders(tmp_path, settings))
    assert list(packed.tensors) == list(full.tensors)
    assert {packed.tensors[f"blk.1.{name}.weight"].format for name in ("attn_q", "ffn_down", "attn_v")} == {
        fmt
    }
    for name, tensor in packed.tensors.items():
        assert np.array_equal(tensor.dequantize(), full.tensors[name].dequantize()), name
        assert tensor.nbytes == tensor.data.nbytes


@pytest.mark.parametrize("settings", [AWQ, GPTQ])
def test_logits_are_those_of_the_matrices_in_full(tmp_path, settings):
    packed, full = (Folder(path) for path in make_folders(tmp_path, settings))
    tokens = list(range(3, 40))
    spec = read_spec(full)
    exact = text_logits(ReferenceBackend(full, spec, 128), tokens)
    assert np.array_equal(text_logits(ReferenceBackend(packed, read_spec(packed), 128), tokens), exact)
    write_gguf(tmp_path / "same.gguf", dict(packed.metadata), packed.tensors)
    files = packed, GGUF(tmp_path / "same.gguf")
    found, same = (text_logits(NativeBackend(file, spec, 128, 1, "f32"), tokens) for file in files)
    assert np.array_equal(found, same)
    assert np.abs(found - exact).max() < 0.1 * np.abs(exact).max()  # activations have eight bits


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**GPTQ, "bits": 8}, "gptq with 8 bits is not read, only 4"),
        ({**GPTQ, "desc_act": True}, r"order of their own \(desc_act\)"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not read"),
        ({**AWQ, "version": "gemv"}, "only AWQ's gemm version"),
        ({**AWQ, "zero_point": False}, "only AWQ's gemm version with zero points"),
        ({**AWQ, "group_size": 48}, "groups of 48 are no multiple of 32"),
        ({**AWQ, "quant_method": "hqq"}, r"weights by 'hqq' \(tensor 'layers.0.*qweight'\) are not read"),
    ],
)
def test_other_packings_are_refused_by_name_with_a_remedy(tmp_path, settings, message):
    stored = AWQ if settings["quant_method"] in ("awq", "hqq") else GPTQ
    packed, _ = make_folders(tmp_path, stored)
    (packed / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": settings}))
    with pytest.raises(
        ModelError, match=f"quantization_config: .*{message}.*; take the folder that it was made of"
    ):
        Folder(packed)


def without(name):
    return lambda packed: packed.pop(name)


def replaced(name, value):
    return lambda packed: packed.update({name: value(packed[name])})


Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        (AWQ, without(f"{Q}.qzeros"), "its qzeros is missing"),
        (AWQ, replaced(f"{Q}.scales", lambda a: a[:1]), "does not fit qzeros"),
        (AWQ, replaced(f"{Q}.qweight", lambda a: a.reshape(-1)), "it is no matrix"),
        (AWQ, replaced(f"{Q}.scales", lambda a: a.astype(np.float32) * 1.0001), "float16 cannot hold"),
        (GPTQ, replaced(f"{Q}.qzeros", lambda a: a + 1), "zero points differ from 8"),
        (GPTQ, replaced(f"{Q}.g_idx", lambda a: a[::-1].copy()), r"order of their own \(desc_act\)"),
        ({**GPTQ, "sym": False}, replaced(f"{Q}.qzeros", lambda a: a | -1), "a zero point of 16"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(tmp_path, settings, change, message):
    packed, _ = make_folders(tmp_path, settings, change)
    with pytest.raises(ModelError, match=rf"tensor '{Q}\..*{message}"):
        Folder(packed).tensors["blk.0.attn_q.weight"].dequantize()
