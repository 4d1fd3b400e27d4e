"""Boxes of a detector: which of them are kept, and results made of those.

kept = suppress(boxes, scores, classes, overlap=0.45)     # indices, best first
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest
from stretto.tasks.model import Source
from stretto.tasks.results import Box, Detection, Detections

MAX_CANDIDATES = 3000  # the best ones, which are compared with each other

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]


def suppress(boxes: Floats, scores: Floats, classes: Integers | None, overlap: float) -> NDArray[np.int64]:
    """Non-maximum suppression: the indices of the boxes that are kept, best first.

    A box goes if a better one that is kept overlaps it (intersection over union) by more than `overlap`.
    Boxes of different `classes` do not touch each other; without classes all do. Of equal scores the first
    is better. Boxes of float[n, 4] are x0, y0, x1, y1.
    """
    finite = np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    order = np.flatnonzero(finite)[np.argsort(-scores[finite], kind="stable")][:MAX_CANDIDATES]
    boxes = np.asarray(boxes, np.float64)[order]
    kinds = np.zeros(len(order), np.int64) if classes is None else classes[order]
    areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    alive = np.ones(len(order), bool)
    for best in range(len(order)):
        if not alive[best]:
            continue
        rest = slice(best + 1, None)
        low = np.maximum(boxes[best, :2], boxes[rest, :2])
        high = np.minimum(boxes[best, 2:], boxes[rest, 2:])
        common = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[rest] - common
        alive[rest] &= (common <= overlap * union) | (kinds[rest] != kinds[best]) | (union <= 0)
    return order[alive].astype(np.int64)


def to_corners(boxes: Floats) -> Floats:
    """x0, y0, x1, y1 of boxes given as centre and size."""
    half = boxes[..., 2:4] / 2
    return np.concatenate((boxes[..., :2] - half, boxes[..., :2] + half), axis=-1)


def detections(
    source: Source,
    size: tuple[int, int],
    labels: Sequence[str],
    boxes: Floats,
    scores: Floats,
    classes: Integers,
    points: Floats | None = None,
) -> Detections:
    """A result of boxes that are in pixels already; empty ones are left out. `points` are x, y, x, y, …"""
    items = []
    for number, (box, score, kind) in enumerate(
        zip(boxes.tolist(), scores.tolist(), classes.tolist(), strict=True)
    ):
        if box[2] <= box[0] or box[3] <= box[1]:
            continue
        marks = () if points is None else tuple(map(tuple, points[number].reshape(-1, 2).tolist()))
        items.append(Detection(labels[kind], score, Box(*box), marks))
    return Detections(tuple(items), *size, model=source.name, license=source.license)


def check_share(name: str, value: object) -> float:
    """A threshold from 0 to 1, or `InvalidRequest`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidRequest(f"{name} must be from 0 to 1, not {value!r}", param=name, value=value)
    return float(value)


def check_count(name: str, value: object) -> int:
    """A number of results, at least 1, or `InvalidRequest`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(f"{name} must be at least 1, not {value!r}", param=name, value=value)
    return value
