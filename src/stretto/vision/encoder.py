"""The interface of image encoders: blocks run in slices, so that decode steps can run in between.

x = encoder.embed(patches, grid)          # float32[n, positions, n_embd]: n images or tiles of one size,
                                          # window by window if there are windows
for i in range(spec.n_layer):
    for _ in encoder.block(i, x, grid, rows):  # in place; can be paused between any two slices
        ...
    if i in spec.deepstack:
        taps.append(deepstack(encoder, i, x, grid))
vectors = encoder.project(x, grid, taps)  # float32[n, tokens, n_vector]

What lies between patches and vectors may be on a GPU: arrays that only the encoder computes with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.vision.families import FAMILIES
from stretto.vision.families.base import Operations
from stretto.vision.families.qwen3vl import deepstack
from stretto.vision.spec import CLAMP_ENDS, ROW_END, Grid, VisionSpec
from stretto.weights.gguf import GGUF, Tensor

Floats = NDArray[np.float32]

SLICE_ROWS = 1024  # of a slice, while no other request runs


class Encoder(Operations, Protocol):
    """A ViT and its projector. An image's vectors do not depend on the batch or on the slices."""

    name: str  # identifies its results, to the last bit, among encoders of the same file
    spec: VisionSpec

    def embed(self, patches: Floats, grid: Grid) -> Floats:
        """float32[n, patches, patch_numbers] → [n, positions, n_embd]: the first block's input."""
        ...

    def join(self, parts: Sequence[Floats]) -> Floats:
        """Images or tiles that were embedded apart, as one batch."""
        ...

    def block(self, index: int, x: Floats, grid: Grid, rows: Callable[[], int]) -> Iterator[None]:
        """One block over all positions of each image, in place, in slices of about `rows()` rows."""
        ...

    def project(self, x: Floats, grid: Grid, taps: Sequence[Floats] = ()) -> Floats:
        """[n, positions, n_embd] → [n, tokens, n_vector]: the last norm, the projector, and `taps`."""
        ...

    def close(self) -> None:
        """Free everything; the encoder is not used again."""
        ...


def encode(encoder: Encoder, patches: Floats, grid: Grid | None = None) -> Floats:
    """Encode in one call: float32[n, tokens, n_vector]. The grid is that of `image_size` if none is given."""
    spec = encoder.spec
    grid = grid or spec.grid
    x, taps = encoder.embed(patches, grid), []
    for index in range(spec.n_layer):
        for _ in encoder.block(index, x, grid, lambda: SLICE_ROWS):
            pass
        if index in spec.deepstack:
            taps.append(deepstack(encoder, index, x, grid))
    return encoder.project(x, grid, taps)


def projected(encoder: Encoder, x: Floats, grid: Grid, taps: Sequence[Floats]) -> Floats:
    """What `project` does, with an encoder's operations."""
    spec = encoder.spec
    if spec.post_norm:
        x = encoder.norm(x, "v.post_ln")
    if spec.class_token:
        x = np.ascontiguousarray(x[:, 1:])
    x = from_windows(x, spec, grid)
    vectors = FAMILIES[spec.projector].project(encoder, x, grid)
    if spec.row_ends:
        end = encoder.vector(ROW_END)
        assert end is not None
        vectors = np.concatenate((vectors, np.broadcast_to(end, (len(vectors), 1, spec.n_out))), axis=1)
    return np.concatenate((vectors, *taps), axis=-1) if taps else vectors


def attended(q: Floats, k: Floats, v: Floats, n_head: int) -> Floats:
    """What `attend` does, in NumPy: sums whose order no library chooses."""
    q, k, v = (part.reshape(*part.shape[:2], n_head, -1) for part in (q, k, v))
    scores = np.einsum("qhd,nkhd->nhqk", q[0], k) * np.float32(q.shape[-1] ** -0.5)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Floats = np.einsum("nhqk,nkhd->nqhd", scores, v)
    return mixed.reshape(len(k), q.shape[1], -1)


# Where a patch stands, for all encoders: its window, learned positions of any grid, angles of its rotation.

Ints = NDArray[np.int32]


@lru_cache(maxsize=32)
def window_order(side: int, grid: Grid) -> tuple[NDArray[np.intp], Ints]:
    """The patches of a grid window by window, and where each window ends among them."""
    rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    window = rows // side * (grid[1] // side + 1) + columns // side
    counts = np.bincount(window)
    return np.argsort(window, kind="stable"), np.cumsum(counts[counts > 0]).astype(np.int32)


def to_windows(x: Floats, spec: VisionSpec, grid: Grid) -> Floats:
    """[n, patches, …] row by row → window by window."""
    return x[:, window_order(spec.window, grid)[0]] if spec.window else x


def from_windows(x: Floats, spec: VisionSpec, grid: Grid) -> Floats:
    """[n, patches, …] window by window → row by row."""
    return x[:, np.argsort(window_order(spec.window, grid)[0])] if spec.window else x


def window_ends(spec: VisionSpec, block: int, grid: Grid) -> Ints:
    """Where each window of a block's input ends: one window is all of an image."""
    if spec.window and block not in spec.global_blocks:
        return window_order(spec.window, grid)[1]
    return np.array([spec.count_positions(grid)], np.int32)


def position_rows(table: Floats, spec: VisionSpec, grid: Grid) -> Floats:
    """float32[positions, n_embd]: what is added to the patches of a grid."""
    rows, columns = grid
    if spec.positions == "learned":
        if spec.mels:
            return table[:columns]
        return np.roll(table, 1, axis=0) if spec.class_last else table
    if spec.positions == "axes":  # a table for columns and one for rows
        both: Floats = table[0][None, :columns] + table[1][:rows, None]
        return both.reshape(rows * columns, spec.n_embd)
    side = round(len(table) ** 0.5)
    square = table.reshape(side, side, spec.n_embd)
    if spec.positions == "buckets":  # the nearest before, of as many places in any grid
        places = square[_buckets(rows, side)[:, None], _buckets(columns, side)]
        return np.ascontiguousarray(places).reshape(rows * columns, spec.n_embd)
    between = _blend(_blend(square, rows).swapaxes(0, 1), columns).swapaxes(0, 1)
    return np.ascontiguousarray(between).reshape(rows * columns, spec.n_embd)


def _buckets(n: int, side: int) -> NDArray[np.intp]:
    """Which of `side` equal parts of a line each of n places is in, by float32 numbers, as in training."""
    ends = (np.arange(1, side) * (1 / side)).astype(np.float32)
    return np.searchsorted(ends, np.arange(n, dtype=np.float32) / np.float32(n), side="right")


def _blend(table: Floats, n: int) -> Floats:
    """n rows of a table of `side`, evenly from the first to the last, between two rows by their distance."""
    at = np.linspace(0, len(table) - 1, n)
    low = at.astype(np.int64)
    high = np.minimum(low + 1, len(table) - 1)
    share = (at - low).astype(np.float32).reshape(-1, 1, 1)
    out: Floats = table[low] * (1 - share) + table[high] * share
    return out


def rope_pairs(spec: VisionSpec) -> Ints:
    """int32[head_size / 2, 2]: the numbers of a head that are rotated together."""
    size = spec.head_size
    first = np.arange(size // 2)
    if spec.rope in ("adjacent", "columns"):
        pairs = np.stack((2 * first, 2 * first + 1), axis=1)
    elif spec.rope == "halves":
        pairs = np.stack((first, first + size // 2), axis=1)
    else:  # each half by halves of its own
        first = np.where(first < size // 4, first, first + size // 4)
        pairs = np.stack((first, first + size // 4), axis=1)
    return np.ascontiguousarray(pairs, np.int32)


def rotation(spec: VisionSpec, grid: Grid) -> Floats | None:
    """float32[patches, head_size / 2, 2]: cosine and sine for each pair of numbers, None without rotation.

    The first half of the pairs is rotated by a patch's row, the second by its column, or the other way round.
    A class token is not rotated; where there is one, rows and columns are counted from one.
    """
    if not spec.rope:
        return None
    quarter = spec.head_size // 4
    step = 2 * np.arange(quarter, dtype=np.float32) / np.float32(2 * quarter)
    frequencies = (1 / np.float32(spec.rope_base) ** step).astype(np.float32)
    second = frequencies
    if spec.rope == "adjacent":  # every other one of a whole head's frequencies
        shift = np.float32(2 / spec.head_size)
        second = (1 / np.float32(spec.rope_base) ** (step + shift)).astype(np.float32)
    patches = np.arange(grid[0] * grid[1], dtype=np.float32)
    row, column = np.divmod(to_windows(patches[None], spec, grid)[0], np.float32(grid[1]))
    if spec.class_token:
        row, column = (np.concatenate(([np.float32(0)], one + 1)) for one in (row, column))
    first_axis, second_axis = (column, row) if spec.rope in ("quarters", "columns") else (row, column)
    angles = np.concatenate((np.outer(first_axis, frequencies), np.outer(second_axis, second)), axis=1)
    return np.ascontiguousarray(np.stack((np.cos(angles), np.sin(angles)), axis=2))


# The tensors of an `mmproj` file as encoders take them, whatever way the file has them.

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
    """The tensor's name in new files of images: old ones have ffn_up and ffn_down swapped."""
    if spec.mels and name.startswith("a."):
        return name.replace("a.conv1d.1.", "v.patch_embd.") if ".conv1d.1." in name else f"v.{name[2:]}"
    if not spec.swapped:
        return name
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    return ".".join(other.get(part, part) for part in name.split("."))


def flattened(name: str, values: Any) -> Any:
    """A bias as a vector and the kernel of a convolution as a matrix, whatever way the file has them."""
    if name.endswith(".bias"):
        return values.reshape(-1)
    return values.reshape(len(values), -1) if ".conv1d." in name else values


def patch_kernel(file: GGUF, spec: VisionSpec) -> Floats:
    """float32[n_embd, patch_numbers]: of two frames the sum, as an image is the same in both."""
    kernel = file.tensors[spec.file_name(FIRST)].dequantize()
    if spec.two_frames:
        kernel = kernel + file.tensors[SECOND].dequantize()
    return np.ascontiguousarray(kernel, np.float32).reshape(spec.n_embd, -1)
