"""Hugging Face folders: transformers' numbers on both backends, other forms of the same, hostile files."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny_encoders
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.errors import ModelError, UnsupportedModel
from stretto.models import read_spec
from stretto.weights import safetensors
from stretto.weights.folder import Folder, open_weights
from stretto.weights.folders import KINDS
from stretto.weights.folders.quantised import MXFP4Tensor
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.safetensors import Stored
from stretto.weights.tensor import Kept
from stretto.weights.writer import write_gguf
from tiny_models import text_logits, tiny_file

DATA = Path(__file__).parent.parent / "data" / "folders"
ANSWERS = {path.parent.name: dict(np.load(path)) for path in sorted(DATA.glob("*/answers.npz"))}
DECODERS = [name for name, found in ANSWERS.items() if "logits" in found]
ENCODERS = [name for name, found in ANSWERS.items() if "hidden" in found]
N_CELLS = tiny_encoders.N_CELLS


def native(file, kv="f32"):
    return NativeBackend(file, read_spec(file), N_CELLS, 2, kv, n_slots=2)


def change_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.fixture
def copied(tmp_path):
    """A function that copies a folder, to change it."""

    def copy(name, **changes):
        folder = tmp_path / name
        shutil.copytree(DATA / name, folder)
        if changes:
            change_json(folder / "config.json", lambda config: config.update(changes))
        return folder

    return copy


# -- numbers --


@pytest.mark.golden
@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_transformers(name):
    expected = ANSWERS[name]
    with Folder(DATA / name) as file:
        found = text_logits(ReferenceBackend(file, read_spec(file), N_CELLS), expected["tokens"])
    assert np.abs(found - expected["logits"]).max() < 1e-4


@pytest.mark.golden
@pytest.mark.parametrize("name", DECODERS)
def test_logits_of_the_native_backend_are_near(name):
    expected = ANSWERS[name]
    with Folder(DATA / name) as file:
        found = text_logits(native(file), expected["tokens"])
    assert np.abs(found - expected["logits"]).max() < 1e-2


@pytest.mark.golden
@pytest.mark.parametrize("name", ENCODERS)
def test_hidden_states_and_scores_are_those_of_transformers(name):
    expected = ANSWERS[name]
    tokens = expected["tokens"].tolist()
    text = tokens, [0] * len(tokens)
    with Folder(DATA / name) as file:
        spec = read_spec(file)
        exact = tiny_encoders.hidden_of(ReferenceBackend(file, spec, N_CELLS), text)
        near = tiny_encoders.hidden_of(NativeBackend(file, spec, N_CELLS, 2, "f32"), text)
    assert np.abs(exact - expected["hidden"]).max() < 1e-4
    assert np.abs(near - expected["hidden"]).max() < 1e-2
    assert (spec.classifier is not None) == ("scores" in expected)


def test_a_folder_is_a_gguf_file_to_who_reads_it(tmp_path):
    with Folder(DATA / "llama") as file:
        write_gguf(tmp_path / "llama.gguf", dict(file.metadata), file.tensors)
        with GGUF(tmp_path / "llama.gguf") as same:
            assert read_spec(same) == read_spec(file)
            for name, tensor in same.tensors.items():
                assert np.array_equal(tensor.dequantize(), file.tensors[name].dequantize())
        assert file.nbytes == (DATA / "llama" / "model.safetensors").stat().st_size
        assert file.tensors["token_embd.weight"].format is Format.BF16
        assert file.find_file(file.tensors["token_embd.weight"]).name == "model.safetensors"
        assert len(file.fingerprint()()) == 64
    assert open_weights(DATA / "llama").metadata["general.architecture"] == "llama"


@pytest.mark.golden
@pytest.mark.parametrize("name", ["llama-biases", "mistral-window", "qwen2-window", "starcoder2-window"])
def test_a_gguf_file_of_a_folder_has_the_same_logits(tmp_path, name):
    with Folder(DATA / name) as folder:
        write_gguf(tmp_path / "model.gguf", dict(folder.metadata), folder.tensors)
    expected = ANSWERS[name]
    with GGUF(tmp_path / "model.gguf") as file:
        found = text_logits(ReferenceBackend(file, read_spec(file), N_CELLS), expected["tokens"])
    assert np.abs(found - expected["logits"]).max() < 1e-4


def test_a_llama_with_biases_in_some_layers_only_is_refused(copied):
    folder = copied("llama-biases")
    tensors = load_bf16(folder)
    assert any(tensors.pop("model.layers.1.mlp.up_proj.bias")[2])
    save_bf16(folder, tensors)
    with pytest.raises(ModelError, match=r"blk.1.ffn_up.bias: the tensor is missing"):
        read_spec(Folder(folder))


def test_weights_of_bitnet_are_rounded_to_three_values_where_the_folder_says_so(copied):
    rounded = {"quant_method": "bitnet", "quantization_mode": "online"}
    folder = copied("bitnet", quantization_config=rounded)
    with Folder(DATA / "bitnet") as plain, Folder(folder) as file:
        for name in ("attn_k", "ffn_down"):
            given, found = (f.tensors[f"blk.1.{name}.weight"].dequantize() for f in (plain, file))
            scale = np.abs(given).mean()
            np.testing.assert_allclose(found, np.clip(np.rint(given / scale), -1, 1) * scale, rtol=1e-5)
        assert np.array_equal(*(f.tensors["token_embd.weight"].dequantize() for f in (plain, file)))
    packed = {"quantization_config": {**rounded, "quantization_mode": "offline"}}
    change_json(folder / "config.json", lambda config: config.update(packed))
    with pytest.raises(
        ModelError, match=r"quantization_config\.quantization_mode: packed weights are not read"
    ):
        Folder(folder)


QWEN = {"max_position_embeddings": 8192, "num_hidden_layers": 2, "layer_types": None}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("mistral-window", {}, [6, 6]),
        ("mistral-window", {"sliding_window": None}, [None, None]),
        ("mistral-window", {"sliding_window": 64}, [None, None]),  # as long as the context
        ("llama-biases", {"sliding_window": 6}, [None, None]),  # transformers' Llama has none
        ("starcoder2-window", {"sliding_window": None}, [None, None]),
        ("qwen2-window", {}, [None, 6]),
        ("qwen2-window", {**QWEN, "max_window_layers": 0}, [6, 6]),
        ("qwen2-window", {**QWEN, "max_window_layers": None}, [None, None]),  # 28 by default
        ("qwen2-window", {**QWEN, "use_sliding_window": None}, [None, None]),
        ("qwen2-window", {"layer_types": ["sliding_attention", "full_attention"]}, [6, None]),
    ],
)
def test_windows_are_those_of_transformers(copied, name, changes, expected):
    spec = read_spec(Folder(copied(name, **changes)))
    assert [layer.mixer.window for layer in spec.layers] == expected
    assert spec.context_length == changes.get("max_position_embeddings", 64)


def test_windows_that_a_configuration_does_not_name_have_the_default(copied):
    def unnamed(config):
        del config["sliding_window"]

    for name, expected in (("mistral-window", [4096, 4096]), ("qwen2-window", [None, 4096])):
        folder = copied(name, max_position_embeddings=8192)
        change_json(folder / "config.json", unnamed)
        assert [layer.mixer.window for layer in read_spec(Folder(folder)).layers] == expected


def test_fingerprints_differ_by_configuration_and_weights(copied):
    first = Folder(DATA / "mistral").fingerprint()()
    assert Folder(copied("mistral")).fingerprint()() == first
    other = copied("qwen2", rms_norm_eps=0.5)
    assert Folder(other).fingerprint()() != Folder(DATA / "qwen2").fingerprint()()


def test_settings_by_their_older_names_mean_the_same(copied):
    folder = copied("llama")

    def older(config):
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope

    change_json(folder / "config.json", older)
    new, old = Folder(DATA / "llama"), Folder(folder)
    assert dict(new.metadata) == {**dict(old.metadata), "general.name": "llama"}
    names = "rope_freqs.weight"
    assert np.array_equal(new.tensors[names].dequantize(), old.tensors[names].dequantize())


def test_a_model_inside_another_one_is_found(copied):
    folder = copied("gemma3")
    tensors = load_bf16(folder)
    save_bf16(folder, {f"language_model.{name}": value for name, value in tensors.items()})
    save_file({"x": np.zeros(1, np.float32)}, folder / "other.safetensors")
    inner = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": inner}))
    with Folder(folder) as file:
        assert read_spec(file) == read_spec(Folder(DATA / "gemma3"))


def load_bf16(folder):
    """Tensors by name as (type, shape, bytes), which NumPy cannot have as numbers."""
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    head.pop("__metadata__", None)
    body = data[8 + size :]
    return {n: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for n, e in head.items()}


def save_bf16(folder, tensors, file="model.safetensors", pad=8):
    head, body = {}, b""
    for name, (kind, shape, data) in tensors.items():
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % pad + (0 if pad == 8 else 1))
    (folder / file).write_bytes(len(text).to_bytes(8, "little") + text + body)


def test_tensors_that_are_not_aligned_are_read(copied):
    folder = copied("qwen3")
    save_bf16(folder, load_bf16(folder), pad=2)
    expected = ANSWERS["qwen3"]
    with Folder(folder) as file:
        found = text_logits(ReferenceBackend(file, read_spec(file), N_CELLS), expected["tokens"])
    assert np.abs(found - expected["logits"]).max() < 1e-4


@pytest.mark.parametrize("end", ["_scale_inv", "_scale"])
def test_weights_in_fp8_are_multiplied_by_their_scales(copied, end):
    folder = copied("mistral")
    tensors, rng = load_bf16(folder), np.random.default_rng(3)
    name = "model.layers.0.mlp.up_proj.weight"
    codes = rng.integers(0, 0x7E, (24, 16), dtype=np.uint8) | rng.integers(0, 2, (24, 16), np.uint8) << 7
    scales = rng.uniform(0.1, 2, (1, 1) if end == "_scale_inv" else (24, 1)).astype(np.float32)
    tensors[name] = ("F8_E4M3", [24, 16], codes.tobytes())
    tensors[name + end] = ("F32", list(scales.shape), scales.tobytes())
    save_bf16(folder, tensors)
    exponent, mantissa = codes >> 3 & 15, (codes & 7).astype(float)
    plain = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    with Folder(folder) as file:
        found = file.tensors["blk.0.ffn_up.weight"]
        assert found.format is Format.BF16
        assert np.allclose(found.dequantize(), np.where(codes >> 7, -plain, plain) * scales, rtol=2.0**-8)
        read_spec(file)
    del tensors[name + end]
    save_bf16(folder, tensors)
    with pytest.raises(ModelError, match="without scales"):
        Folder(folder)


def test_baichuan_2_divides_the_rows_of_its_last_matrix_by_their_length(copied):
    with Folder(copied("baichuan", z_loss_weight=0)) as second, Folder(DATA / "baichuan") as first:
        rows, found = (file.tensors["output.weight"].dequantize() for file in (first, second))
        np.testing.assert_allclose(found, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-6)


# -- what cannot be read --


def test_kinds_that_are_not_known_are_refused_by_name(copied):
    with pytest.raises(UnsupportedModel, match="model_type 'rwkv6' are not supported, only apertus"):
        Folder(copied("llama", model_type="rwkv6"))
    assert len(KINDS) >= 40


def test_tensors_without_a_place_are_refused_by_name(copied):
    folder = copied("mistral")
    tensors = load_bf16(folder)
    save_bf16(folder, {**tensors, "model.layers.0.self_attn.gate.weight": ("BF16", [1], b"\0\0")})
    with pytest.raises(ModelError, match=r"'layers.0.self_attn.gate.weight'.*no place in a llama model"):
        Folder(folder)
    save_bf16(folder, {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": ("BF16", [1], b"\0\0")})
    Folder(folder)


def test_a_missing_or_misshapen_tensor_is_named(copied):
    folder = copied("mistral")
    tensors = load_bf16(folder)
    lacking = {name: value for name, value in tensors.items() if "layers.1.mlp.up_proj" not in name}
    save_bf16(folder, lacking)
    with pytest.raises(ModelError, match=r"blk.1.ffn_up.weight: the tensor is missing"):
        read_spec(Folder(folder))
    wrong = {**tensors, "model.layers.1.mlp.up_proj.weight": ("BF16", [16, 24], b"\0" * 768)}
    save_bf16(folder, wrong)
    with pytest.raises(ModelError, match=r"shape is \(16, 24\), not \(24, 16\)"):
        read_spec(Folder(folder))
    save_bf16(folder, {**tensors, "model.layers.1.self_attn.q_proj.weight": ("BF16", [7, 16], b"\0" * 224)})
    with pytest.raises(ModelError, match="no whole heads of 8"):
        Folder(folder)


def test_experts_of_different_shapes_are_refused(copied):
    folder = copied("qwen3moe")
    tensors = load_bf16(folder)
    tensors["model.layers.0.mlp.experts.2.up_proj.weight"] = ("BF16", [4, 16], b"\0" * 128)
    save_bf16(folder, tensors)
    with pytest.raises(ModelError, match="tensors of different shapes"):
        Folder(folder)


def test_numbers_of_other_types_are_refused(copied):
    folder = copied("mistral")
    tensors = load_bf16(folder)
    save_bf16(folder, {**tensors, "model.norm.weight": ("I8", [16], b"\0" * 16)})
    with pytest.raises(ModelError, match=r"'model.norm.weight'.*type I8 are not supported"):
        Folder(folder)


def test_a_missing_shard_and_a_lying_index_are_named(copied):
    folder = copied("mixtral")
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    name = sorted(set(places.values()))[1]
    shard = (folder / name).read_bytes()
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"{name}: one of 2 files is missing"):
        Folder(folder)
    (folder / name).write_bytes(shard)
    for wrong, message in (
        ({**places, "model.more.weight": name}, "says that it has tensor 'model.more.weight'"),
        ({**places, "model.norm.weight": "../model.safetensors"}, "no safetensors file in the same folder"),
        ({**places, "model.norm.weight": "/etc/passwd"}, "no safetensors file in the same folder"),
        ({}, "0 files"),
    ):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(ModelError, match=message):
            Folder(folder)


def test_folders_without_safetensors_say_what_they_have(copied):
    folder = copied("mistral")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickle files"):
        Folder(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match="has no weights"):
        Folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"without config\.json"):
        Folder(folder)


def head(**entry):
    text = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * 8


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0" * 4, "cut off, damaged"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "cut off, damaged"),
        ((2).to_bytes(8, "little") + b"[]", "no object"),
        ((2).to_bytes(8, "little") + b"{]", "no JSON"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, "no JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (head(dtype="F128"), "are not known"),
        (head(dtype=["F32"]), "are not known"),
        (head(shape=[-2]), "makes no sense"),
        (head(shape=[1 << 60]), "makes no sense"),
        (head(shape=[2, True]), "makes no sense"),
        (head(shape=[3]), "takes 12 bytes"),
        (head(data_offsets=[8, 16]), "cut off or damaged"),
        (head(data_offsets=[0]), "makes no sense"),
    ],
)
def test_hostile_safetensors_are_refused(copied, data, message):
    folder = copied("mistral")
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=message):
        Folder(folder)


@pytest.mark.parametrize(
    ("entry", "message"),
    [('"a":{},', "objects; at most"), ('"a":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],', "commas and brackets")],
)
def test_a_head_of_a_million_tensors_is_counted_and_not_parsed(copied, monkeypatch, entry, message):
    folder = copied("mistral")
    text = ("{" + entry * (safetensors.MAX_TENSORS + 1)).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    parsed = []
    monkeypatch.setattr(safetensors.json, "loads", lambda text: parsed.append(len(text)))
    with pytest.raises(ModelError, match=message):
        safetensors.Shard(folder / "model.safetensors")
    assert parsed == []


def test_tensors_that_overlap_are_refused(copied):
    folder = copied("mistral")
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps({"x": entry, "y": {**entry, "data_offsets": [4, 12]}}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 12)
    with pytest.raises(ModelError, match="overlap those of 'x'"):
        Folder(folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mistral", {"num_hidden_layers": 10**9}, "num_hidden_layers: is 1000000000"),
        ("mistral", {"num_hidden_layers": "2"}, "must be an integer, found a string"),
        ("mistral", {"hidden_size": None}, "hidden_size: the field is missing"),
        ("mistral", {"rope_parameters": {"rope_type": "magic"}}, "rope of type 'magic'"),
        ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "low_freq_factor: the field is missing"),
        (
            "qwen2-window",
            {"use_sliding_window": False},
            "layers with a window, but use_sliding_window is false",
        ),
        ("qwen2-window", {"sliding_window": -1}, "sliding_window: is -1"),
        ("gemma3", {"query_pre_attn_scalar": 3}, "query_pre_attn_scalar"),
        ("gemma3", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen3moe", {"num_local_experts": 1 << 20, "num_experts": 1 << 20}, "is possible"),
        ("bert", {"hidden_act": "relu"}, "only 'gelu'"),
        ("deepseek3", {"kv_lora_rank": 7}, "cannot become"),
        ("deepseek32", {"index_topk": 0}, "index_topk: is 0"),
        ("deepseek32", {"indexer_rope_interleave": True}, "only False is supported"),
        ("glm-dsa", {"indexer_types": ["shared", "full", "full", "full"]}, "the first one 'full'"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(copied, name, changes, message):
    with pytest.raises(ModelError, match=message):
        read_spec(Folder(copied(name, **changes)))


@pytest.mark.parametrize("place", ["../other", "/etc", "a/b", 7])
def test_modules_outside_of_the_folder_are_refused(copied, place):
    folder = copied("gemma-embedding")
    change_json(folder / "modules.json", lambda modules: modules[1].update(path=place))
    with pytest.raises(ModelError, match="no module of this folder"):
        Folder(folder)


def test_ways_of_pooling_are_those_of_sentence_transformers(copied):
    folder = copied("gemma-embedding")
    with Folder(folder) as file:
        assert read_spec(file).embedder.pooling == "mean"
        assert [part.rows for part in read_spec(file).embedder.projections] == [24, 16]
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert read_spec(Folder(folder)).embedder.pooling == "cls"
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ModelError, match="only the mean"):
        Folder(folder)


def test_files_of_a_copy_hold_the_same_numbers_in_float32(copied):
    folder = copied("qwen2")
    tensors = {
        name: (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
        for name, (_, shape, data) in load_bf16(folder).items()
    }
    save_file(tensors, folder / "model.safetensors")
    assert load_file(folder / "model.safetensors").keys() == tensors.keys()
    whole, half = Folder(folder), Folder(DATA / "qwen2")
    for name, tensor in whole.tensors.items():
        assert np.array_equal(tensor.dequantize(), half.tensors[name].dequantize())


def test_experts_in_mxfp4_keep_their_numbers():
    rng = np.random.default_rng(4)
    blocks = rng.integers(0, 256, (2, 6, 3, 16), dtype=np.uint8)
    scales = rng.integers(120, 130, (2, 6, 3), dtype=np.uint8)
    stored = [
        Stored(name, "U8", array.shape, 0, array.reshape(-1))
        for name, array in (("x_blocks", blocks), ("x_scales", scales))
    ]
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([values, -values])
    numbers = np.stack([values[blocks & 15], values[blocks >> 4]], axis=-1).reshape(2, 6, 3, 32)
    expected = (numbers * 2.0 ** (scales.astype(np.float32) - 127)[..., None]).reshape(2, 6, 96)
    for rows in (slice(0, None, 2), slice(1, None, 2), slice(None)):
        tensor = MXFP4Tensor("x", *stored, rows, Kept(), Path("x"))
        assert tensor.shape == expected[:, rows].shape
        assert tensor.nbytes == tensor.data.nbytes
        assert np.array_equal(tensor.dequantize(), expected[:, rows])
    with pytest.raises(ModelError, match="do not fit scales"):
        MXFP4Tensor("x", stored[1], stored[0], slice(None), Kept(), Path("x"))


def test_settings_that_a_configuration_leaves_out_are_those_of_transformers(copied):
    folder = copied("gemma3", tie_word_embeddings=None, rms_norm_eps=None, rope_parameters=None)
    change_json(folder / "config.json", lambda config: config.update(rope_local_base_freq=300.0))
    metadata = Folder(folder).metadata
    assert metadata["gemma3.attention.layer_norm_rms_epsilon"] == 1e-6
    assert metadata["gemma3.rope.freq_base"] == 1e6
    assert metadata["gemma3.rope.freq_base_swa"] == 300.0


def test_other_activations_are_refused(copied):
    with pytest.raises(ModelError, match="'relu' is not supported, only silu"):
        Folder(copied("llama", hidden_act="relu"))


@pytest.mark.parametrize("name", ["deepseek3", "glm-dsa", "modern-bert"])
def test_no_value_of_a_setting_raises_anything_else(copied, name):
    folder = copied(name)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key in config:
        for value in (None, -1, 0, "x", [None], {"a": 1}, 1 << 60, float("nan")):
            path.write_text(json.dumps({**config, key: value}))
            with suppress(ModelError):
                read_spec(Folder(folder))
    path.write_text(json.dumps(config))
    assert read_spec(Folder(folder)).n_layer


@pytest.mark.parametrize(("given", "factor"), [(None, 2.0), (4, 4.0)])
def test_nomics_own_configuration_says_how_long_it_was_trained(copied, given, factor):
    changes = {"max_trained_positions": 16, "n_positions": 64, "rotary_scaling_factor": given}
    spec = read_spec(Folder(copied("nomic-bert", **changes)))
    assert spec.context_length == 64
    stretch = spec.layers[0].attention.rope.stretch
    assert (stretch.length, stretch.factor) == (16, factor)


def test_a_scaled_rope_of_others_is_refused(copied):
    with pytest.raises(ModelError, match="a scaled rope"):
        read_spec(Folder(copied("nomic-bert", rotary_scaling_factor=2)))


def test_minicpm_is_a_llama_with_multipliers(copied):
    changes = {"model_type": "minicpm", "scale_emb": 3, "scale_depth": 2.0, "dim_model_base": 32}
    with Folder(copied("mistral", **changes)) as file:
        spec = read_spec(file)
    assert (spec.architecture, spec.embedding_scale, spec.logit_scale) == ("minicpm", 3.0, 2.0)
    assert spec.layers[0].residual_scale == pytest.approx(2.0 * spec.n_layer**-0.5)


def test_numbers_of_hunyuan_may_be_listed_for_each_layer(copied):
    folder = copied("hunyuan-moe", moe_topk=[2, 2], moe_intermediate_size=[8, 8])
    with Folder(folder) as file:
        assert read_spec(file).layers[0].ffn.routing.n_used == 2
    change_json(folder / "config.json", lambda config: config.update(moe_topk=[2, 1]))
    with pytest.raises(ModelError, match=r"moe_topk.*the same number for all layers"):
        Folder(folder)


SMALLTHINKER = {
    "model_type": "smallthinker",
    "hidden_act": "relu",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 2.0**-9,
    "rope_theta": 5500.0,
    "tie_word_embeddings": True,
    "moe_num_primary_experts": 4,
    "moe_num_active_primary_experts": 2,
    "moe_ffn_hidden_size": 32,
    "moe_primary_router_apply_softmax": False,
    "rope_layout": [0, 1, 1, 1, 0],
    "sliding_window_layout": [0, 1, 1, 1, 0],
    "sliding_window_size": 6,
}


def test_smallthinker_is_the_same_from_a_folder(tmp_path):
    """Transformers has no class that would save one: its tensors by the names that the model's maker uses."""
    names = {"token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm"}
    names |= {"ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "block_sparse_moe.primary_router"}
    names |= {"attn_output": "self_attn.o_proj"} | {f"attn_{n}": f"self_attn.{n}_proj" for n in "qkv"}
    tensors, same = {}, tiny_file("smallthinker")
    for name, tensor in same.tensors.items():
        place, _, part = name.removesuffix(".weight").rpartition(".")
        layer = f"model.layers.{place[4:]}." if place else "model."
        array = tensor.dequantize().reshape(tensor.shape)
        if part.endswith("_exps"):
            module = f"{layer}block_sparse_moe.experts"
            tensors |= {f"{module}.{e}.{part[4:-5]}.weight": one.copy() for e, one in enumerate(array)}
        else:
            tensors[f"{layer}{names[part]}.weight"] = array
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(SMALLTHINKER))
    with Folder(tmp_path) as file:
        assert read_spec(file) == read_spec(same)
        for name, tensor in same.tensors.items():
            assert (file.tensors[name].dequantize() == tensor.dequantize()).all()
    change_json(tmp_path / "config.json", lambda config: config.update(rope_layout=[1] * 5))
    with pytest.raises(ModelError, match=r"rope_layout.*must be that of the windows"):
        Folder(tmp_path)
