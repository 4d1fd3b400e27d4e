"""The image encoder in csrc/: packed matrices, the decoder's kernels, threads of its own.

An image's vectors are the same bits whatever else is encoded with it, and with however many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.errors import InvalidRequest, ModelError
from stretto.vision.encoder import merged
from stretto.vision.spec import VisionSpec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF, Tensor

Floats = NDArray[np.float32]

REVISION = 1  # increases with any change of the results
PACKABLE = frozenset(Format(code) for code in _native.dequantizable)


class NativeEncoder:
    """Runs a ViT and its projector on the CPU."""

    def __init__(
        self,
        file: GGUF,
        spec: VisionSpec,
        threads: int,
        kernels: str = "",
        precision: str = "standard",
    ) -> None:
        self.spec = spec
        self._vision: _native.Vision | None = _native.Vision(
            spec.n_embd, spec.n_ff, spec.n_head, spec.norm_eps, spec.activation, threads, kernels, precision
        )
        # Kernel sets and precisions have bits of their own.
        self.name = f"native {REVISION} {self._vision.kernels}" + " high" * (precision == "high")
        tensors = file.tensors
        self._positions = tensors["v.position_embd.weight"].dequantize()
        self._class = tensors["v.class_embd"].dequantize() if spec.class_token else None
        self._soft = tensors["mm.soft_emb_norm.weight"].dequantize() if spec.projector == "gemma3" else None
        for name in spec.tensors():
            self._set(self._vision, _plain_name(name, spec), tensors[name], file)
            file.forget(tensors[name])

    def _set(self, vision: _native.Vision, name: str, tensor: Tensor, file: GGUF) -> None:
        if name in ("v.position_embd.weight", "v.class_embd"):
            return
        if len(tensor.shape) == 1:
            vision.set_vector(name, np.ascontiguousarray(tensor.dequantize()))
            return
        if tensor.format not in PACKABLE:
            raise ModelError(
                f"{tensor.format.name} is not supported", path=file.path, field=f"tensor {tensor.name!r}"
            )
        code, data, shape = tensor.format, tensor.data, tensor.shape
        if name == "mm.input_projection.weight":  # stored transposed
            transposed = np.ascontiguousarray(tensor.dequantize().T)
            code, data, shape = Format.F32, transposed.view(np.uint8), transposed.shape
        elif len(shape) == 4:  # a patch's numbers in one row
            shape = shape[0], int(np.prod(shape[1:]))
            if code.block > 1 and tensor.shape[-1] % code.block:
                raise ModelError("it cannot be flattened", path=file.path, field=f"tensor {tensor.name!r}")
        rows, columns = shape
        vision.set_matrix(name, code.value, rows, columns, np.ascontiguousarray(data).reshape(-1))

    def embed(self, patches: Floats) -> Floats:
        """[n, n_patches, patch_numbers] → [n, n_positions, n_embd]."""
        x = self._open.multiply("v.patch_embd", np.ascontiguousarray(patches, np.float32), "")
        if self._class is not None:
            first = np.broadcast_to(self._class, (len(x), 1, self.spec.n_embd))
            x = np.concatenate((first, x), axis=1)
        x += self._positions
        return self._open.norm("v.pre_ln", x) if self.spec.pre_norm else x

    def block(self, index: int, x: Floats, rows: Callable[[], int]) -> Iterator[None]:
        """One block over all positions of each image, in place, in slices of `rows()` rows."""
        name, n = f"v.blk.{index}.", x.shape[0] * x.shape[1]
        qkv = np.empty_like(x), np.empty_like(x), np.empty_like(x)
        for half in (self._open.look, self._open.mix):
            first = 0
            while first < n:
                last = min(n, first + rows())
                half(name, x, *qkv, first, last)
                first = last
                yield

    def project(self, x: Floats) -> Floats:
        """[n, n_positions, n_embd] → [n, n_tokens, n_out]."""
        spec, vision = self.spec, self._open
        if spec.post_norm:
            x = vision.norm("v.post_ln", x)
        if spec.class_token:
            x = np.ascontiguousarray(x[:, 1:])
        if spec.projector == "mlp":
            return vision.multiply("mm.2", vision.multiply("mm.0", x, "exact_gelu"), "")
        squares = merged(x, spec)
        if spec.projector == "idefics3":
            return vision.multiply("mm.model.fc", squares.reshape(*squares.shape[:2], -1), "")
        return vision.multiply("mm.input_projection", self._soft_norm(squares.mean(axis=2)), "")

    def close(self) -> None:
        """Free weights and threads."""
        self._vision = None

    def _soft_norm(self, x: Floats) -> Floats:
        root = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(self.spec.norm_eps))
        out: Floats = x / root * self._soft
        return out

    @property
    def _open(self) -> _native.Vision:
        if self._vision is None:
            raise InvalidRequest("the model is closed; load it again")
        return self._vision


def _plain_name(name: str, spec: VisionSpec) -> str:
    """The tensor's name in new files: old ones have ffn_up and ffn_down swapped."""
    if not spec.swapped:
        return name
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    return ".".join(other.get(part, part) for part in name.split("."))
