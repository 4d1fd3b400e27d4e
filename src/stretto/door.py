"""`load`, the one door: looks at what a model is, and returns an object with the verbs that it has.

stretto.load("smollm2").generate("Once upon a time")
stretto.load("minilm").embed(["a cat", "a dog"])
stretto.load("centernet").detect("street.jpg")
"""

from __future__ import annotations

import os
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from stretto import llm
from stretto.engine import Limits
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.options.documenting import documented
from stretto.options.loading import LOAD
from stretto.options.refusing import check_model, refusing_unknown
from stretto.weights.hub.bundles import is_task

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
        "chat_template": chat_template,
        "prefix_cache": prefix_cache,
        "limits": limits,
        "vision": vision,
        "image_cache": image_cache,
    }
    check_model(model)
    if not is_task(model):
        return llm.load(model, device=device, threads=threads, **cast(Any, options))
    from stretto.tasks.loading import load_task

    usual = signature(llm.load).parameters
    for name, value in options.items():
        if value != usual[name].default and (name, value) != ("backend", "onnx"):
            raise InvalidRequest(
                f"{name} is for language models, and {os.fspath(model)} is none; it takes device and threads",
                param=name,
                value=value,
            )
    return cast(LLM, load_task(model, device=device, threads=threads))
