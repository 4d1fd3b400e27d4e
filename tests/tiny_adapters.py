"""Random adapters for the tiny models, and the same models with an adapter merged into their weights."""

import json

import numpy as np

from stretto.models import read_spec
from stretto.models.summary import make_target
from stretto.weights.adapters.lora import SUPPORTED
from stretto.weights.gguf import GGUF
from stretto.weights.safetensors import safetensors_head
from stretto.weights.writer import write_gguf
from tiny_models import tiny_file

RANK = 4
ALPHA = 8.0


def target(name):
    return make_target(read_spec(tiny_file(name)))


def matrices(name):
    """The matrices of a tiny model that adapters may change, with their shapes."""
    return {one: shape for one, shape in target(name).shapes.items() if SUPPORTED.fullmatch(one)}


def random_pairs(shapes, rank=RANK, seed=1, size=0.3):
    """{name: (a, b)}, as large as makes a difference."""
    rng = np.random.default_rng(seed)
    return {
        name: (
            (size * rng.standard_normal((rank, columns))).astype(np.float32),
            (size * rng.standard_normal((rows, rank))).astype(np.float32),
        )
        for name, (rows, columns) in shapes.items()
    }


def head(architecture, **changes):
    return {
        "general.architecture": architecture,
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": ALPHA,
        **changes,
    }


def write_adapter(path, name, pairs=None, dtype=np.float32, **changes):
    """An adapter as llama.cpp's converter writes it; returns its path."""
    pairs = random_pairs(matrices(name)) if pairs is None else pairs
    tensors = {}
    for matrix, (a, b) in pairs.items():
        tensors[f"{matrix}.lora_a"], tensors[f"{matrix}.lora_b"] = a.astype(dtype), b.astype(dtype)
    write_gguf(path, head(tiny_file(name).metadata["general.architecture"], **changes), tensors)
    return path


def merged_file(path, name, *parts):
    """The tiny model in float32 with (pairs, scale) added; returns the open file."""
    source, tensors = tiny_file(name), {}
    for one, tensor in source.tensors.items():
        whole = tensor.dequantize().reshape(tensor.shape)
        for pairs, scale in parts:
            if one in pairs:
                a, b = pairs[one]
                whole = whole + np.float32(scale * ALPHA / len(a)) * (b @ a)
        tensors[one] = whole.astype(np.float32)
    write_gguf(path, dict(source.metadata), tensors, types=source.metadata.types)
    return GGUF(path)


def write_safetensors(path, arrays):
    """float32 arrays as a safetensors file."""
    with path.open("wb") as file:
        file.write(safetensors_head({}, {name: ("F32", array.shape) for name, array in arrays.items()}))
        for array in arrays.values():
            file.write(np.ascontiguousarray(array, "<f4").tobytes())


def write_peft(folder, modules, **changes):
    """A PEFT folder of {module: (a, b)}, such as model.layers.0.self_attn.q_proj; returns its path."""
    folder.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": "all-linear", **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    arrays = {}
    for module, (a, b) in modules.items():
        arrays[f"base_model.model.{module}.lora_A.weight"] = a
        arrays[f"base_model.model.{module}.lora_B.weight"] = b
    write_safetensors(folder / "adapter_model.safetensors", arrays)
    return folder
