"""LoRA adapters in PEFT folders: adapter_config.json and adapter_model.safetensors.

Modules have the names of transformers there. Those of a plain decoder are mapped by the tables of the folder
reader; rows of queries and keys are reordered where a GGUF file has them in another order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from stretto.errors import ModelError
from stretto.weights.adapters.lora import Floats, LoRA, Read, Shape, Target, make_lora
from stretto.weights.folders import KINDS
from stretto.weights.folders.conversion import adjacent
from stretto.weights.folders.decoder import ATTENTION, FEED_FORWARD
from stretto.weights.folders.stored import Sources
from stretto.weights.json_file import Fields, read_object
from stretto.weights.safetensors import Shard
from stretto.weights.tensor import Array, Op
from stretto.weights.torch_file import read_torch

# The settings of a PEFT adapter; those that would change the result and are not supported are refused.

PLAIN_NAME = re.compile(r"[A-Za-z0-9_.]+")
# Settings that must be as they are by default.
REFUSED = {
    "use_dora": "DoRA, which scales columns too,",
    "fan_in_fan_out": "a matrix stored the other way round",
    "use_qalora": "QALoRA",
    "alora_invocation_tokens": "an activated LoRA, which changes a text from some tokens on only,",
    "layer_replication": "a model whose layers are repeated",
    "arrow_config": "a mixture of adapters",
    "lora_bias": "a bias of the narrow matrices",
    "trainable_token_indices": "embeddings of single tokens",
    "target_parameters": "parameters that are no modules",
}


@dataclass(frozen=True)
class PeftConfig:
    """What scales the changes: alpha / r, or with `rooted` alpha / √r."""

    alpha: float
    alphas: dict[str, float]  # of modules by the end of their names
    rooted: bool

    @classmethod
    def read(cls, path: Path) -> PeftConfig:
        """Read adapter_config.json."""
        config = read_object(path)
        kind = config.text("peft_type", "")
        if kind.upper() != "LORA":
            raise config.error("peft_type", f"adapters of type {kind!r} are not supported, only LORA")
        for name, what in REFUSED.items():
            if config.get(name):
                raise config.error(name, f"{what} is not supported")
        if config.get("bias", "none") != "none":
            raise config.error("bias", "biases are not supported, only 'none'")
        config.integer("r", least=1)
        return cls(config.number("lora_alpha"), _alphas(config), config.flag("use_rslora", False))

    def scale(self, module: str, rank: int) -> float:
        """The factor of a module's change."""
        ends = (name for name in self.alphas if module == name or module.endswith(f".{name}"))
        alpha = self.alphas.get(next(ends, ""), self.alpha)
        return alpha / (rank**0.5 if self.rooted else rank)


def _alphas(config: Fields) -> dict[str, float]:
    pattern = config.object("alpha_pattern", {})
    for name in pattern:
        if not PLAIN_NAME.fullmatch(name):
            raise config.error(
                "alpha_pattern", f"{name!r:.80}: only ends of names are supported, no patterns"
            )
    return {name: pattern.number(name) for name in pattern}


# The arrays of a PEFT folder: safetensors, or a pickle that is only read (weights/torch_file.py).

SAFE, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
FLOATS = ("float16", "float32", "float64")


class Arrays(Protocol):
    """Named arrays of numbers."""

    def names(self) -> list[str]:
        """All names."""
        ...

    def shape(self, name: str) -> Shape:
        """The shape of an array."""
        ...

    def reader(self, name: str, op: Op | None = None) -> Read:
        """What reads an array as float32, its rows moved by `op`."""
        ...


class Shards:
    """Arrays of a safetensors file."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def names(self) -> list[str]:
        """All names."""
        return sorted(self._sources.names())

    def shape(self, name: str) -> Shape:
        """The shape of an array; `ModelError` for types that are not of floats."""
        return self._sources.tensor(name).shape

    def reader(self, name: str, op: Op | None = None) -> Read:
        """What reads an array as float32."""
        tensor = self._sources.tensor(name)
        return lambda: move_rows(tensor.dequantize().reshape(tensor.shape), op)


class Pickled:
    """Arrays of a checkpoint of PyTorch."""

    def __init__(self, arrays: Mapping[str, Array], path: Path) -> None:
        self._arrays, self._path = arrays, path

    def names(self) -> list[str]:
        """All names."""
        return sorted(self._arrays)

    def shape(self, name: str) -> Shape:
        """The shape of an array; `ModelError` for types that are not of floats."""
        array = self._arrays[name]
        if array.dtype.name not in FLOATS:
            raise ModelError(
                f"numbers of type {array.dtype} are not supported", path=self._path, field=f"tensor {name!r}"
            )
        return array.shape

    def reader(self, name: str, op: Op | None = None) -> Read:
        """What reads an array as float32."""
        return lambda: move_rows(self._arrays[name].astype(np.float32), op)


def move_rows(numbers: Floats, op: Op | None) -> Floats:
    """The numbers, with rows in another order if there is one."""
    return numbers if op is None else np.ascontiguousarray(op.apply(numbers), np.float32)


@contextmanager
def open_arrays(folder: Path) -> Iterator[Arrays]:
    """The arrays of a folder's weights."""
    if (folder / SAFE).exists():
        shard = Shard(folder / SAFE)
        try:
            yield Shards(Sources([shard], ()))
        finally:
            shard.close()
    elif (folder / PICKLE).exists():
        yield Pickled(read_torch(folder / PICKLE), folder / PICKLE)
    else:
        raise ModelError(f"has neither {SAFE} nor {PICKLE}; is the folder complete?", path=folder)


CONFIG = "adapter_config.json"

# Architectures whose folders have plain names; those of the second set have queries and keys reordered.
PLAIN = frozenset(
    {
        *("qwen2", "qwen3", "qwen3vl", "qwen2moe", "qwen3moe", "gemma", "gemma2", "gemma3", "command-r"),
        *("cohere2", "exaone4", "olmo2", "ernie4_5", "seed_oss", "hunyuan-dense", "glm4moe", "gpt-oss"),
    }
)
REORDERED = frozenset({"llama", "mistral3", "smollm3", "granite", "granitemoe"})
NAMES = {
    **{arch: {**ATTENTION, **FEED_FORWARD} for arch in PLAIN | REORDERED},
    "phi3": {
        **ATTENTION,
        "self_attn.qkv_proj": "attn_qkv",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
    "glm4": {**ATTENTION, "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
    "starcoder2": {**ATTENTION, "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
}
LAYER = re.compile(r"layers\.([0-9]{1,4})\.(.+)")
HALVES = re.compile(r"base_model\.model\.(.+)\.lora_(A|B)(?:\.[A-Za-z0-9_-]+)?\.weight")


def read_peft(folder: Path, target: Target) -> LoRA:
    """The adapter in a folder; its shapes are checked before any number is used."""
    config = PeftConfig.read(folder / CONFIG)
    if target.architecture not in NAMES:
        raise ModelError(
            f"PEFT folders for {target.architecture!r} models are not supported, only for "
            f"{', '.join(sorted(NAMES))}; convert it with llama.cpp's convert_lora_to_gguf.py",
            path=folder,
        )
    with open_arrays(folder) as arrays:
        parts: dict[str, tuple[Read, Read, float]] = {}
        for module, (a, b) in _halves(arrays, folder).items():
            name = _name(module, target, folder)
            target.check(name, arrays.shape(a), arrays.shape(b), folder)
            reorders = target.architecture in REORDERED and name.endswith(("attn_q.weight", "attn_k.weight"))
            parts[name] = (
                arrays.reader(a),
                arrays.reader(b, adjacent(target.head_size) if reorders else None),
                config.scale(module, arrays.shape(a)[0]),
            )
        return make_lora(folder, parts)


def _halves(arrays: Arrays, folder: Path) -> dict[str, tuple[str, str]]:
    """The names of lora_A and lora_B of each module; whatever else is in the file is refused by name."""
    found: dict[str, dict[str, str]] = {}
    for name in arrays.names():
        match = HALVES.fullmatch(name)
        if match is None:
            raise ModelError(
                "is neither lora_A nor lora_B of a matrix; DoRA, biases, embeddings and whole modules "
                "(modules_to_save) are not supported",
                path=folder,
                field=f"tensor {name!r}",
            )
        module, half = match.groups()
        if half in found.setdefault(module, {}):
            raise ModelError("it is there twice, for two adapters", path=folder, field=f"tensor {name!r}")
        found[module][half] = name
    for module, halves in found.items():
        for half in "AB":
            if half not in halves:
                raise ModelError(f"its lora_{half} is missing", path=folder, field=f"module {module!r}")
    return {module: (halves["A"], halves["B"]) for module, halves in found.items()}


def _name(module: str, target: Target, folder: Path) -> str:
    """The name in a GGUF file of the matrix that a module has."""
    kinds = [kind for kind in KINDS.values() if kind.arch == target.architecture]
    prefixes = kinds[0].prefixes if kinds else ()
    short = next((module.removeprefix(prefix) for prefix in prefixes if module.startswith(prefix)), module)
    if short == "lm_head":
        return "output.weight"
    layer = LAYER.fullmatch(short)
    if layer is not None and (known := NAMES[target.architecture].get(layer[2])) is not None:
        return f"blk.{int(layer[1])}.{known}.weight"
    raise ModelError(
        f"changes of this module are not supported in {target.architecture!r} models, only of lm_head and "
        f"{', '.join(sorted(NAMES[target.architecture]))}",
        path=folder,
        field=f"module {module!r}",
    )
