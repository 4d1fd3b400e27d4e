"""Finds lines of text in a map of text probabilities: differentiable binarization's post-processing.

Pixels above a threshold are joined to connected regions; a region's rectangle of least area is a line's core,
which is grown to the line's full height.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.tasks.reading.geometry import Points, area_and_perimeter, grow, least_rectangle

MAX_REGIONS = 1000  # of an image; the largest are kept
_PIXEL_THRESHOLD = 0.3
_BOX_THRESHOLD = 0.5
_GROWTH = 1.6  # margin = area × growth / perimeter
_MIN_CORE_PIXELS = 3.0
_MIN_LINE_PIXELS = 5.0


@dataclass(frozen=True)
class Runs:
    """Horizontal runs of set pixels: row, first and last column, and the region that each belongs to."""

    row: NDArray[np.intp]
    first: NDArray[np.intp]
    last: NDArray[np.intp]
    region: NDArray[np.intp]


def find_lines(chances: NDArray[np.float32]) -> list[Points]:
    """The lines' corners in pixels of the map, float64[4, 2] each.

    `chances` is float32[height, width], the probability that a pixel belongs to the core of a line.
    """
    mask = chances > _PIXEL_THRESHOLD
    mask[1:] |= mask[:-1].copy()  # 2 × 2 dilation, to the right and downwards
    mask[:, 1:] |= mask[:, :-1].copy()
    lines = []
    for outline in _outlines(label_runs(mask)):
        core, side = least_rectangle(outline)
        if side < _MIN_CORE_PIXELS or _mean_inside(chances, core) < _BOX_THRESHOLD:
            continue
        area, perimeter = area_and_perimeter(core)
        line, side = least_rectangle(grow(np.trunc(core), area * _GROWTH / perimeter))
        if side >= _MIN_LINE_PIXELS:
            lines.append(line)
    return lines


def label_runs(mask: NDArray[np.bool_]) -> Runs:
    """The runs of set pixels and their regions' numbers; pixels that touch at a corner are connected."""
    padded = np.zeros((mask.shape[0], mask.shape[1] + 2), np.int8)
    padded[:, 1:-1] = mask
    steps = np.diff(padded, axis=1)
    row, first = np.nonzero(steps == 1)
    last = np.nonzero(steps == -1)[1] - 1
    above, below = _touching(row, first, last, mask.shape[1])
    region = np.arange(len(row))
    # Each pass points the greater of two touching regions to the lesser, then follows pointers to their end.
    while True:
        one, other = region[above], region[below]
        if np.array_equal(one, other):
            return Runs(row, first, last, region)
        least = np.minimum(one, other)
        np.minimum.at(region, one, least)
        np.minimum.at(region, other, least)
        while not np.array_equal(shorter := region[region], region):
            region = shorter


def _touching(
    row: NDArray[np.intp], first: NDArray[np.intp], last: NDArray[np.intp], width: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs of runs in adjacent rows that touch."""
    stride = width + 4
    # Of the row below, those that end at or after first - 1, and begin at or before last + 1.
    begin = np.searchsorted(row * stride + last, (row + 1) * stride + first - 1, side="left")
    end = np.searchsorted(row * stride + first, (row + 1) * stride + last + 1, side="right")
    count = np.maximum(end - begin, 0)
    above = np.repeat(np.arange(len(row)), count)
    offset = np.arange(len(above)) - np.repeat(np.cumsum(count) - count, count)
    return above, np.repeat(begin, count) + offset


def _outlines(runs: Runs) -> list[Points]:
    """The ends of each region's runs, the region of most runs first."""
    order = np.argsort(runs.region, kind="stable")
    starts = np.flatnonzero(np.diff(runs.region[order], prepend=-1))
    pieces = np.split(order, starts[1:]) if len(order) else []
    pieces = sorted(pieces, key=len, reverse=True)[:MAX_REGIONS]
    return [
        np.stack(
            (np.concatenate((runs.first[piece], runs.last[piece])), np.tile(runs.row[piece], 2)), axis=1
        ).astype(np.float64)
        for piece in pieces
    ]


def _mean_inside(chances: NDArray[np.float32], corners: Points) -> float:
    """The mean over the pixels of a rectangle, its outline included."""
    from PIL import Image, ImageDraw

    height, width = chances.shape
    limit = np.asarray((width - 1, height - 1))
    x0, y0 = np.clip(np.floor(corners.min(0)), 0, limit).astype(int)
    x1, y1 = np.clip(np.ceil(corners.max(0)), 0, limit).astype(int)
    canvas = Image.new("L", (x1 - x0 + 1, y1 - y0 + 1))
    shape = [(int(x), int(y)) for x, y in np.trunc(corners - (x0, y0))]
    pen = ImageDraw.Draw(canvas)
    pen.polygon(shape, fill=1)
    pen.line([*shape, shape[0]], fill=1)
    inside = np.asarray(canvas, np.bool_)
    return float(chances[y0 : y1 + 1, x0 : x1 + 1][inside].mean()) if inside.any() else 0.0
