"""The image encoder in csrc/: packed matrices, the decoder's kernels, threads of its own.

An image's vectors are the same bits whatever else is encoded with it, and with however many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto import _native
from stretto.errors import InvalidRequest
from stretto.vision.encoder import (
    attended,
    patch_kernel,
    plain_tensors,
    position_rows,
    projected,
    rope_pairs,
    rotation,
    to_windows,
    window_ends,
)
from stretto.vision.families import FAMILIES
from stretto.vision.spec import QUERY, ROW_END, Grid, VisionSpec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF, Tensor

Floats = NDArray[np.float32]

REVISION = 2  # increases with any change of the results
PACKABLE = frozenset(Format(code) for code in _native.dequantizable)
NO_PAIRS = np.empty((0, 2), np.int32)
# Used here, not in csrc/.
KEPT = ("v.position_embd.weight", "v.class_embd", "v.std_bias", "v.std_scale", ROW_END, QUERY)


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
        vision = _native.Vision(
            spec.n_embd, spec.n_ff, spec.n_head, spec.norm_eps, spec.activation, threads, kernels, precision
        )
        self.native: _native.Vision | None = vision
        # Kernel sets and precisions have bits of their own.
        self.name = f"native {REVISION} {vision.kernels}" + " high" * (precision == "high")
        tensors = list(plain_tensors(file, spec))
        self.kept = {name: tensor.dequantize() for name, tensor, _ in tensors if name in KEPT}
        vision.set_attention(spec.scale, spec.value_norm, rope_pairs(spec) if spec.rope else NO_PAIRS)
        for name, limits in spec.clamps:
            vision.set_clamp(name, *limits)
        for name, tensor, rows in tensors:
            if name not in KEPT:
                self._set(vision, name, tensor, rows, file)
        for name in spec.tensors():
            file.forget(file.tensors[name])
        self._table: tuple[Grid, Floats] | None = None

    def _set(self, vision: _native.Vision, name: str, tensor: Tensor, rows: slice | None, file: GGUF) -> None:
        if len(tensor.shape) == 1 or name.endswith(".bias"):
            values = tensor.dequantize().reshape(-1)
            vision.set_vector(name, np.ascontiguousarray(values if rows is None else values[rows]))
            return
        if tensor.format not in PACKABLE:
            raise file.error(f"tensor {tensor.name!r}", f"{tensor.format.name} is not supported")
        code, data, shape = tensor.format, tensor.data, tensor.shape
        if name in self.spec.transposed or (self.spec.two_frames and name == "v.patch_embd.weight"):
            whole = patch_kernel(file, self.spec) if len(shape) == 4 else tensor.dequantize().T
            code, data, shape = Format.F32, np.ascontiguousarray(whole).view(np.uint8), whole.shape
        elif len(shape) > 2:  # a patch's numbers in one row
            shape = shape[0], int(np.prod(shape[1:]))
            if code.block > 1 and tensor.shape[-1] % code.block:
                raise file.error(f"tensor {tensor.name!r}", "it cannot be flattened")
        elif rows is not None:
            size = len(np.ascontiguousarray(data).reshape(-1)) // shape[0]
            data = np.ascontiguousarray(data).reshape(-1)[rows.start * size : rows.stop * size]
            shape = rows.stop - rows.start, shape[1]
        vision.set_matrix(name, code.value, shape[0], shape[1], np.ascontiguousarray(data).reshape(-1))

    def embed(self, patches: Floats, grid: Grid) -> Floats:
        """[n, patches, patch_numbers] → [n, positions, n_embd]."""
        x = FAMILIES[self.spec.projector].embed(self, patches)
        if self.spec.class_token:
            first = np.broadcast_to(self.kept["v.class_embd"], (len(x), 1, self.spec.n_embd))
            x = np.concatenate((first, x), axis=1)
        if self.spec.positions:
            x += position_rows(self.kept["v.position_embd.weight"], self.spec, grid)
        x = np.ascontiguousarray(to_windows(x, self.spec, grid))
        return self.norm(x, "v.pre_ln") if self.spec.pre_norm else x

    def join(self, parts: Sequence[Floats]) -> Floats:
        """Images that were embedded apart, as one batch."""
        return np.concatenate(parts)

    def block(self, index: int, x: Floats, grid: Grid, rows: Callable[[], int]) -> Iterator[None]:
        """One block over all positions of each image, in place, in slices of `rows()` rows."""
        name, n = f"v.blk.{index}.", x.shape[0] * x.shape[1]
        qkv = np.empty_like(x), np.empty_like(x), np.empty_like(x)
        first = 0
        while first < n:
            last = min(n, first + rows())
            self._open.look(name, x, *qkv, self._rotation(grid), first, last)
            first = last
            yield
        first, windows = 0, window_ends(self.spec, index, grid)
        while first < n:
            last = min(n, first + rows())
            self._open.mix(name, x, *qkv, windows, first, last)
            first = last
            yield

    def project(self, x: Floats, grid: Grid, taps: Sequence[Floats] = ()) -> Floats:
        """[n, positions, n_embd] → [n, tokens, n_vector]."""
        return projected(self, x, grid, taps)

    def close(self) -> None:
        """Free weights and threads."""
        self.native = None

    def multiply(self, x: Floats, name: str, activation: str = "") -> Floats:
        """A matrix, its bias, an activation."""
        return self._open.multiply(name, np.ascontiguousarray(x, np.float32), activation)

    def norm(self, x: Floats, name: str, eps: float | None = None) -> Floats:
        """By mean and variance if there is a bias, else by the root of mean squares."""
        return self._open.norm(name, x, self.spec.norm_eps if eps is None else eps)

    def vector(self, name: str) -> Floats | None:
        """A vector of the file."""
        return self.kept.get(name)

    def add(self, x: Floats, numbers: Floats) -> Floats:
        """Rows of numbers, added to those of each image."""
        return x + numbers

    def attend(self, q: Floats, k: Floats, v: Floats, n_head: int) -> Floats:
        """Attention of queries to all rows of an image."""
        return attended(q, k, v, n_head)

    def _rotation(self, grid: Grid) -> Floats:
        """Of the grid that is being encoded; computed once for all its blocks."""
        if self._table is None or self._table[0] != grid:
            table = rotation(self.spec, grid)
            self._table = grid, np.empty((0, 0, 2), np.float32) if table is None else table
        return self._table[1]

    @property
    def _open(self) -> _native.Vision:
        if self.native is None:
            raise InvalidRequest("the model is closed; load it again")
        return self.native
