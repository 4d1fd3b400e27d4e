"""Finds lines of text in a map of text probabilities: differentiable binarization's post-processing.

Pixels above a threshold are joined to connected regions; a region's rectangle of least area is a line's core,
which is grown to the line's full height.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.tasks.reading.geometry import Points, area_and_perimeter, grow, least_rectangle
from stretto.tasks.results import Box

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


# The order in which lines of text are read: columns from left to right, lines from top to bottom.
#
# A page is cut into bands by empty rows. Adjacent bands that leave the same strip empty are two columns
# side by side, each of which is ordered on its own; a heading across both stays a band of its own. Narrow
# columns are those of a table or a form, and are read row by row. Lines that run upwards or downwards come
# last.

_MIN_GUTTER = 0.8  # the least width of the strip between columns, in heights of a line
_MIN_COLUMN = 5.0  # the least width of a column, in heights of a line
_SAME_LINE = 0.5  # boxes that overlap by this share of the lower one's height are on one line


def page_order(quads: Sequence[Points], upright: Sequence[bool], turned: Sequence[bool]) -> list[int]:
    """The numbers of lines in reading order.

    `upright` says which lines run upwards or downwards, and `turned` which stand on their heads; an upright
    line on its head runs upwards.
    """
    level = [n for n in range(len(quads)) if not upright[n]]
    if 2 * len(level) < len(quads):  # a page on its side
        level = list(range(len(quads)))
    most_turned = 2 * sum(turned[n] for n in level) > len(level)
    order = reading_order(level_lines([quads[n] for n in level], most_turned))
    aside = sorted(set(range(len(quads))) - set(level), key=lambda n: quads[n][:, 0].mean())
    return [level[i] for i in order] + [
        n for file in _files(aside, quads) for n in _along(file, quads, turned)
    ]


def _files(lines: list[int], quads: Sequence[Points]) -> list[list[int]]:
    """Lines that run upwards or downwards, from left to right, those above each other together."""
    files: list[list[int]] = []
    for n in lines:
        if files and quads[n][:, 0].mean() < quads[files[-1][-1]][:, 0].max():
            files[-1].append(n)
        else:
            files.append([n])
    return files


def _along(file: list[int], quads: Sequence[Points], turned: Sequence[bool]) -> list[int]:
    upwards = 2 * sum(turned[n] for n in file) > len(file)
    return sorted(file, key=lambda n: float(quads[n][:, 1].mean()), reverse=upwards)


def level_lines(quads: Sequence[Points], upside_down: bool = False) -> list[Box]:
    """Upright boxes around lines, as if the page were turned so that most of them are level."""
    if not quads:
        return []
    tops = np.stack([quad[1] - quad[0] for quad in quads])
    angle = float(np.median(np.arctan2(tops[:, 1], tops[:, 0]))) + (np.pi if upside_down else 0.0)
    turn = np.asarray([(np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))])
    boxes = []
    for quad in quads:
        points = quad @ turn
        (x0, y0), (x1, y1) = points.min(0), points.max(0)
        boxes.append(Box(float(x0), float(y0), float(x1), float(y1)))
    return boxes


def reading_order(boxes: Sequence[Box]) -> list[int]:
    """The numbers of the boxes, in reading order."""
    if not boxes:
        return []
    height = float(np.median([box.height for box in boxes]))
    return _ordered(list(range(len(boxes))), boxes, height)


def _ordered(members: list[int], boxes: Sequence[Box], height: float) -> list[int]:
    bands = _bands(members, boxes)
    order: list[int] = []
    start = 0
    while start < len(bands):
        stop, columns = _widest_section(bands, start, boxes, height)
        if columns:
            order += [member for column in columns for member in _ordered(column, boxes, height)]
        else:
            order += _lines(bands[start], boxes)
        start = stop
    return order


def _bands(members: list[int], boxes: Sequence[Box]) -> list[list[int]]:
    """The boxes from top to bottom, cut where one line's middle lies below all lines before."""
    bands: list[list[int]] = []
    bottom = -np.inf
    for member in sorted(members, key=lambda member: _middle(boxes[member])):
        box = boxes[member]
        if not bands or _middle(box) > bottom:
            bands.append([])
        bands[-1].append(member)
        bottom = max(bottom, box.y1)
    return bands


def _widest_section(
    bands: list[list[int]], start: int, boxes: Sequence[Box], height: float
) -> tuple[int, tuple[list[int], list[int]] | None]:
    """The band after the last one that has columns in common with `start`, and these columns."""
    found: tuple[int, tuple[list[int], list[int]] | None] = (start + 1, None)
    members: list[int] = []
    for stop in range(start, len(bands)):
        members = members + bands[stop]
        columns = _columns(members, boxes, height)
        if columns:
            found = (stop + 1, columns)
        elif _spans(bands[stop], members, boxes):
            break
    return found


def _spans(band: list[int], members: list[int], boxes: Sequence[Box]) -> bool:
    """Whether a line of the band reaches across the middle, so that no columns can follow."""
    middle = (min(boxes[i].x0 for i in members) + max(boxes[i].x1 for i in members)) / 2
    return len(members) > len(band) and any(boxes[i].x0 < middle < boxes[i].x1 for i in band)


def _columns(members: list[int], boxes: Sequence[Box], height: float) -> tuple[list[int], list[int]] | None:
    """Two columns on both sides of the leftmost strip that is empty and wide enough."""
    by_left = sorted(members, key=lambda member: boxes[member].x0)
    right_edge = boxes[by_left[0]].x1
    for number, member in enumerate(by_left[1:], 1):
        left, right = by_left[:number], by_left[number:]
        gap = boxes[member].x0 - right_edge
        widths = (right_edge - boxes[left[0]].x0, max(boxes[i].x1 for i in right) - boxes[member].x0)
        wide = gap >= _MIN_GUTTER * height and min(widths) >= _MIN_COLUMN * height
        if wide and len(_bands(left, boxes)) > 1 and len(_bands(right, boxes)) > 1:
            return left, right
        right_edge = max(right_edge, boxes[member].x1)
    return None


def _lines(members: list[int], boxes: Sequence[Box]) -> list[int]:
    """The boxes of one band: lines from top to bottom, each from left to right."""
    lines: list[list[int]] = []
    for member in sorted(members, key=lambda member: _middle(boxes[member])):
        if lines and _on_line(boxes[member], boxes[lines[-1][-1]]):
            lines[-1].append(member)
        else:
            lines.append([member])
    return [member for line in lines for member in sorted(line, key=lambda i: boxes[i].x0)]


def _on_line(box: Box, other: Box) -> bool:
    common = min(box.y1, other.y1) - max(box.y0, other.y0)
    return common >= _SAME_LINE * min(box.height, other.height)


def _middle(box: Box) -> float:
    return (box.y0 + box.y1) / 2
