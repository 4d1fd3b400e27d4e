"""`open_model`: resolves a model's name, and opens its file with a backend and an image encoder."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from stretto import kernels
from stretto.backends.base import Backend
from stretto.backends.registry import BackendOptions, choose
from stretto.errors import InvalidRequest, ModelError
from stretto.hardware import free_memory, usable_cores
from stretto.models import ModelSpec, read_spec
from stretto.sampling.params import check_integer
from stretto.text.loading import load_tokenizer
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.vision.cache import ImageCache
from stretto.vision.encoder import Encoder
from stretto.vision.native import NativeEncoder
from stretto.vision.reading import read_vision_spec
from stretto.vision.reference import ReferenceEncoder
from stretto.vision.spec import VisionSpec
from stretto.vision.vision import Vision
from stretto.weights import hub
from stretto.weights.gguf import GGUF

BUNDLED_ENCODERS = {"sketch": Path(__file__).parent / "vision" / "sketch.gguf"}
CACHE_TYPES = ("f16", "q8", "f32")
PRECISIONS = ("standard", "high")  # activations in 8 bits, in 16


@dataclass(frozen=True)
class Opened:
    """A model that is ready to run."""

    backend: Backend
    tokenizer: Tokenizer
    template: ChatTemplate | None
    fingerprint: Callable[[], str]  # of the file, computed when asked for
    vision: Vision | None = None
    rerank_template: str = ""  # of a decoder that is used as a cross-encoder


def open_model(
    model: str | os.PathLike[str],
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    cells: int = 8192,
    kv: str = "f16",
    precision: str = "standard",
    repack: bool | str = "auto",
    vision: str | os.PathLike[str] | None = None,
    image_cache: bool | str | os.PathLike[str] | ImageCache = True,
    sequences: int = 80,
    checkpoint_bytes: int = 512 << 20,
) -> Opened:
    """Resolve a model's file, download it if necessary, and open it with a backend."""
    entry, device = choose(backend, device)
    _check_choice("kv", kv, CACHE_TYPES)
    _check_choice("precision", precision, PRECISIONS)
    if not isinstance(repack, bool) and repack != "auto":
        raise InvalidRequest(
            f"repack must be 'auto', True or False, not {repack!r}", param="repack", value=repack
        )
    if threads is not None:
        check_integer("threads", threads, 1, 1024)
    check_integer("cells", cells, 1, 1 << 24)
    cache = ImageCache.of(image_cache)
    options = BackendOptions(
        device,
        cells,
        threads or usable_cores(),
        kv,
        precision,
        repack,
        sequences,
        checkpoint_bytes,
        memory=free_memory(),
    )
    with GGUF(hub.resolve(model)) as file:
        spec = read_spec(file, cells)
        with ThreadPoolExecutor(1) as pool:  # weights are packed in native code; Python reads the tokens
            text_future = pool.submit(_load_text, file, spec)
            model_backend = entry.open(file, spec, options)
            try:
                tokenizer, template = text_future.result()
            except BaseException:
                model_backend.close()
                raise
        try:
            model_vision = (
                None if vision is None else _load_vision(vision, spec, tokenizer, entry.name, options, cache)
            )
        except BaseException:
            model_backend.close()
            raise
        rerank_template = file.metadata.text("tokenizer.chat_template.rerank", "")
        return Opened(model_backend, tokenizer, template, file.fingerprint(), model_vision, rerank_template)


def _load_vision(
    path: str | os.PathLike[str],
    spec: ModelSpec,
    tokenizer: Tokenizer,
    backend: str,
    options: BackendOptions,
    cache: ImageCache,
) -> Vision:
    with GGUF(BUNDLED_ENCODERS.get(str(path)) or hub.resolve(path)) as file:
        vision_spec = read_vision_spec(file)
        _check_pair(vision_spec, spec, file.path)
        if spec.windowed_images:
            vision_spec = replace(vision_spec, bidirectional=True)
        encoder: Encoder
        if backend == "reference":
            encoder = ReferenceEncoder(file, vision_spec)
        else:
            encoder = NativeEncoder(file, vision_spec, options.threads, kernels.chosen(), options.precision)
        return Vision(encoder, tokenizer, file.fingerprint(), cache)


def _check_pair(vision: VisionSpec, spec: ModelSpec, path: Path) -> None:
    """Raise unless an encoder's vectors are what a language model takes."""
    remedy = "give the mmproj file that belongs to it"
    if vision.n_out != spec.n_embd:
        raise ModelError(
            f"it makes vectors of {vision.n_out} numbers, and the language model takes {spec.n_embd}; "
            f"{remedy}",
            path=path,
        )
    if vision.grid_positions and not spec.has_grid_positions:
        raise ModelError(
            f"its images have rows and columns as positions, and {spec.architecture} has none; {remedy}",
            path=path,
        )
    if len(vision.deepstack) != spec.deepstack:
        raise ModelError(
            f"it has features for {len(vision.deepstack)} early layers (deepstack), and the language model "
            f"takes them in {spec.deepstack}; {remedy}",
            path=path,
        )


def _load_text(file: GGUF, spec: ModelSpec) -> tuple[Tokenizer, ChatTemplate | None]:
    tokenizer = load_tokenizer(file.metadata)
    if tokenizer.n_vocab > spec.n_vocab:
        raise ModelError(
            f"{tokenizer.n_vocab} tokens, but embeddings for {spec.n_vocab}",
            path=file.path,
            field="tokenizer.ggml.tokens",
        )
    template = _load_template(file, tokenizer)
    file.forget()  # the head has been read; pages that are being packed are mapped again
    return tokenizer, template


def _load_template(file: GGUF, tokenizer: Tokenizer) -> ChatTemplate | None:
    source = file.metadata.text("tokenizer.chat_template", "")
    if not source:
        return None

    def text_of(token: int | None) -> str:
        return "" if token is None else tokenizer.piece(token)

    return ChatTemplate(
        source,
        tokenizer.specials,
        bos=text_of(tokenizer.bos_id),
        eos=text_of(tokenizer.eos_id),
        with_tools=file.metadata.text("tokenizer.chat_template.tool_use", ""),
    )


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequest(
            f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}", param=name, value=value
        )
