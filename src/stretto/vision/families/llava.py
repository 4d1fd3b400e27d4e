"""`mlp`, LLaVA 1.5 and 1.6: each patch through two matrices.

LLaVA 1.5 pads an image to a square. LLaVA 1.6 shows it whole in one tile, and once more in tiles of a larger
resolution, where a vector of the file ends each row of patches. In `transformers`: LlavaImageProcessorPil
(do_pad), LlavaNextImageProcessorPil, LlavaNextModel.pack_image_features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from stretto.vision.decode import Pixels
from stretto.vision.families import base
from stretto.vision.families.base import Family, Floats, Operations, Part, Prepared, Run
from stretto.vision.spec import ROW_END, Grid, Shape, VisionSpec
from stretto.weights.gguf import GGUF

MAX_RESOLUTIONS, MAX_TILES = 64, 64
GRIDS, MERGE = "clip.vision.image_grid_pinpoints", "clip.vision.mm_patch_merge_type"


class Llava(Family):
    """LLaVA 1.5 and 1.6."""

    name = "mlp"

    def read(self, file: GGUF, spec: VisionSpec) -> VisionSpec:
        """Two matrices with biases."""
        out = base.read_outputs(file, "mm.0.weight")
        shapes: dict[str, Shape] = {"mm.0.weight": (out, spec.n_embd), "mm.0.bias": (out,)}
        shapes |= {"mm.2.weight": (out, out), "mm.2.bias": (out,)}
        resolutions = _resolutions(file, spec)
        if resolutions:
            shapes[ROW_END] = (out,)
        return replace(
            spec,
            n_out=out,
            resolutions=resolutions,
            row_ends=bool(resolutions),
            projector_tensors=tuple(shapes.items()),
        )

    def prepare(self, pixels: Pixels, spec: VisionSpec) -> Prepared:
        """A square with the mean colour around the image, or all of it and the tiles of a resolution."""
        size = spec.image_size
        if spec.resolutions:
            return _tiles(pixels, spec)
        side, colour = max(pixels.shape[:2]), [int(255 * part) for part in spec.mean]
        square = base.centre(pixels, side, side, colour)
        return Prepared(base.resize(square, size, size, "bicubic")[None])

    def project(self, run: Operations, x: Floats, grid: Grid) -> Floats:
        """Two matrices with an exact GELU between them."""
        return run.multiply(run.multiply(x, "mm.0", "exact_gelu"), "mm.2")

    def parts(self, prepared: Prepared, spec: VisionSpec, grid: Grid) -> Iterable[Part]:
        """The tokens alone: of the whole image, then of the tiles row by row, without what fills them."""
        n, (rows, columns) = spec.count_tokens(grid), grid
        yield Run(0, rows * columns)
        above, before = prepared.margins
        for row in range(above, prepared.rows * rows - above):
            for tile in range(prepared.columns):
                first = max(before - tile * columns, 0)
                stop = min(prepared.columns * columns - before - tile * columns, columns)
                begin = (1 + row // rows * prepared.columns + tile) * n + row % rows * columns
                if first < stop:
                    yield Run(begin + first, begin + stop)
            yield Run(n - 1, n)


def _resolutions(file: GGUF, spec: VisionSpec) -> tuple[tuple[int, int], ...]:
    """The heights and widths that images may have, which files have as pairs of widths and heights."""
    kind = file.metadata.text(MERGE, "flat")
    if kind not in ("flat", "spatial_unpad"):
        raise file.error(MERGE, f"{kind!r} is not supported, only flat and spatial_unpad")
    if GRIDS not in file.metadata or kind == "flat":
        return ()
    numbers, size = file.metadata.array(GRIDS).tolist(), spec.image_size
    pairs = tuple((height, width) for width, height in zip(numbers[::2], numbers[1::2], strict=False))
    fits = all(type(n) is int and n > 0 and n % size == 0 for n in numbers) and len(numbers) % 2 == 0
    if not 1 <= len(pairs) <= MAX_RESOLUTIONS or not fits:
        raise file.error(GRIDS, f"up to {MAX_RESOLUTIONS} pairs of multiples of {size} are needed")
    if max(height // size * (width // size) for height, width in pairs) > MAX_TILES:
        raise file.error(GRIDS, f"an image can have at most {MAX_TILES} tiles")
    return pairs


def _tiles(pixels: Pixels, spec: VisionSpec) -> Prepared:
    size, (height, width) = spec.image_size, pixels.shape[:2]
    most_height, most_width = max(spec.resolutions, key=lambda one: _gain(height, width, one))
    by_width, by_height = most_width / width, most_height / height
    if by_width < by_height:
        inner = min(math.ceil(height * by_width), most_height), most_width
    else:
        inner = most_height, min(math.ceil(width * by_height), most_width)
    rows, columns = most_height // size, most_width // size
    canvas = base.centre(base.resize(pixels, *inner, "bicubic"), most_height, most_width)
    whole = base.resize(pixels, size, size, "bicubic")
    tiles = np.concatenate((whole[None], base.cut(canvas, rows, columns)))
    return Prepared(tiles, rows, columns, _margins(height, width, rows * spec.n_side, columns * spec.n_side))


def _gain(height: int, width: int, resolution: tuple[int, int]) -> tuple[int, int]:
    """How much of an image a resolution shows, and how little of it is left over."""
    scale = min(resolution[1] / width, resolution[0] / height)
    shown = min(int(width * scale) * int(height * scale), width * height)
    return shown, shown - resolution[0] * resolution[1]


def _margins(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Patches above and below an image, and before and behind it, in a grid that it does not fill."""
    if width / height > columns / rows:
        return (rows - int(round(height * columns / width, 7))) // 2, 0
    return 0, (columns - int(round(width * rows / height, 7))) // 2
