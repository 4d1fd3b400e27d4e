"""From a name or a path to a model that is ready."""

from __future__ import annotations

import os
from typing import cast

from stretto.engine import Limits
from stretto.llm.encoder import Encoder
from stretto.llm.model import LLM
from stretto.router import open_model
from stretto.vision.cache import ImageCache


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
    prefix_cache: bool = True,
    limits: Limits | None = None,
    vision: str | os.PathLike[str] | None = None,
    image_cache: bool | str | os.PathLike[str] | ImageCache = True,
) -> LLM:
    """Load a model by name (`"smollm2"`), path, or `"hf:org/repo/file.gguf"`.

    `backend="auto"` and `device="auto"` take what can run the file and is fastest here (docs/routing.md);
    `llm.route` says what was chosen, what else was possible, and why not.
    `cells` is the size of the cache in tokens, shared by all sequences; "auto" takes what is free on a GPU
    (docs/cuda.md), and 8,192 on a CPU. `kv="q8"` halves what it takes, "f32" doubles it and rounds nothing.
    `precision="high"` computes with activations of 16 bits instead of 8: nearer to what the weights say, and
    slower (docs/precision.md).
    `repack=False` leaves the weights in the file, for one larger than memory: a little slower, the same
    results. "auto" does so if they do not fit into free memory beside the cache; `llm.backend.placement` says
    what was chosen and why.
    `quantize="q4_k"` quantises the weights while they are loaded (docs/quantize.md has the names), for a
    file or folder in F16, BF16 or F32; the file stays as it is.
    `exact=False` lets a GPU use its fastest kernels, whose last bits depend on what else is in the batch; a
    CPU is exact either way.
    With `prefix_cache=False` nothing is kept for later prompts that begin alike. `limits` (`stretto.Limits`)
    says how many requests may run and wait, how long a step may take, and how many bytes the checkpoints of a
    model with recurrent layers may take (docs/cache.md). `vision` is the `mmproj` file that
    lets the model see images. What it makes of an image is kept, 64 MiB of it in memory and 512 MiB in files
    under ~/.cache/stretto/images, so that no image is encoded twice; `image_cache` is another folder for
    them, a `stretto.ImageCache` with limits of your own, or False to keep nothing.

    >>> llm = stretto.load("smollm2")
    >>> llm.generate("Once upon a time").text
    """
    limits = limits or Limits()
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
        opened.template,
        fingerprint=opened.fingerprint,
        prefix_cache=prefix_cache,
        limits=limits,
        vision=opened.vision,
        route=opened.route,
        defaults=opened.defaults,
    )
    llm._engine.runner.maps = opened.maps
    return llm
