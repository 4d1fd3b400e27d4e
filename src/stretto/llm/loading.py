"""From a name or a path to a model that is ready."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from stretto.engine import Limits
from stretto.errors import InvalidRequest
from stretto.llm.model import LLM
from stretto.options.documenting import documented
from stretto.options.loading import LOAD
from stretto.options.refusing import check_model
from stretto.router import open_model
from stretto.text.loading import make_template, template_source

if TYPE_CHECKING:
    from stretto.vision.cache import ImageCache


@documented(LOAD)
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

    >>> llm = stretto.load("smollm2")
    >>> llm.generate("Once upon a time").text
    """
    check_model(model)
    limits = Limits.of(limits)
    source = None if chat_template is None else template_source(chat_template)
    opened = open_model(
        model,
        backend=backend,
        device=device,
        threads=threads,
        cells=cells,
        kv=kv,
        precision=precision,
        repack=repack,
        quantize=quantize,
        exact=exact,
        vision=vision,
        image_cache=image_cache,
        sequences=limits.max_states,
        checkpoint_bytes=limits.checkpoint_bytes,
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
