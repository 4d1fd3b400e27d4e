"""The image encoder in torch: on the GPU that runs the language model, or for tests on the CPU.

Images stay on the device from patches to vectors, and are computed one after the other: an image's vectors
are the same bits whatever else is encoded with it. Importing this imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from stretto.errors import InvalidRequest
from stretto.vision.encoder import (
    flattened,
    from_windows,
    patch_kernel,
    plain_tensors,
    position_rows,
    rope_pairs,
    rotation,
    to_windows,
    window_ends,
)
from stretto.vision.families import FAMILIES
from stretto.vision.spec import ROW_END, Grid, VisionSpec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF
from stretto.weights.gguf import Tensor as FileTensor

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Tensor = Any  # torch.Tensor: torch is an extra
Guard = Callable[[str], AbstractContextManager[None]]  # makes errors of the device ours; "encoding an image"

REVISION = 1  # increases with any change of the results
DTYPES = {"standard": torch.bfloat16, "high": torch.float32}
AS_STORED = {Format.F32: torch.float32, Format.F16: torch.float16, Format.BF16: torch.bfloat16}
POSITIONS, PATCHES = "v.position_embd.weight", "v.patch_embd.weight"
ENCODING = "encoding an image"

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "exact_gelu": functional.gelu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
}


class TorchEncoder:
    """Runs a ViT and its projector on a GPU: matrices in bfloat16, or in float32 with high precision."""

    def __init__(
        self,
        file: GGUF,
        spec: VisionSpec,
        device: str | torch.device = "cuda",
        precision: str = "standard",
        guard: Guard = lambda what: nullcontext(),
    ) -> None:
        self.spec, self.device, self._dtype = spec, torch.device(device), DTYPES[precision]
        on_gpu = self.device.type == "cuda"
        where = torch.cuda.get_device_name(self.device) if on_gpu else "cpu"
        # Libraries, devices and precisions have bits of their own.
        self.name = f"torch {REVISION} {torch.__version__} {where}" + " high" * (precision == "high")
        self._guard, self._clamps = guard, dict(spec.clamps)
        self._table = file.tensors[spec.file_name(POSITIONS)].dequantize() if spec.positions else None
        self._weights: dict[str, Tensor] = {}
        self._places: tuple[Grid, Tensor | None, Rotation | None] | None = None
        with guard("loading an image encoder"):
            self._load(file)

    def _load(self, file: GGUF) -> None:
        for name, tensor, rows in plain_tensors(file, self.spec):
            if name in (POSITIONS, PATCHES):
                continue
            values = flattened(name, self._upload(tensor))
            values = values.T if name in self.spec.transposed else values if rows is None else values[rows]
            self._weights[name] = values.to(self._dtype if values.ndim > 1 else torch.float32).contiguous()
            file.forget(tensor)
        # Pixels are multiplied in float32: that costs little.
        self._weights[PATCHES] = torch.from_numpy(patch_kernel(file, self.spec)).to(self.device)
        for name, values in list(self._weights.items()):
            bias = name.removesuffix("weight") + "bias"
            if values.ndim > 1 and bias in self._weights:
                self._weights[bias] = self._weights[bias].to(values.dtype)

    def _upload(self, tensor: FileTensor) -> Tensor:
        """The tensor's numbers on the device, floats in their own type."""
        dtype = AS_STORED.get(tensor.format)
        if dtype is None:
            return torch.from_numpy(tensor.dequantize()).to(self.device)
        stored = torch.from_numpy(np.array(tensor.data).reshape(-1)).to(self.device)
        return stored.view(dtype).reshape(tensor.shape)

    def embed(self, patches: Floats, grid: Grid) -> Tensor:
        """[n, patches, patch_numbers] → float32[n, positions, n_embd], on the device."""
        with self._guard(ENCODING):
            numbers = torch.from_numpy(np.ascontiguousarray(patches, np.float32)).to(self.device)
            x = FAMILIES[self.spec.projector].embed(self, numbers)
            if self.spec.class_token:
                first = self._open["v.class_embd"].expand(len(x), 1, self.spec.n_embd)
                x = torch.cat((first, x), dim=1)
            if (positions := self._at(grid)[0]) is not None:
                x = x + positions
            x = to_windows(x, self.spec, grid)
            return self.norm(x, "v.pre_ln") if self.spec.pre_norm else x

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Images that were embedded apart, as one batch."""
        return torch.cat(list(parts))

    def block(self, index: int, x: Tensor, grid: Grid, rows: Callable[[], int]) -> Iterator[None]:
        """One block in place; a slice is an image, however many rows are asked for."""
        name, turn, windows = f"v.blk.{index}.", self._at(grid)[1], window_ends(self.spec, index, grid)
        for i in range(len(x)):
            with self._guard(ENCODING):
                one = x[i : i + 1]
                normed = self.norm(one, f"{name}ln1")
                one += self._output(self._attention(name, normed, turn, windows), name, "attn", "ls1")
                one += self._output(self._feed_forward(name, one), name, "ffn", "ls2")
                if self.device.type == "cuda":  # slices are timed
                    torch.cuda.current_stream(self.device).synchronize()
            yield

    def project(self, x: Tensor, grid: Grid, taps: Sequence[Tensor] = ()) -> Floats:
        """[n, positions, n_embd] → float32[n, tokens, n_vector], on the host."""
        with self._guard(ENCODING):
            if self.spec.post_norm:
                x = self.norm(x, "v.post_ln")
            if self.spec.class_token:
                x = x[:, 1:]
            x = from_windows(x, self.spec, grid)
            vectors = FAMILIES[self.spec.projector].project(self, x, grid)
            if self.spec.row_ends:
                end = self._open[ROW_END].expand(len(vectors), 1, self.spec.n_out)
                vectors = torch.cat((vectors, end.to(vectors.dtype)), dim=1)
            found: Floats = torch.cat((vectors, *taps), dim=-1).float().cpu().numpy()
            return found

    def close(self) -> None:
        """Free the weights."""
        self._weights, self._places = {}, None

    def multiply(self, x: Tensor, name: str, activation: str = "") -> Tensor:
        """A matrix, its bias, an activation; with limits of what goes in and comes out."""
        weight, bias = self._open[f"{name}.weight"], self._open.get(f"{name}.bias")
        clamps = self._clamps.get(name)
        x = x.to(weight.dtype)
        if clamps is not None:
            x = x.clamp(clamps[0], clamps[1])
        out = _by_image(lambda one: _linear(one, weight, bias), x)
        if clamps is not None:
            out = out.clamp(clamps[2], clamps[3])
        return ACTIVATIONS[activation](out) if activation else out

    def norm(self, x: Tensor, name: str, eps: float | None = None) -> Tensor:
        """By mean and variance if there is a bias, else by the root of mean squares; float32."""
        weight, bias = self._open.get(f"{name}.weight"), self._open.get(f"{name}.bias")
        small, size = self.spec.norm_eps if eps is None else eps, x.shape[-1:]
        if bias is None:
            return _by_image(lambda one: functional.rms_norm(one, size, weight, small), x.float())
        return _by_image(lambda one: functional.layer_norm(one, size, weight, bias, small), x.float())

    def vector(self, name: str) -> Tensor | None:
        """A vector of the file."""
        return self._open.get(name)

    def add(self, x: Tensor, numbers: Floats) -> Tensor:
        """Rows of numbers, added to those of each image."""
        return x + torch.from_numpy(np.ascontiguousarray(numbers, np.float32)).to(self.device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, n_head: int) -> Tensor:
        """Attention of queries to all rows of an image."""
        heads = (part.reshape(*part.shape[:2], n_head, -1).transpose(1, 2) for part in (q, k, v))
        q, k, v = map(_computable, heads)
        mixed = [
            functional.scaled_dot_product_attention(q, k[i : i + 1], v[i : i + 1]) for i in range(len(k))
        ]
        return torch.cat(mixed).transpose(1, 2).reshape(len(k), q.shape[2], -1)

    def _attention(self, name: str, x: Tensor, turn: Rotation | None, windows: Ints) -> Tensor:
        spec, (n, length, _) = self.spec, x.shape
        q, k, v = (self.multiply(x, f"{name}attn_{part}") for part in "qkv")
        if spec.qk_norm == "all":
            q, k = self.norm(q, f"{name}attn_q_norm"), self.norm(k, f"{name}attn_k_norm")
        q, k, v = (part.reshape(n, length, spec.n_head, -1) for part in (q, k, v))
        if spec.qk_norm == "head":
            q, k = self.norm(q, f"{name}attn_q_norm"), self.norm(k, f"{name}attn_k_norm")
        if spec.value_norm:
            v = self.norm(v, "")
        if turn is not None:
            q, k = turn(q), turn(k)
        heads = (part.to(self._dtype).transpose(1, 2) for part in (q, k, v))
        sizes = np.diff(windows, prepend=0).tolist()
        parts = zip(*(part.split(sizes, dim=2) for part in map(_computable, heads)), strict=True)
        mixed = torch.cat(
            [functional.scaled_dot_product_attention(q, k, v, scale=spec.scale) for q, k, v in parts], dim=2
        )
        return self.multiply(mixed.transpose(1, 2).reshape(n, length, -1), f"{name}attn_out")

    def _feed_forward(self, name: str, x: Tensor) -> Tensor:
        normed, activation = self.norm(x, f"{name}ln2"), self.spec.activation
        if not self.spec.gated:
            return self.multiply(self.multiply(normed, f"{name}ffn_up", activation), f"{name}ffn_down")
        gate = self.multiply(normed, f"{name}ffn_gate", activation)
        return self.multiply(gate * self.multiply(normed, f"{name}ffn_up"), f"{name}ffn_down")

    def _output(self, x: Tensor, name: str, half: str, scale: str) -> Tensor:
        if self.spec.layer_scale:
            x = x * self._open[f"{name}{scale}.weight"]
        return self.norm(x, f"{name}{half}_post_norm") if self.spec.output_norms else x

    def _at(self, grid: Grid) -> tuple[Tensor | None, Rotation | None]:
        """Positions and rotation of the grid that is being encoded, uploaded once for all its blocks."""
        if self._places is None or self._places[0] != grid:
            positions = None
            if self._table is not None:
                rows = np.array(position_rows(self._table, self.spec, grid), np.float32)
                positions = torch.from_numpy(rows).to(self.device)
            table = rotation(self.spec, grid)
            turn = None if table is None else Rotation(self.spec, table, self.device)
            self._places = grid, positions, turn
        return self._places[1:]

    @property
    def _open(self) -> dict[str, Tensor]:
        if not self._weights:
            raise InvalidRequest("the model is closed; load it again")
        return self._weights


class Rotation:
    """Rotates pairs of numbers of each head: x × cosines + x with the numbers of a pair swapped × sines."""

    def __init__(self, spec: VisionSpec, table: Floats, device: torch.device) -> None:
        first, second = rope_pairs(spec).T
        n, size = len(table), spec.head_size
        swapped = np.arange(size)
        swapped[first], swapped[second] = second, first
        cos, sin = np.ones((n, 1, size), np.float32), np.zeros((n, 1, size), np.float32)
        cos[:, 0, first] = cos[:, 0, second] = table[..., 0]
        sin[:, 0, first], sin[:, 0, second] = -table[..., 1], table[..., 1]
        self._swapped, self._cos, self._sin = (torch.from_numpy(a).to(device) for a in (swapped, cos, sin))

    def __call__(self, x: Tensor) -> Tensor:
        """float32[n, length, heads, head_size]."""
        x = x.float()
        return x * self._cos + x[..., self._swapped] * self._sin


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else _computable(bias)
    return functional.linear(_computable(x), _computable(weight), bias).to(x.dtype)


def _computable(operand: Tensor) -> Tensor:
    """An operand of a product: on a CPU, which may lack bfloat16, the same numbers in float32."""
    return operand if operand.is_cuda else operand.float()


def _by_image(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Each image by itself: libraries choose the order of a sum by the shape."""
    return function(x) if len(x) == 1 else torch.cat([function(one) for one in x.split(1)])
