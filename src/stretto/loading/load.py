"""`load`: looks at what a model is, and returns an object with the verbs that it has.

stretto.load("smollm2").generate("Once upon a time")
stretto.load("minilm").embed(["a cat", "a dog"])
stretto.load("centernet").detect("street.jpg")
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stretto.engine import Limits
from stretto.errors import InvalidRequest, RouteWarning
from stretto.llm.model import LLM
from stretto.loading.describe import Model, find_kind
from stretto.loading.disk_cache import EXACT, can_outlive, describe_computation, list_versions, open_store
from stretto.loading.open import OpenedModel, open_model
from stretto.options.documenting import document_options
from stretto.options.loading import LOAD, LoadOptions
from stretto.options.names import check_model, refuse_unknown
from stretto.text.loading import make_template, template_source

if TYPE_CHECKING:
    from stretto.llm.encoder import Encoder
    from stretto.tasks.model import TaskModel
    from stretto.vision.cache import ImageCache


@document_options(LOAD)
@refuse_unknown
def load(
    model: str | os.PathLike[str],
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    cells: int | str = 8192,
    kv: str = "f16",
    precision: str = "standard",
    repack: bool | str = "auto",
    experts: str | int | Sequence[str] | None = None,
    gpu_memory: int | None = None,
    quantize: str | None = None,
    exact: bool = True,
    chat_template: str | os.PathLike[str] | None = None,
    prefix_cache: bool = True,
    limits: Limits | None = None,
    vision: str | os.PathLike[str] | None = None,
    image_cache: bool | str | os.PathLike[str] | ImageCache = True,
    cache: str = "memory",
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: int = 2 << 30,
    cache_writes: int = 64 << 30,
) -> LLM:
    """Load a model by name (`"smollm2"`), path, or `"hf:org/repo:Q4_K_M"`.

    What comes back has the verbs of that model (`.verbs`): a language model is an `LLM`, an encoder has
    `embed` and its kin, and models of other kinds are `stretto.tasks.TaskModel`s, which take `device` and
    `threads` only. A verb that a model lacks raises `Unsupported`, so the type says `LLM` for all of them.

    >>> llm = stretto.load("smollm2")
    >>> llm.generate("Once upon a time").text
    """
    check_model(model)
    options = LoadOptions(
        backend=backend,
        device=device,
        threads=threads,
        cells=cells,
        kv=kv,
        precision=precision,
        repack=repack,
        experts=experts,
        gpu_memory=gpu_memory,
        quantize=quantize,
        exact=exact,
        chat_template=chat_template,
        prefix_cache=prefix_cache,
        limits=limits,
        vision=vision,
        image_cache=image_cache,
        cache=cache,
        cache_dir=cache_dir,
        cache_size=cache_size,
        cache_writes=cache_writes,
    )
    if find_kind(model, backend) == "task":
        return cast(LLM, _load_task(model, options))
    options = replace(options, limits=Limits.of(limits))
    source = None if chat_template is None else template_source(chat_template)
    opened = open_model(model, options)
    with ExitStack() as failed:
        failed.callback(opened.backend.close)
        if opened.backend.spec.is_encoder:
            llm = cast(LLM, _make_encoder(opened, model, options))
        else:
            llm = _make_llm(opened, options, source)
        llm.engine.runner.maps = opened.maps
        failed.pop_all()
    return llm


def _make_llm(opened: OpenedModel, options: LoadOptions, template: str | None) -> LLM:
    llm = LLM(
        opened.backend,
        opened.tokenizer,
        opened.template if template is None else make_template(template, "", opened.tokenizer),
        fingerprint=opened.fingerprint,
        prefix_cache=options.prefix_cache,
        limits=options.limits,
        vision=opened.vision,
        route=opened.route,
        defaults=opened.defaults,
        path=opened.path,
    )
    _keep_on_disk(llm, options, opened.files)
    return llm


def _keep_on_disk(llm: LLM, options: LoadOptions, files: tuple[Path, ...]) -> None:
    """Give a model the store that its options ask for; a warning says where its backend cannot use one."""
    if options.cache != "disk" or not options.cache_size:
        return
    backend, fingerprint = llm.backend, llm.engine.fingerprint
    if fingerprint is None or not can_outlive(backend):
        warnings.warn(
            f"the {backend.name} backend keeps its KV cache in memory alone; on disk it can be kept by "
            f"{', '.join(EXACT)}",
            RouteWarning,
            stacklevel=4,
        )
        return
    store = open_store(options.cache_dir, options.cache_size, options.cache_writes)
    text, versions = fingerprint, list_versions(files)
    llm.engine.keep_on_disk(store, lambda: describe_computation(backend, [text(), *versions]))


def _make_encoder(opened: OpenedModel, model: Model, options: LoadOptions) -> Encoder:
    from stretto.llm.encoder import Encoder

    if options.chat_template is not None:
        raise InvalidRequest("an encoder has no chat template", param="chat_template")
    return Encoder(
        opened.backend,
        opened.tokenizer,
        name=os.fspath(model),
        limits=options.limits,
        rerank_template=opened.rerank_template,
    )


def _load_task(model: Model, options: LoadOptions) -> TaskModel:
    """A model of another kind, which takes none of a language model's options."""
    from stretto.tasks.model import load_task

    usual = LoadOptions(device=options.device, threads=options.threads)
    for name, value in vars(options).items():
        if value != getattr(usual, name) and (name, value) != ("backend", "onnx"):
            raise InvalidRequest(
                f"{name} is for language models, and {os.fspath(model)} is none; it takes device and threads",
                param=name,
                value=value,
            )
    return load_task(model, device=options.device, threads=options.threads)
