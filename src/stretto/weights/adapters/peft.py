"""LoRA adapters in PEFT folders: adapter_config.json and adapter_model.safetensors.

Modules have the names of transformers there. Those of a plain decoder are mapped by the tables of the folder
reader; rows of queries and keys are reordered where a GGUF file has them in another order.
"""

from __future__ import annotations

import re
from pathlib import Path

from stretto.errors import ModelError
from stretto.weights.adapters.lora import LoRA, Read, Target, make_lora
from stretto.weights.adapters.peft_config import PeftConfig
from stretto.weights.adapters.peft_tensors import Arrays, open_arrays
from stretto.weights.folders import KINDS
from stretto.weights.folders.decoder import ATTENTION, FEED_FORWARD
from stretto.weights.folders.ops import adjacent

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
