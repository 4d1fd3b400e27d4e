"""Adapters: small changes to a model's matrices, read from GGUF files and PEFT folders.

    lora = read_adapter("style.gguf", target)      # or a folder with adapter_config.json
    lora.pairs["blk.0.attn_q.weight"].a            # float32[rank, columns]

`target` says which model the adapter is for; what does not fit it is refused by name.
"""

from __future__ import annotations

import os
from pathlib import Path

from stretto.errors import ModelError
from stretto.weights.adapters.lora import LoRA, Pair, Target

__all__ = ["LoRA", "Pair", "Target", "read_adapter"]


def read_adapter(path: str | os.PathLike[str], target: Target) -> LoRA:
    """The adapter in a GGUF file or a PEFT folder; `ModelError` if it is none, or not one of this model."""
    from stretto.weights.adapters.gguf_file import read_gguf
    from stretto.weights.adapters.peft import CONFIG, read_peft

    place = Path(path)
    if place.is_dir():
        return read_peft(place, target)
    if place.name == CONFIG or place.suffix in (".safetensors", ".bin"):
        raise ModelError(f"is a file of a PEFT folder; give the folder, {str(place.parent)!r}", path=place)
    return read_gguf(place, target)
