"""`resampler`, MiniCPM-V 2.6, 4.0 and 4.5: all of an image, then slices of it, each read by some queries.

In `transformers`: MiniCPMV4_6ImageProcessorPil, for squares of one patch, and Idefics2VisionTransformer. The
resampler is that of the authors' own code (OpenBMB): PyTorch's attention, with queries of the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from stretto.models.common import positive
from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run, Special, Text
from stretto.vision.spec import QUERY, Grid, Shape, VisionSpec
from stretto.weights.gguf import GGUF

VERSIONS = (3, 4, 5, 6, 100_045)  # MiniCPM-V 2.6, -o 2.6, -V 4.0, -V 4.5, -o 4.5
VERSION, QUERIES = "clip.minicpmv_version", "clip.minicpmv_query_num"
HEAD = 128  # numbers of a head of the resampler
SLICES = 9  # at most
MAX_QUERIES = 1 << 10
EPS = 1e-6
BASE = 10_000.0
MOST = 2  # times the patches of a square image: rounding makes narrow ones larger


class MiniCPMV(Family):
    """MiniCPM-V 2.6, 4.0 and 4.5."""

    name = "resampler"
    any_size = True

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """Queries, attention to the patches, three norms, two matrices."""
        version = file.metadata.integer(VERSION, 0)
        if version not in VERSIONS:
            known = ", ".join(str(one) for one in VERSIONS)
            raise file.error(VERSION, f"version {version} is not supported, only {known}")
        n_query = positive(file, QUERIES, 64, most=MAX_QUERIES)
        wide, n = base.read_outputs(file, "resampler.kv.weight"), spec.n_embd
        if wide % HEAD:
            raise file.error("resampler.kv.weight", f"{wide} numbers are no whole heads of {HEAD}")
        rows = base.read_outputs(file, "v.position_embd.weight")
        if math.isqrt(rows) ** 2 != rows:
            raise file.error("v.position_embd.weight", f"{rows} positions are no square")
        shapes: dict[str, Shape] = {QUERY: (n_query, wide), "resampler.kv.weight": (wide, n)}
        for part in ("q", "k", "v", "out"):
            shapes |= {f"resampler.attn.{part}.weight": (wide, wide), f"resampler.attn.{part}.bias": (wide,)}
        for part in ("q", "kv", "post"):
            shapes |= {f"resampler.ln_{part}.{kind}": (wide,) for kind in ("weight", "bias")}
        shapes["resampler.proj.weight"] = (wide, wide)
        return replace(
            spec,
            n_out=wide,
            n_query=n_query,
            max_tiles=SLICES,
            max_tokens=MOST * (spec.image_size // spec.patch_size) ** 2,
            positions="buckets",
            position_shape=(rows, n),
            projector_tensors=tuple(shapes.items()),
        )

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """The slices of a larger image row by row, and all of it; a small one as it is."""
        height, width = pixels.shape[:2]
        base.check_ratio(height, width)
        grid = _grid(height, width, spec)
        small = base.resize(pixels, *_best_size(height, width, spec, grid is None), "bicubic")
        if grid is None:
            return Prepared(small[None])
        rows, columns = grid
        part = (_round(height, rows) / rows, _round(width, columns) / columns)
        size = _best_size(*part, spec, True)
        large = base.resize(pixels, size[0] * rows, size[1] * columns, "bicubic")
        return Prepared(base.cut(large, rows, columns), rows, columns, whole=Prepared(small[None]))

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """Queries attend to patches with their rows and columns, then a matrix."""
        query = run.vector(QUERY)
        assert query is not None
        patches = run.norm(run.multiply(x, "resampler.kv"), "resampler.ln_kv", EPS)
        q = run.multiply(run.norm(query[None], "resampler.ln_q", EPS), "resampler.attn.q")
        k = run.multiply(run.add(patches, _positions(grid, run.spec.n_out)), "resampler.attn.k")
        v = run.multiply(patches, "resampler.attn.v")
        mixed = run.multiply(run.attend(q, k, v, run.spec.n_out // HEAD), "resampler.attn.out")
        return run.multiply(run.norm(mixed, "resampler.ln_post", EPS), "resampler.proj")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """All of the image, then its slices, a line break between two rows of them."""
        n, sliced = spec.n_query, prepared.whole is not None
        yield from (Special("<image>"), Run(0, n, of_whole=sliced), Special("</image>"))
        for tile in range(prepared.rows * prepared.columns):
            if tile and tile % prepared.columns == 0:
                yield Text("\n")
            yield from (Special("<slice>"), Run(tile * n, (tile + 1) * n), Special("</slice>"))


def _grid(height: int, width: int, spec: VisionSpec) -> tuple[int, int] | None:
    """Rows and columns of slices, about as many as the image is large, in its shape; None for a small one."""
    n = min(math.ceil(height * width / spec.image_size**2), spec.max_tiles)
    if n <= 1:
        return None
    counts = [count for count in (n - 1, n, n + 1) if 1 < count <= spec.max_tiles]
    grids = [
        (count // columns, columns)
        for count in counts
        for columns in range(1, count + 1)
        if count % columns == 0
    ]
    ratio = math.log(width / height)
    return min(grids, key=lambda grid: abs(ratio - math.log(grid[1] / grid[0])))


def _round(length: float, unit: int) -> int:
    return max(round(length / unit) * unit, unit)


def _best_size(height: float, width: float, spec: VisionSpec, enlarge: bool) -> tuple[int, int]:
    """Height and width of the same shape that are whole patches: as many as a square image has, or fewer."""
    if height * width > spec.image_size**2 or enlarge:
        ratio = width / height
        height = int(spec.image_size / math.sqrt(ratio))
        width = int(height * ratio)
    return _round(height, spec.patch_size), _round(width, spec.patch_size)


@lru_cache(maxsize=32)
def _positions(grid: Grid, size: int) -> Floats:
    """float32[patches, size]: sines and cosines of each patch's column, then those of its row."""
    quarter = size // 4
    frequencies = (1 / BASE ** (np.arange(quarter, dtype=np.float32) / np.float32(quarter))).astype(
        np.float32
    )
    row, column = np.divmod(np.arange(grid[0] * grid[1], dtype=np.float32), np.float32(grid[1]))
    angles = np.outer(column, frequencies), np.outer(row, frequencies)
    return np.concatenate([part for angle in angles for part in (np.sin(angle), np.cos(angle))], axis=1)
