"""Matrices behind the pooling, which sentence-transformers keeps in folders of their own (EmbeddingGemma)."""

from __future__ import annotations

from pathlib import Path

from stretto.errors import ModelError
from stretto.weights.folders.conversion import Conversion
from stretto.weights.folders.pooling import sentence_modules
from stretto.weights.folders.shards import SINGLE
from stretto.weights.folders.stored import Sources
from stretto.weights.json_file import read_object
from stretto.weights.safetensors_file import Shard

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
