"""The order in which lines of text are read: columns from left to right, lines from top to bottom.

A page is cut into bands by empty rows. Adjacent bands that leave the same strip empty are two columns side by
side, each of which is ordered on its own; a heading across both stays a band of its own. Narrow columns are
those of a table or a form, and are read row by row. Lines that run upwards or downwards come last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.tasks.reading.geometry import Points
from stretto.tasks.results import Box

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
    order = reading_order(levelled([quads[n] for n in level], most_turned))
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


def levelled(quads: Sequence[Points], upside_down: bool = False) -> list[Box]:
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
