"""Writes a model as a folder that ONNX runtimes load: the graph, its tokenizer and its configurations.

The folder appears whole or not at all: it is written under another name, and renamed at the end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx

from stretto.errors import InvalidRequest, wrong_value
from stretto.export.configs import (
    Document,
    genai_config,
    generation_config,
    model_config,
    tokenizer_config,
    tokenizer_json,
)
from stretto.export.decoder import FORMS, PRECISIONS, Progress, build, check
from stretto.export.forms import GQA_HEAD_SIZES
from stretto.export.graph import DataFile
from stretto.models import ModelSpec, read_spec
from stretto.text.loading import load_tokenizer
from stretto.weights.gguf import GGUF

MODEL = "model.onnx"
DATA = "model.onnx_data"
EXTERNAL_BYTES = 1_500_000_000  # models of more have their weights in a file of their own
LARGEST_MESSAGE = 2_000_000_000  # a little less than what a file in one piece can have
DEFAULT_CONTEXT = 32_768  # tables of rotary positions grow with it
BYTES_OF_A_WEIGHT = {"f32": 4.0, "f16": 2.0, "int8": 1.25, "int4": 1.25}


@dataclass(frozen=True)
class Exported:
    """A folder that was written."""

    path: Path
    form: str
    precision: str
    context: int
    nbytes: int
    files: tuple[str, ...]


def export_onnx(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    precision: str = "int8",
    form: str = "gqa",
    context: int | None = None,
    external_data: bool | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write the model of a GGUF file as an ONNX folder (stretto docs how-to/export).

    `context` is the longest text that the graph takes; the default is the model's own, 32,768 at most.
    `external_data` puts weights into a file beside the graph; the default is to do so from 1.5 GB on.

    >>> export_onnx("smollm2.gguf", "smollm2-onnx", precision="int4").files
    ('chat_template.jinja', 'config.json', 'genai_config.json', ...)
    """
    _check("precision", precision, PRECISIONS)
    _check("form", form, tuple(FORMS))
    target = Path(folder)
    if target.exists() and not replace:
        raise InvalidRequest(
            f"{target} exists; choose another folder, or replace it with --force (replace=True)",
            param="folder",
            value=str(target),
        )
    with GGUF(model) as file:
        whole = read_spec(file)
        length = _context(whole, context)
        spec = dataclasses.replace(whole.within(length), context_length=length)
        with _written(target) as made:
            check(spec)
            _write_texts(file, spec, made, precision, form)
            _write_model(file, spec, made, precision, form, external_data, progress)
            files = sorted(path.name for path in made.iterdir())
            nbytes = sum(path.stat().st_size for path in made.iterdir())
    return Exported(target, form, precision, length, nbytes, tuple(files))


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise wrong_value(name, value, f"one of {', '.join(map(repr, allowed))}")


def _context(spec: ModelSpec, context: int | None) -> int:
    if context is None:
        return min(spec.context_length, DEFAULT_CONTEXT)
    if not 1 <= context <= spec.context_length:
        raise wrong_value("context", context, f"from 1 to {spec.context_length}, the model's own")
    return context


@contextmanager
def _written(target: Path) -> Iterator[Path]:
    """An empty folder that becomes `target` if nothing goes wrong."""
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield made
        made.chmod(0o755)
        if target.exists():
            old = made.with_name(made.name + ".old")
            target.rename(old)
            made.rename(target)
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        else:
            made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _write_model(
    file: GGUF,
    spec: ModelSpec,
    folder: Path,
    precision: str,
    form: str,
    external_data: bool | None,
    progress: Progress | None,
) -> None:
    expected = _expected_bytes(spec, precision)
    external = expected > EXTERNAL_BYTES if external_data is None else external_data
    if not external and expected > LARGEST_MESSAGE:
        raise InvalidRequest(
            f"about {expected / 1e9:.1f} GB do not fit into one ONNX file; leave external_data to be chosen",
            param="external_data",
            value=external_data,
        )
    if external:
        with (folder / DATA).open("wb") as data:
            made = build(file, spec, precision, form, data=DataFile(data, DATA), progress=progress)
    else:
        made = build(file, spec, precision, form, progress=progress)
    onnx.save_model(made, str(folder / MODEL))


def _expected_bytes(spec: ModelSpec, precision: str) -> float:
    """About how much the weights take, and the tables of ropes."""
    weights = sum(map(prod, spec.tensors().values()))
    ropes = {layer.attention.rope for layer in spec.layers if layer.attention is not None}
    tables = sum(8 * spec.context_length * len(rope.frequencies) for rope in ropes if rope is not None)
    return weights * BYTES_OF_A_WEIGHT[precision] + tables


def _write_texts(file: GGUF, spec: ModelSpec, folder: Path, precision: str, form: str) -> None:
    """The tokenizer, the chat template and the configurations."""
    tokenizer = load_tokenizer(file.metadata)
    template = file.metadata.text("tokenizer.chat_template", "")
    _write_json(folder / "tokenizer.json", tokenizer_json(file.metadata, tokenizer))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(tokenizer, spec.context_length, template))
    _write_json(folder / "config.json", model_config(spec, tokenizer, precision))
    _write_json(folder / "generation_config.json", generation_config(tokenizer))
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    if form != "cells":
        shared = form == "gqa" and all(
            layer.attention is None or layer.attention.head_size % GQA_HEAD_SIZES == 0
            for layer in spec.layers
        )
        _write_json(folder / "genai_config.json", genai_config(spec, tokenizer, shared))


def _write_json(path: Path, document: Document) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
