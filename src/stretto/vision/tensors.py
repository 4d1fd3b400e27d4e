"""The tensors of an `mmproj` file as encoders take them, whatever way the file has them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stretto.vision.spec import CLAMP_ENDS, VisionSpec
from stretto.weights.gguf import GGUF, Tensor

Floats = NDArray[np.float32]

FIRST, SECOND = "v.patch_embd.weight", "v.patch_embd.weight.1"


def plain_tensors(file: GGUF, spec: VisionSpec) -> Iterator[tuple[str, Tensor, slice | None]]:
    """Name, tensor, and which of its rows: Q, K and V apart, up and down not swapped."""
    n = spec.n_embd
    for name in spec.tensors():
        tensor = file.tensors[name]
        if ".attn_qkv." in name:
            for i, part in enumerate("qkv"):
                yield name.replace("attn_qkv", f"attn_{part}"), tensor, slice(i * n, (i + 1) * n)
        elif name != SECOND and not name.endswith(CLAMP_ENDS):
            yield plain_name(name, spec), tensor, None


def plain_name(name: str, spec: VisionSpec) -> str:
    """The tensor's name in new files: old ones have ffn_up and ffn_down swapped."""
    if not spec.swapped:
        return name
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    return ".".join(other.get(part, part) for part in name.split("."))


def patch_kernel(file: GGUF, spec: VisionSpec) -> Floats:
    """float32[n_embd, patch_numbers]: of two frames the sum, as an image is the same in both."""
    kernel = file.tensors[FIRST].dequantize()
    if spec.two_frames:
        kernel = kernel + file.tensors[SECOND].dequantize()
    return np.ascontiguousarray(kernel, np.float32).reshape(spec.n_embd, -1)
