"""Adapters in files: what is not one of this model, or not sound, is refused by name before it is used."""

import json
import struct

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.weights.adapters import read_adapter
from stretto.weights.folders.conversion import adjacent
from stretto.weights.writer import write_gguf
from tiny_adapters import (
    ALPHA,
    RANK,
    head,
    matrices,
    random_pairs,
    target,
    write_adapter,
    write_peft,
    write_safetensors,
)
from tiny_models import tiny_spec

Q = "blk.0.attn_q.weight"
HF = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def pair(rows=64, columns=64, rank=RANK, number=0.5):
    return np.full((rank, columns), number, np.float32), np.full((rows, rank), number, np.float32)


def shape(name="llama", matrix=Q):
    return target(name).shapes[matrix]


def write(path, tensors, **changes):
    write_gguf(path, head("llama", **changes), tensors)
    return path


def whole(rank=RANK, **changes):
    rows, columns = shape()
    a, b = pair(rows, columns, rank)
    return {f"{Q}.lora_a": a, f"{Q}.lora_b": b, **changes}


def test_a_file_is_read_with_its_scale(tmp_path):
    pairs = random_pairs(matrices("llama"))
    lora = read_adapter(write_adapter(tmp_path / "a.gguf", "llama", pairs), target("llama"))
    assert lora.pairs.keys() == pairs.keys()
    assert lora.rank == RANK
    for name, found in lora.pairs.items():
        assert np.array_equal(found.a, pairs[name][0])
        assert np.array_equal(found.b, pairs[name][1])
        assert found.scale == ALPHA / RANK


def test_without_alpha_changes_are_taken_as_they_are(tmp_path):
    path = write(tmp_path / "a.gguf", whole(), **{"adapter.lora.alpha": 0.0})
    assert read_adapter(path, target("llama")).pairs[Q].scale == 1.0


def test_a_fingerprint_is_of_all_numbers(tmp_path):
    prints = {
        read_adapter(write(tmp_path / "a.gguf", whole()), target("llama")).fingerprint for _ in range(2)
    }
    assert len(prints) == 1
    other = whole()
    other[f"{Q}.lora_b"][-1, -1] += 0.001
    prints.add(read_adapter(write(tmp_path / "b.gguf", other), target("llama")).fingerprint)
    scaled = write(tmp_path / "c.gguf", whole(), **{"adapter.lora.alpha": 4.0})
    prints.add(read_adapter(scaled, target("llama")).fingerprint)
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        ({}, {}, "holds no changes"),
        ({f"{Q}.lora_a": pair()[0]}, {}, r"attn_q.weight.lora_b'.*missing"),
        ({"blk.0.attn_norm.weight": np.ones(64, np.float32)}, {}, "whole tensors in an adapter"),
        (
            {"blk.99.attn_q.weight.lora_a": pair()[0], "blk.99.attn_q.weight.lora_b": pair()[1]},
            {},
            "no such matrix",
        ),
        (
            {"token_embd.weight.lora_a": pair()[0], "token_embd.weight.lora_b": pair()[1]},
            {},
            "token_embd.weight'.*not supported",
        ),
        (
            {f"{Q}.lora_a": pair(columns=48)[0], f"{Q}.lora_b": pair()[1]},
            {},
            r"4 × 48 and lora_b of .* × 4 do not make",
        ),
        ({f"{Q}.lora_a": pair(rank=5)[0], f"{Q}.lora_b": pair(rank=4)[1]}, {}, "do not make"),
        ({f"{Q}.lora_a": np.ones(64, np.float32), f"{Q}.lora_b": pair()[1]}, {}, "do not make"),
        (None, {"general.architecture": "qwen3"}, "architecture 'qwen3', and this one is 'llama'"),
        (None, {"adapter.type": "dora"}, "'dora' are not supported, only 'lora'"),
        (None, {"adapter.lora.alpha": "much"}, "must be a number"),
        (None, {"adapter.lora.alpha": float("inf")}, "must be a number"),
        (None, {"adapter.alora.invocation_tokens": [1, 2]}, "an activated LoRA"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tensors, changes, message, tmp_path):
    path = write(tmp_path / "a.gguf", whole() if tensors is None else tensors, **changes)
    with pytest.raises(ModelError, match=message) as error:
        read_adapter(path, target("llama"))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(number, tmp_path):
    tensors = whole()
    tensors[f"{Q}.lora_a"][1, 3] = number
    with pytest.raises(ModelError, match=r"attn_q.weight'.*NaN"):
        read_adapter(write(tmp_path / "a.gguf", tensors), target("llama"))


def test_a_rank_beyond_all_bounds_is_refused(tmp_path):
    with pytest.raises(ModelError, match="the rank is 4097; 1 to 4096"):
        read_adapter(write(tmp_path / "a.gguf", whole(4097)), target("llama"))


def test_the_output_of_a_tied_model_is_refused(tmp_path):
    name = "gemma3"
    assert tiny_spec(name).tied
    pairs = {"output.weight": pair(*target(name).shapes["token_embd.weight"])}
    with pytest.raises(ModelError, match="is its embedding matrix"):
        read_adapter(write_adapter(tmp_path / "a.gguf", name, pairs), target(name))


def test_experts_are_refused_by_name(tmp_path):
    pairs = {"blk.0.ffn_up_exps.weight": pair()}
    with pytest.raises(ModelError, match=r"ffn_up_exps.weight'.*not supported"):
        read_adapter(write_adapter(tmp_path / "a.gguf", "mixtral", pairs), target("mixtral"))


def test_a_model_and_a_cut_file_are_no_adapters(tmp_path):
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, whole())
    with pytest.raises(ModelError, match="is no adapter"):
        read_adapter(tmp_path / "m.gguf", target("llama"))
    data = write(tmp_path / "a.gguf", whole()).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError):
        read_adapter(tmp_path / "cut.gguf", target("llama"))
    with pytest.raises(ModelError):
        read_adapter(tmp_path / "none.gguf", target("llama"))


# -- PEFT folders --


def modules(name="llama"):
    """{module: (a, b)} of all matrices in the layers, in the order of transformers."""
    shapes = {
        f"model.layers.{i}.{module}": target(name).shapes[f"blk.{i}.{matrix}.weight"]
        for i in range(tiny_spec(name).n_layer)
        for module, matrix in HF.items()
    }
    return random_pairs(shapes)


def test_a_peft_folder_is_what_the_converter_makes_of_it(tmp_path):
    given = modules()
    lora = read_adapter(write_peft(tmp_path / "p", given), target("llama"))
    assert len(lora.pairs) == len(given)
    turn = adjacent(tiny_spec("llama").head_size).apply
    for module, (a, b) in given.items():
        _, _, layer, part = module.split(".", 3)
        found = lora.pairs[f"blk.{layer}.{HF[part]}.weight"]
        assert np.array_equal(found.a, a)
        assert np.array_equal(found.b, turn(b) if HF[part] in ("attn_q", "attn_k") else b)
        assert found.scale == ALPHA / RANK


def test_rows_are_not_reordered_where_the_file_has_them_as_transformers(tmp_path):
    given = modules("qwen3")
    lora = read_adapter(write_peft(tmp_path / "p", given), target("qwen3"))
    module = "model.layers.0.self_attn.q_proj"
    assert np.array_equal(lora.pairs[Q].b, given[module][1])


def test_scales_of_single_modules_and_roots_of_ranks(tmp_path):
    folder = write_peft(tmp_path / "p", modules(), use_rslora=True, alpha_pattern={"0.self_attn.q_proj": 6.0})
    lora = read_adapter(folder, target("llama"))
    assert lora.pairs[Q].scale == 6.0 / RANK**0.5
    assert lora.pairs["blk.1.attn_q.weight"].scale == ALPHA / RANK**0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "'IA3' are not supported, only LORA"),
        ({"use_dora": True}, "use_dora.*DoRA"),
        ({"bias": "all"}, "bias.*only 'none'"),
        ({"fan_in_fan_out": True}, "the other way round"),
        ({"lora_alpha": None}, "lora_alpha.*missing"),
        ({"lora_alpha": "x"}, "lora_alpha.*must be a number"),
        ({"alpha_pattern": {"(a+)+b": 1.0}}, "only ends of names"),
        ({"r": 0}, "r: is 0"),
    ],
)
def test_settings_that_are_not_supported_are_refused_by_name(changes, message, tmp_path):
    with pytest.raises(ModelError, match=message):
        read_adapter(write_peft(tmp_path / "p", modules(), **changes), target("llama"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "DoRA"),
        ("base_model.model.lm_head.weight", "whole modules"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "embeddings"),
        ("base_model.model.model.layers.0.self_attn.rotary.lora_A.weight", "its lora_B is missing"),
    ],
)
def test_tensors_that_are_not_supported_are_refused_by_name(name, message, tmp_path):
    folder = write_peft(tmp_path / "p", {})
    write_safetensors(folder / "adapter_model.safetensors", {name: np.ones((4, 64), np.float32)})
    with pytest.raises(ModelError, match=message):
        read_adapter(folder, target("llama"))


def test_unknown_modules_and_architectures_are_refused_by_name(tmp_path):
    folder = write_peft(tmp_path / "p", {"model.layers.0.self_attn.other_proj": pair()})
    with pytest.raises(ModelError, match=r"other_proj'.*only of lm_head and"):
        read_adapter(folder, target("llama"))
    with pytest.raises(ModelError, match="PEFT folders for 'nemotron_h' models are not supported"):
        read_adapter(folder, target("nemotron_h"))


def test_a_folder_without_weights_or_with_its_file_named_is_refused(tmp_path):
    folder = write_peft(tmp_path / "p", modules())
    with pytest.raises(ModelError, match="give the folder"):
        read_adapter(folder / "adapter_model.safetensors", target("llama"))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither adapter_model.safetensors nor adapter_model.bin"):
        read_adapter(folder, target("llama"))
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="no JSON"):
        read_adapter(folder, target("llama"))


def test_a_lying_head_is_refused(tmp_path):
    folder = write_peft(tmp_path / "p", modules())
    entry = {"dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 16]}
    text = json.dumps({"base_model.model.x.lora_A.weight": entry}).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises(ModelError, match=r"takes .* bytes, and the file gives it 16"):
        read_adapter(folder, target("llama"))


def test_a_pickle_goes_through_the_reader_that_runs_nothing(tmp_path, monkeypatch):
    folder, given = write_peft(tmp_path / "p", modules()), modules()
    expected = read_adapter(folder, target("llama")).fingerprint
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    arrays = {
        f"base_model.model.{module}.lora_{half}.weight": array
        for module, (a, b) in given.items()
        for half, array in (("A", a), ("B", b))
    }
    monkeypatch.setattr("stretto.weights.adapters.peft.read_torch", lambda path: arrays)
    assert read_adapter(folder, target("llama")).fingerprint == expected
    monkeypatch.undo()
    with pytest.raises(ModelError, match="no checkpoint of PyTorch"):
        read_adapter(folder, target("llama"))
