"""The sampling that a model recommends, under our names: `generation_config.json`, or keys of a GGUF file.

>>> read_generation_config(Path("Qwen3-0.6B")).options
{'temperature': 0.6, 'top_k': 20, 'top_p': 0.95}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stretto.weights.metadata import Metadata

_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_KEYS = {"temp": "temperature", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty"}


@dataclass(frozen=True)
class GenerationConfig:
    """Ids that end a text, and options of `generate` that the model's authors recommend."""

    end_ids: tuple[int, ...] = ()
    options: Mapping[str, float | int] = field(default_factory=dict)


def read_generation_config(folder: Path) -> GenerationConfig:
    """The recommended options; without the file there are none. `do_sample: false` is temperature 0."""
    from stretto.text.folder_config import read_end_ids, read_optional

    fields = read_optional(folder / "generation_config.json")
    options: dict[str, float | int] = {name: fields.number(name) for name in _NUMBERS if name in fields}
    if "top_k" in fields:
        options["top_k"] = max(0, fields.integer("top_k", least=-1))  # −1 is 0: all
    if fields.get("do_sample") is False:
        options = {"temperature": 0.0}
    return GenerationConfig(read_end_ids(folder), dict(sorted(options.items())))


def read_sampling(metadata: Metadata) -> dict[str, float | int]:
    """The recommended options of a GGUF file, `general.sampling.temp` and others."""
    found = {name: f"general.sampling.{key}" for key, name in _KEYS.items()}
    # Numbers of single precision: 0.6 is meant, and not 0.6000000238418579.
    options: dict[str, float | int] = {
        name: float(f"{metadata.number(key):.6g}") for name, key in found.items() if key in metadata
    }
    if (key := "general.sampling.top_k") in metadata:
        options["top_k"] = max(0, metadata.integer(key))
    return dict(sorted(options.items()))
