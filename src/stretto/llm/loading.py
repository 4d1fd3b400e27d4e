"""From a name or a path to a model that is ready."""

from __future__ import annotations

import os

from stretto.engine import Limits
from stretto.llm.model import LLM
from stretto.router import open_model


def load(
    model: str | os.PathLike[str],
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    cells: int = 8192,
    kv: str = "f16",
    repack: bool = True,
    prefix_cache: bool = True,
    limits: Limits | None = None,
    vision: str | os.PathLike[str] | None = None,
) -> LLM:
    """Load a model by name (`"smollm2"`), path, or `"hf:org/repo/file.gguf"`.

    `cells` is the size of the cache in tokens, shared by all sequences; `kv="q8"` halves what it
    takes, "f32" doubles it and rounds nothing.
    `repack=False` leaves the weights in the file, for one larger than memory: slower, the same results.
    With `prefix_cache=False` nothing is kept for later prompts that begin alike. `limits` (`stretto.Limits`)
    says how many requests may run and wait, and how long a step may take. `vision` is the `mmproj` file that
    lets the model see images.

    >>> llm = stretto.load("smollm2")
    >>> llm.generate("Once upon a time").text
    """
    opened = open_model(
        model,
        backend=backend,
        device=device,
        threads=threads,
        cells=cells,
        kv=kv,
        repack=repack,
        vision=vision,
    )
    return LLM(
        opened.backend,
        opened.tokenizer,
        opened.template,
        fingerprint=opened.fingerprint,
        prefix_cache=prefix_cache,
        limits=limits,
        vision=opened.vision,
    )
