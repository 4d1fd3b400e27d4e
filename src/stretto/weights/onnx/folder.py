"""Folders with an ONNX decoder, as Optimum, transformers.js and ONNX Runtime GenAI lay them out.

    Optimum            model.onnx (decoder_model_merged.onnx in older ones), config.json, tokenizer.json
    transformers.js    onnx/model_q4.onnx and others, config.json and tokenizer.json above
    GenAI              genai_config.json, which names the file

`find_folder` takes a folder or one of its .onnx files. Names and shapes come from the graph itself; the
configuration only says what a graph cannot: the context length, windows, the rope.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.errors import ModelError
from stretto.weights.json_file import read_object
from stretto.weights.onnx import read_onnx

CONFIG, GENAI = "config.json", "genai_config.json"
USUAL = ("model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx")
SUBFOLDER = "onnx"

Config = Mapping[str, Any]


@dataclass(frozen=True)
class OnnxFolder:
    """A decoder's file, and the configuration beside it: empty where a file is missing."""

    path: Path  # of the folder with the tokenizer and the configuration
    model: Path
    config: Config
    genai: Config

    @property
    def decoder(self) -> Config:
        """The decoder's part of genai_config.json."""
        found = self.genai.get("model", {})
        decoder = found.get("decoder", {}) if isinstance(found, dict) else {}
        return decoder if isinstance(decoder, dict) else {}

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end a text, by genai_config.json."""
        found = self.genai.get("model", {})
        value = found.get("eos_token_id") if isinstance(found, dict) else None
        values = value if isinstance(value, list) else [value]
        return frozenset(token for token in values[:64] if type(token) is int and token >= 0)


def is_onnx_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with ONNX files, or the file of a decoder."""
    path = Path(path)
    return is_decoder_file(path) if path.is_file() else bool(_candidates(path))


def has_other_weights(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has the same model in a format that comes first if nobody asks for ONNX."""
    path = Path(path)
    return path.is_dir() and any(any(path.glob(pattern)) for pattern in ("*.safetensors", "*.gguf"))


def is_decoder_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is an ONNX decoder of text: it takes token ids and a KV cache.

    A file that is refused is none: who opens it says what is wrong with it, within limits of its own.
    """
    path = Path(path)
    if path.suffix.lower() != ".onnx" or not path.is_file():
        return False
    try:
        inputs = read_onnx(path).inputs
    except ModelError:
        return False
    if {"tokens", "cells", "positions"} <= inputs.keys():  # an export of ours, with cell indices
        return True
    return "input_ids" in inputs and any(name.startswith("past") for name in inputs)


def find_folder(path: str | os.PathLike[str], file: str | None = None) -> OnnxFolder:
    """The folder of a decoder that is given by the folder or by its file.

    `file` chooses one of several: its name ("model_q4.onnx"), or what follows "model_" in it ("q4").

    >>> find_folder("SmolLM2-135M-Instruct", "q4").model.name
    'model_q4.onnx'
    """
    path = Path(path)
    folder = path.parent if path.is_file() else path
    if folder.name == SUBFOLDER and not (folder / CONFIG).is_file():
        folder = folder.parent
    genai = _read(folder / GENAI)
    if path.is_file():
        model = path
    elif file is not None:
        model = _chosen(folder, file)
    else:
        model = _default(folder, genai)
    return OnnxFolder(folder, model, _read(folder / CONFIG), genai)


def _candidates(folder: Path) -> list[Path]:
    """The .onnx files of a folder and of its folder `onnx`."""
    places = [folder, folder / SUBFOLDER]
    return [path for place in places if place.is_dir() for path in sorted(place.glob("*.onnx"))]


def _chosen(folder: Path, file: str) -> Path:
    found = [path for path in _candidates(folder) if file in (path.name, path.stem.rpartition("model_")[2])]
    if len(found) != 1:
        raise ModelError(
            f"file={file!r} is {len(found) or 'none'} of its files {_names(_candidates(folder))}",
            path=folder,
            field="file",
        )
    return found[0]


def _default(folder: Path, genai: Config) -> Path:
    """The file that GenAI's configuration names, the usual one, or the only one."""
    named = OnnxFolder(folder, folder, {}, genai).decoder.get("filename")
    found = _candidates(folder)
    if isinstance(named, str):
        if Path(named).name != named or not (folder / named).is_file():
            raise ModelError(
                f"no file {named!r} in the folder", path=folder / GENAI, field="model.decoder.filename"
            )
        return folder / named
    for name in USUAL:
        for path in found:
            if path.name == name:
                return path
    if len(found) == 1:
        return found[0]
    if not found:
        raise ModelError("no .onnx file in it or in its folder onnx/", path=folder)
    raise ModelError(f"several models; give the path of one of {_names(found)}", path=folder)


def _names(paths: list[Path]) -> str:
    return ", ".join(path.name for path in paths) or "(none)"


def _read(path: Path) -> Config:
    """A JSON object, or an empty one if there is no such file."""
    return dict(read_object(path)) if path.is_file() else {}
