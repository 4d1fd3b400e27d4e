"""The `ModelSpec` of a decoder's graph: what the engine needs to know, from the graph and config.json.

The graph decides shapes; config.json says what a graph cannot: the context length, sliding windows, and the
rope, without which tokens cannot be moved to other positions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx.graph import Graph
from stretto.errors import ModelError
from stretto.models.rope import plain_frequencies
from stretto.models.spec import Attention, Dense, Layer, ModelSpec, Norm, Rope, plain_layer
from stretto.weights.onnx import OnnxFile
from stretto.weights.onnx.folder import CONFIG, GENAI, OnnxFolder

# What Stretto's own exports say of themselves in their metadata: windows and ropes of each layer.
#
# It is written by `stretto.export`, and like everything in a file it may be wrong: what makes no sense is
# ignored, and then the graph and config.json are all there is.

KEY = "stretto.model"
MAX_TEXT = 4 << 20


@dataclass(frozen=True)
class Facts:
    """The windows and ropes of layers; a rope is None where keys cannot be rotated again."""

    architecture: str
    context_length: int
    windows: Mapping[int, int | None]
    ropes: Mapping[int, Rope | None]


def read_facts(graph: Graph) -> Facts | None:
    """The facts of an export, if it has them for all layers."""
    try:
        found = json.loads(_described(graph.file))
        layers = _layers(found)
        context = _positive(found["context_length"])
        facts = Facts(
            str(found["architecture"]),
            context,
            {i: _window(layer["window"]) for i, layer in layers.items()},
            {i: _layer_rope(layer, graph) for i, layer in layers.items()},
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return facts if {plane.layer for plane in graph.planes} <= layers.keys() else None


def read_kv_heads(file: OnnxFile) -> Mapping[int, int]:
    """K/V heads by layer, as an export says; none if it does not."""
    try:
        layers = _layers(json.loads(_described(file)))
        return {i: _positive(layer["kv_heads"]) for i, layer in layers.items()}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}


def _described(file: OnnxFile) -> str:
    """The text about layers, if it is not too long."""
    text = file.metadata.get(KEY, "")
    return text if len(text) <= MAX_TEXT else ""


def _layers(found: Any) -> dict[int, dict[str, Any]]:
    return {i: layer for i, layer in enumerate(found["layers"]) if isinstance(layer, dict)}


def _window(value: Any) -> int | None:
    return None if value is None else _positive(value)


def _positive(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise ValueError(value)
    return value


def _layer_rope(layer: dict[str, Any], graph: Graph) -> Rope | None:
    """Keys in the order of exports: the rotated numbers of a head in halves."""
    values = layer["frequencies"]
    if values is None or layer.get("norm_after_rope"):
        return None
    size = max(plane.size for plane in graph.planes)
    numbers = tuple(float(value) for value in values)
    if not 0 < len(numbers) <= size // 2 or not all(isfinite(number) for number in numbers):
        raise ValueError(values)
    return Rope(numbers, "halves")


MAX_CONTEXT = 1 << 24
# Families whose keys are rotated in halves right before they are stored, by the rope of config.json.
ROTATED = {
    *("arcee", "ernie4_5", "gemma", "gemma2", "gemma3", "gemma3_text", "granite", "helium", "llama"),
    *("mistral", "olmo", "olmo2", "phi3", "qwen2", "qwen3", "seed_oss", "starcoder2"),
}


@dataclass(frozen=True)
class DecoderSpec:
    """The engine's spec, and how windows and ropes are to be treated.

    `windows` are those of any layer; None if neither the graph nor config.json says whether there are any.
    `ropes` are by layer; None where a layer's keys cannot be rotated, which `is_rotated` says of the whole.
    """

    spec: ModelSpec
    windows: tuple[int, ...] | None
    ropes: Mapping[int, Rope | None]
    is_rotated: bool


def read_decoder_spec(folder: OnnxFolder, graph: Graph) -> DecoderSpec:
    """The spec of a decoder; `ModelError` names what is missing."""
    config, facts = _text_config(folder.config), read_facts(graph)
    family = str(config.get("model_type") or folder.genai.get("model", {}).get("type") or "decoder")
    windows = _layer_windows(config, graph) if facts is None else facts.windows
    layers, ropes = {}, {}
    for plane in graph.planes:
        if plane.layer not in layers:
            window = windows[plane.layer] if windows is not None else None
            if facts is not None:
                rope = facts.ropes[plane.layer]
            else:
                rope = _rope(folder, config, family, plane.size, window is not None)
            ropes[plane.layer] = rope
            layers[plane.layer] = _layer(config, folder, plane.heads, plane.size, window, rope)
    spec = ModelSpec(
        architecture=family if facts is None else facts.architecture,
        n_vocab=_n_vocab(folder, config, graph),
        n_embd=_count(config, "hidden_size", folder.decoder.get("hidden_size", 1)),
        context_length=_context(folder, config, graph, 0 if facts is None else facts.context_length),
        layers=tuple(layers[index] for index in sorted(layers)),
        output_norm=Norm("output_norm", 1e-5),
    )
    found = None if windows is None else tuple(sorted({size for size in windows.values() if size}))
    is_rotated = bool(ropes) and all(rope is not None for rope in ropes.values())
    return DecoderSpec(spec, found, ropes, is_rotated)


def _layer(
    config: Mapping[str, Any],
    folder: OnnxFolder,
    kv_heads: int,
    size: int,
    window: int | None,
    rope: Rope | None,
) -> Layer:
    heads = _count(config, "num_attention_heads", folder.decoder.get("num_attention_heads", kv_heads))
    mixer = Attention(max(heads, kv_heads), kv_heads, size, size**-0.5, rope, window)
    return plain_layer(mixer, Dense(_count(config, "intermediate_size", 1)), 1e-5)


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text part of a configuration."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def _count(config: Mapping[str, Any], key: str, default: Any) -> int:
    value = config.get(key) or default
    return value if isinstance(value, int) and 0 < value < 1 << 31 else 1


def _n_vocab(folder: OnnxFolder, config: Mapping[str, Any], graph: Graph) -> int:
    genai = folder.genai.get("model", {})
    value = graph.n_vocab or config.get("vocab_size") or (isinstance(genai, dict) and genai.get("vocab_size"))
    if not isinstance(value, int) or not 0 < value < 1 << 24:
        raise ModelError(
            f"the graph does not say how many logits there are, and vocab_size is {value!r}",
            path=folder.path / CONFIG,
            field="vocab_size",
        )
    return value


def _context(folder: OnnxFolder, config: Mapping[str, Any], graph: Graph, known: int) -> int:
    """The context length: what the configuration says, within the tables of angles that the graph has."""
    genai = folder.genai.get("model", {})
    found = known or config.get("max_position_embeddings") or config.get("n_positions")
    found = found or (isinstance(genai, dict) and genai.get("context_length")) or graph.n_rope_rows
    if not isinstance(found, int) or found < 1:
        raise ModelError(
            f"max_position_embeddings is {found!r}; {CONFIG} or {GENAI} must say how long a text may be",
            path=folder.path,
            field="max_position_embeddings",
        )
    return min(found, graph.n_rope_rows or found, MAX_CONTEXT)


def _layer_windows(config: Mapping[str, Any], graph: Graph) -> Mapping[int, int | None] | None:
    """The window of each layer, None for layers without one; None if nothing says."""
    layers = sorted({plane.layer for plane in graph.planes})
    if graph.windows is not None:
        return graph.windows
    if not config or config.get("attention_chunk_size"):
        return None
    window = config.get("sliding_window")
    kinds = config.get("layer_types")
    if config.get("use_sliding_window") is False and not isinstance(kinds, list):
        return dict.fromkeys(layers)
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        return dict.fromkeys(layers) if "sliding_window" not in config or window is None else None
    if isinstance(kinds, list) and len(kinds) > layers[-1]:
        return {layer: window if kinds[layer] == "sliding_attention" else None for layer in layers}
    return dict.fromkeys(layers, window)


def _rope(
    folder: OnnxFolder, config: Mapping[str, Any], family: str, size: int, windowed: bool
) -> Rope | None:
    """The rope of a layer, if config.json says one that is known here."""
    if family not in ROTATED:
        return None
    scaling, base = _rope_parameters(config, windowed)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    part = config.get("partial_rotary_factor", scaling.get("partial_rotary_factor", 1.0))
    rotated = int(size * part) if isinstance(part, (int, float)) and 0 < part <= 1 else 0
    if base is None or rotated < 2 or rotated % 2:
        return None
    frequencies = plain_frequencies(base, rotated)
    if kind == "linear":
        frequencies = frequencies / _number(folder, scaling, "factor")
    elif kind == "llama3":
        frequencies = _llama3(folder, scaling, frequencies)
    elif kind != "default":
        return None
    return Rope(tuple(frequencies.tolist()), "halves")


def _rope_parameters(config: Mapping[str, Any], windowed: bool) -> tuple[Mapping[str, Any], float | None]:
    """The scaling and the base of a layer's rope, in the words of old and of new configurations."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling: Mapping[str, Any] = given if isinstance(given, dict) else {}
    inner = scaling.get("sliding_attention" if windowed else "full_attention")
    if isinstance(inner, dict):
        scaling = inner
    base = scaling.get("rope_theta", config.get("rope_theta"))
    if windowed and "rope_local_base_freq" in config:
        scaling, base = {}, config["rope_local_base_freq"]
    known = isinstance(base, (int, float)) and not isinstance(base, bool) and 1.0 < base < 1e12
    return scaling, float(base) if known and base is not None else None


def _llama3(
    folder: OnnxFolder, scaling: Mapping[str, Any], frequencies: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Llama 3's scaling: long waves are stretched, short ones kept, and a ramp joins them."""
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, original = (_number(folder, scaling, name) for name in names)
    turns = original * frequencies / (2 * pi)  # within the original context
    ramp = np.clip((turns - low) / max(high - low, 1e-9), 0.0, 1.0)
    scaled: NDArray[np.float64] = frequencies * (ramp + (1 - ramp) / factor)
    return scaled


def _number(folder: OnnxFolder, config: Mapping[str, Any], key: str) -> float:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value <= 0:
        raise ModelError(f"{value!r}", path=folder.path / CONFIG, field=f"rope_scaling.{key}")
    return float(value)
