"""`load`, the one door: looks at what a model is, and returns an object with the verbs that it has.

stretto.load("smollm2").generate("Once upon a time")
stretto.load("minilm").embed(["a cat", "a dog"])
stretto.load("centernet").detect("street.jpg")
"""

from __future__ import annotations

import os
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from stretto.engine import Limits
from stretto.errors import InvalidRequest
from stretto.llm.model import LLM
from stretto.options.documenting import documented
from stretto.options.loading import LOAD
from stretto.options.refusing import check_model, refusing_unknown
from stretto.router import open_model
from stretto.text.loading import make_template, template_source
from stretto.weights.hub import is_task

if TYPE_CHECKING:
    from stretto.vision.cache import ImageCache


@documented(LOAD)
@refusing_unknown
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
    quantize: str | None = None,
    exact: bool = True,
    chat_template: str | os.PathLike[str] | None = None,
    prefix_cache: bool = True,
    limits: Limits | None = None,
    vision: str | os.PathLike[str] | None = None,
    image_cache: bool | str | os.PathLike[str] | ImageCache = True,
) -> LLM:
    """Load a model by name (`"smollm2"`), path, or `"hf:org/repo:Q4_K_M"`.

    What comes back has the verbs of that model (`.verbs`): a language model is an `LLM`, an encoder has
    `embed` and its kin, and models of other kinds are `stretto.tasks.TaskModel`s, which take `device` and
    `threads` only. A verb that a model lacks raises `Unsupported`, so the type says `LLM` for all of them.

    >>> llm = stretto.load("smollm2")
    >>> llm.generate("Once upon a time").text
    """
    options = {
        "backend": backend,
        "cells": cells,
        "kv": kv,
        "precision": precision,
        "repack": repack,
        "quantize": quantize,
        "exact": exact,
        "vision": vision,
        "image_cache": image_cache,
    }
    check_model(model)
    if is_task(model):
        own = {"chat_template": chat_template, "prefix_cache": prefix_cache, "limits": limits}
        return _load_task(model, {**options, **own}, device=device, threads=threads)
    limits = Limits.of(limits)
    source = None if chat_template is None else template_source(chat_template)
    opened = open_model(
        model,
        device=device,
        threads=threads,
        sequences=limits.max_states,
        checkpoint_bytes=limits.checkpoint_bytes,
        **cast(Any, options),
    )
    if opened.backend.spec.is_encoder:
        from stretto.llm.encoder import Encoder

        if source is not None:
            opened.backend.close()
            raise InvalidRequest("an encoder has no chat template", param="chat_template")
        encoder = Encoder(
            opened.backend,
            opened.tokenizer,
            name=os.fspath(model),
            limits=limits,
            rerank_template=opened.rerank_template,
        )
        encoder._engine.runner.maps = opened.maps
        return cast(LLM, encoder)
    llm = LLM(
        opened.backend,
        opened.tokenizer,
        opened.template if source is None else make_template(source, "", opened.tokenizer),
        fingerprint=opened.fingerprint,
        prefix_cache=prefix_cache,
        limits=limits,
        vision=opened.vision,
        route=opened.route,
        defaults=opened.defaults,
    )
    llm._engine.runner.maps = opened.maps
    return llm


def _load_task(model: str | os.PathLike[str], options: dict[str, Any], **place: Any) -> LLM:
    """A model of another kind, which takes none of a language model's options."""
    from stretto.tasks.loading import load_task

    usual = signature(load).parameters
    for name, value in options.items():
        if value != usual[name].default and (name, value) != ("backend", "onnx"):
            raise InvalidRequest(
                f"{name} is for language models, and {os.fspath(model)} is none; it takes device and threads",
                param=name,
                value=value,
            )
    return cast(LLM, load_task(model, **place))
