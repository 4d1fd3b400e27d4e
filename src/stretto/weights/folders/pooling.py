"""What sentence-transformers puts beside a model: `modules.json` and a folder for each module after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stretto.errors import ModelError
from stretto.weights.folders.conversion import Conversion
from stretto.weights.folders.stored import SINGLE, Sources
from stretto.weights.json_file import read_json, read_object
from stretto.weights.safetensors import Shard

NONE, MEAN, CLS, LAST, RANK = range(5)  # llama.cpp's codes of pooling_type
MODES = {"pooling_mode_mean_tokens": MEAN, "pooling_mode_cls_token": CLS, "pooling_mode_lasttoken": LAST}
NAMED = {"mean": MEAN, "cls": CLS, "lasttoken": LAST}


def sentence_modules(folder: Path) -> list[tuple[str, Path]]:
    """The modules by kind, such as ("Pooling", folder / "1_Pooling"); none without a modules.json."""
    path = folder / "modules.json"
    if not path.exists():
        return []
    modules = read_json(path)
    found: list[tuple[str, Path]] = []
    for module in modules if isinstance(modules, list) else [None]:
        kind = module.get("type") if isinstance(module, dict) else None
        place = module.get("path", "") if isinstance(module, dict) else None
        inside = isinstance(place, str) and (not place or Path(place).name == place) and place != ".."
        if not isinstance(kind, str) or not inside:
            raise ModelError(f"{module!r:.100} is no module of this folder", path=path)
        found.append((kind.rpartition(".")[2], folder / str(place)))
    return found


def sentence_keys(folder: Path, arch: str, values: dict[str, Any]) -> None:
    """Set the way in which the hidden states of a text become one vector."""
    for kind, place in sentence_modules(folder):
        if kind != "Pooling":
            continue
        config = read_object(place / "config.json")
        codes = [code for name, code in MODES.items() if config.get(name) is True]
        if not codes and isinstance(config.get("pooling_mode"), str):
            codes = [NAMED[config.text("pooling_mode")]] if config.text("pooling_mode") in NAMED else []
        if len(codes) != 1:
            raise ModelError(
                "only the mean of a text's tokens, its first and its last are supported, one of them",
                path=place / "config.json",
                field="pooling_mode",
            )
        values[f"{arch}.pooling_type"] = codes[0]


# Matrices behind the pooling, which sentence-transformers keeps in folders of their own (EmbeddingGemma).

NAMES = ("dense_2", "dense_3")


def dense_modules(folder: Path, conversion: Conversion) -> list[Shard]:
    """Add the matrices to a model's tensors; the files that they are in."""
    places = [place for kind, place in sentence_modules(folder) if kind == "Dense"]
    if len(places) > len(NAMES):
        raise ModelError(f"{len(places)} matrices behind the pooling; at most two are supported", path=folder)
    shards: list[Shard] = []
    for name, place in zip(NAMES, places, strict=False):
        config = read_object(place / "config.json")
        if not config.text("activation_function", "").endswith("Identity"):
            raise config.error("activation_function", "only matrices without an activation are supported")
        shards.append(Shard(place / SINGLE))
        sources = Sources([shards[-1]], ())
        for kind in ("weight", "bias"):
            if f"linear.{kind}" in sources:
                tensor = sources.tensor(f"linear.{kind}")
                conversion.tensors[f"{name}.{kind}"] = sources.renamed(tensor, f"{name}.{kind}")
        if f"{name}.weight" not in conversion.tensors:
            raise ModelError("the tensor is missing", path=place / SINGLE, field="tensor 'linear.weight'")
    return shards
