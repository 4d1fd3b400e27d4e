"""From a model's name to its files, and what these say: spec, text, fingerprint, recommended options.

    with describe("smollm2", "gguf", LoadOptions()) as description:
        description.spec.n_layer, description.read_text()

No weights are read for it, but for samples of them if a fingerprint is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Any, Literal

from stretto.errors import ModelError, UnsupportedModel
from stretto.hardware import usable_cores
from stretto.models import ModelSpec, read_spec
from stretto.options.loading import LoadOptions
from stretto.text.loading import (
    load_gguf_template,
    load_gguf_tokenizer,
    load_template_folder,
    load_tokenizer_folder,
)
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.weights import hub
from stretto.weights.folder import open_weights
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import Metadata

if TYPE_CHECKING:
    from stretto.weights.onnx.folder import OnnxFolder
    from stretto.weights.onnx.model import OnnxFile

Kind = Literal["gguf", "onnx", "task"]
Model = str | os.PathLike[str]


def find_kind(model: Model, backend: str = "auto") -> Kind:
    """The kind of a model's files; nothing is downloaded to find out.

    "gguf" is a GGUF file, or a folder that is read as one; "onnx" a decoder that ONNX Runtime is to run;
    "task" a model that is no language model. What has a form of several kinds is "onnx" only by request.

    >>> find_kind("smollm2"), find_kind("centernet")
    ('gguf', 'task')
    """
    if hub.is_task(model):
        return "task"
    path = Path(model).expanduser()
    if path.suffix.lower() != ".onnx" and not path.is_dir():
        return "gguf"
    from stretto.weights.onnx.folder import has_other_weights, is_onnx_folder

    return "onnx" if is_onnx_folder(path) and (backend == "onnx" or not has_other_weights(path)) else "gguf"


def open_file(model: Model, options: LoadOptions, check: Callable[[Path], None] | None = None) -> GGUF:
    """Open a model's GGUF file or folder, in the formats that `quantize` names.

    `check` is asked before a download, with the head of the file.
    """
    file = open_weights(hub.resolve(model, check=check))
    if options.quantize is None:
        return file
    from stretto.quantize.model import QuantisedFile

    try:
        return QuantisedFile(file, options.quantize, options.threads or usable_cores())
    except BaseException:
        file.close()
        raise


Text = tuple[Tokenizer, ChatTemplate | None]

# Names of recommended options in generation_config.json; in GGUF files by other names.
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_KEYS = {"temp": "temperature", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty"}

# Of an ONNX model's fingerprint.
WHOLE_BYTES = 16 << 20  # files up to this size are read as they are
STRIDE_BYTES, SAMPLE_BYTES = 1 << 20, 4096  # of larger ones, a sample in each so many bytes


@dataclass(frozen=True)
class FileDescription:
    """A GGUF file, or a folder in the form of one; `spec` is a bare one if there is a `problem`."""

    file: GGUF
    spec: ModelSpec
    problem: UnsupportedModel | None  # why Stretto's own backends cannot run it

    @property
    def path(self) -> Path:
        """Of the file or the folder."""
        return self.file.path

    @property
    def files(self) -> Collection[Path]:
        """Those that a running model may read from."""
        return self.file.files

    @property
    def rerank_template(self) -> str:
        """Of a decoder that is used as a cross-encoder."""
        return self.file.metadata.text("tokenizer.chat_template.rerank", "")

    def read_text(self) -> Text:
        """The tokenizer and the chat template."""
        source = getattr(self.file, "source", self.file)  # of one that is quantised while it is loaded
        tokenizer = load_gguf_tokenizer(source)
        check_vocabulary(tokenizer, self.spec, self.path)
        template = load_gguf_template(source, tokenizer)
        self.file.forget()  # the head has been read; pages that are being packed are mapped again
        return tokenizer, template

    def read_fingerprint(self) -> Callable[[], str]:
        """The fingerprint, as text when it is called; pages that it needs are read now."""
        return self.file.fingerprint()

    def read_defaults(self) -> Mapping[str, float | int]:
        """The options that the file or the folder recommends."""
        return read_generation_config(self.path) if self.path.is_dir() else read_sampling(self.file.metadata)


@dataclass(frozen=True)
class OnnxDescription:
    """A folder with an ONNX decoder, whose spec is known when it is open."""

    folder: OnnxFolder
    spec: None = None
    problem: None = None
    files: Collection[Path] = ()
    rerank_template: str = ""

    @property
    def path(self) -> Path:
        """Of the folder."""
        return self.folder.path

    def read_text(self) -> Text:
        """The tokenizer and the chat template."""
        tokenizer = load_tokenizer_folder(self.path)
        tokenizer.end_ids |= frozenset(token for token in self.folder.end_ids if token < tokenizer.n_vocab)
        return tokenizer, load_template_folder(self.path, tokenizer)

    def read_fingerprint(self) -> Callable[[], str]:
        """The fingerprint, read when it is called."""
        from stretto.weights.onnx import read_onnx

        return lambda: fingerprint_onnx(read_onnx(self.folder.model))

    def read_defaults(self) -> Mapping[str, float | int]:
        """The options that the folder recommends."""
        return read_generation_config(self.path)


Description = FileDescription | OnnxDescription


@contextmanager
def describe(
    model: Model, kind: Kind, options: LoadOptions, check: Callable[[Path], None] | None = None
) -> Iterator[Description]:
    """Open a model's files and read what it is; `check` is asked before a download, with the head."""
    if kind == "onnx":
        yield OnnxDescription(_find_folder(model))
        return
    with open_file(model, options, check) as file:
        yield describe_file(file, options.n_cells)


def describe_file(file: GGUF, n_cells: int | None = None) -> FileDescription:
    """What a file is; one that Stretto's own backends cannot run has a bare spec."""
    try:
        return FileDescription(file, read_spec(file, n_cells), None)
    except UnsupportedModel as problem:
        from stretto.models.missing import bare_spec

        return FileDescription(file, bare_spec(file), problem)


def open_tokenizer(model: Model) -> Tokenizer:
    """The tokenizer of a model, without its weights."""
    if find_kind(model) == "onnx":
        return load_tokenizer_folder(_find_folder(model).path)
    with open_file(model, LoadOptions()) as file:
        return load_gguf_tokenizer(file)


def _find_folder(model: Model) -> OnnxFolder:
    from stretto.weights.onnx.folder import find_folder

    return find_folder(Path(model).expanduser())


def check_vocabulary(tokenizer: Tokenizer, spec: ModelSpec, path: Path) -> None:
    """Raise unless a model has an embedding for each token."""
    if tokenizer.n_vocab > spec.n_vocab:
        raise ModelError(
            f"{tokenizer.n_vocab} tokens, but embeddings for {spec.n_vocab}", path=path, field="tokenizer"
        )


# -- recommended options --


def read_generation_config(folder: Path) -> Mapping[str, float | int]:
    """The options that a folder's `generation_config.json` recommends; `do_sample: false` is temperature 0.

    >>> read_generation_config(Path("Qwen3-0.6B"))
    {'temperature': 0.6, 'top_k': 20, 'top_p': 0.95}
    """
    from stretto.text.folder_config import read_optional

    fields = read_optional(folder / "generation_config.json")
    options: dict[str, float | int] = {name: fields.number(name) for name in _NUMBERS if name in fields}
    if "top_k" in fields:
        options["top_k"] = max(0, fields.integer("top_k", least=-1))  # −1 is 0: all
    if fields.get("do_sample") is False:
        options = {"temperature": 0.0}
    return dict(sorted(options.items()))


def read_sampling(metadata: Metadata) -> Mapping[str, float | int]:
    """The recommended options of a GGUF file, `general.sampling.temp` and others."""
    found = {name: f"general.sampling.{key}" for key, name in _KEYS.items()}
    # Numbers of single precision: 0.6 is meant, and not 0.6000000238418579.
    options: dict[str, float | int] = {
        name: float(f"{metadata.number(key):.6g}") for name, key in found.items() if key in metadata
    }
    if (key := "general.sampling.top_k") in metadata:
        options["top_k"] = max(0, metadata.integer(key))
    return dict(sorted(options.items()))


# -- the fingerprint of an ONNX model, without reading its gigabytes --


def fingerprint_onnx(file: OnnxFile) -> str:
    """64 hexadecimal digits: a hash of the model's file, and of samples of the files beside it."""
    digest = sha256()
    for path in (file.path, *sorted(set(file.external))):
        _add(digest, path)
    return digest.hexdigest()


def _add(digest: Any, path: Path) -> None:
    size = path.stat().st_size
    digest.update(pack("<Q", size))
    with path.open("rb") as stream:
        if size <= WHOLE_BYTES:
            digest.update(stream.read(WHOLE_BYTES))
            return
        for at in (*range(0, size, STRIDE_BYTES), size - SAMPLE_BYTES):
            stream.seek(at)
            digest.update(stream.read(SAMPLE_BYTES))
