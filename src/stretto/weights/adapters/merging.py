"""Writing a model with an adapter merged into its weights, so that anything can run it.

    merge_adapter(file, read_adapter("style.gguf", target), "merged.gguf")

Matrices that the adapter changes become float16 or float32; all other tensors stay byte by byte as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest, ModelError
from stretto.weights.adapters.lora import LoRA, Pair
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor
from stretto.weights.writer import Writable, write_gguf

SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")  # the result is one file
WIDE = (Format.F32, Format.BF16)  # what float16 would round, or not hold

Progress = Callable[[int, int], None]


class MergedTensor(Tensor):
    """A tensor and what an adapter adds to it, computed when its data is read."""

    def __init__(self, base: Tensor, pair: Pair, scale: float, fmt: Format, done: Callable[[], None]) -> None:
        put = object.__setattr__  # the class is frozen
        for name, value in (("name", base.name), ("shape", base.shape), ("format", fmt), ("offset", 0)):
            put(self, name, value)
        put(self, "_parts", (base, pair, np.float32(scale), done))

    _parts: tuple[Tensor, Pair, np.float32, Callable[[], None]]

    @property
    def data(self) -> NDArray[np.uint8]:
        """uint8[rows, bytes of a row]."""
        base, pair, scale, done = self._parts
        whole = base.dequantize().reshape(base.shape) + scale * pair.delta()
        if self.format is Format.F16 and not np.abs(whole).max(initial=0) < 65504:
            raise ModelError(
                "the merged numbers are too large for float16; write float32", field=f"tensor {self.name!r}"
            )
        made = whole.astype("<f2" if self.format is Format.F16 else "<f4")
        done()
        return made.view(np.uint8)


def merge_adapter(
    file: GGUF,
    lora: LoRA,
    path: str | os.PathLike[str],
    *,
    scale: float = 1.0,
    dtype: Literal["auto", "f16", "f32"] = "auto",
    replace: bool = False,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write a model with an adapter, `scale` times; `path` appears when all of it is on disk.

    `dtype` is that of changed matrices: "auto" is float32 where the file has float32 or bfloat16, and float16
    elsewhere.
    """
    target = Path(path)
    if target.exists() and not replace:
        raise InvalidRequest(
            f"{target} exists; choose another file, or replace it with --force (replace=True)"
        )
    n_done = 0

    def done() -> None:
        nonlocal n_done
        n_done += 1
        progress(n_done, len(lora.pairs))

    tensors: dict[str, Writable] = dict(file.tensors)
    for name, pair in lora.pairs.items():
        base = file.tensors[name]
        wide = dtype == "f32" or (dtype == "auto" and base.format in WIDE)
        tensors[name] = MergedTensor(base, pair, scale, Format.F32 if wide else Format.F16, done)
    metadata = {key: value for key, value in file.metadata.items() if key not in SPLIT_KEYS}
    write_gguf(target, metadata, tensors, types=file.metadata.types)
