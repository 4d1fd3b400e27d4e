"""Convex hulls, rectangles of least area, and rectangles grown by a margin.

Points are float64[n, 2], x and y in pixels, y downwards. Corners of a rectangle go clockwise from the upper
left one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Singles = NDArray[np.float32]

_ARC_TOLERANCE = 0.25  # pixels


def convex_hull(points: Points) -> Points:
    """The corners of the points' convex hull, in order around it."""
    found = np.unique(points, axis=0)
    if len(found) < 3:
        return found
    rows = [(float(x), float(y)) for x, y in found]
    lower, upper = _half_hull(rows), _half_hull(rows[::-1])
    return np.asarray(lower[:-1] + upper[:-1], np.float64)


def _half_hull(rows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    chain: list[tuple[float, float]] = []
    for x, y in rows:
        while len(chain) > 1:
            (ax, ay), (bx, by) = chain[-2:]
            if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                break
            chain.pop()
        chain.append((x, y))
    return chain


def least_rectangle(points: Points) -> tuple[Points, float]:
    """The rectangle of least area around the points, float64[4, 2], and its shorter side.

    One of its sides lies on an edge of the hull, so that only the edges' directions are tried. Arithmetic is
    OpenCV's, in single precision and in its order: corners are cut to whole pixels later, and one at
    575.99994 should not come out at 576 here.
    """
    hull = convex_hull(points).astype(np.float32)
    if len(hull) == 1:
        return np.repeat(hull, 4, axis=0).astype(np.float64), 0.0
    a, b = _directions(hull)
    exact = hull.astype(np.float64)
    along, across = exact @ np.stack((a, b)), exact @ np.stack((-b, a))  # float64[n_hull, n_edges]
    first, lowest = along.argmin(0), across.argmin(0)
    to_last, to_highest = hull[along.argmax(0)] - hull[first], hull[across.argmax(0)] - hull[lowest]
    widths = to_last[:, 0] * a + to_last[:, 1] * b
    heights = to_highest[:, 1] * a - to_highest[:, 0] * b
    areas = widths * heights
    best = len(areas) - 1 - int(np.argmin(areas[::-1]))  # of equal ones the last
    corner = _meeting(a[best], b[best], hull[first[best]], hull[lowest[best]])
    return _spanned(corner, a[best], b[best], widths[best], heights[best])


def _directions(hull: Singles) -> tuple[Singles, Singles]:
    """The directions of the hull's edges, turned by right angles into the first quadrant, by their angles."""
    edges = np.roll(hull, -1, axis=0) - hull
    x, y = edges.T
    lengths = np.sqrt(x.astype(np.float64) ** 2 + y.astype(np.float64) ** 2)
    quarter = np.select([(x > 0) & (y >= 0), (x <= 0) & (y > 0), (x < 0) & (y <= 0)], [0, 1, 2], 3)
    turned_x, turned_y = np.choose(quarter, (x, y, -x, -y)), np.choose(quarter, (y, -x, -y, x))
    order = np.lexsort((quarter, np.arctan2(turned_y.astype(np.float64), turned_x)))
    inverse = (1 / lengths).astype(np.float32)
    return (turned_x * inverse)[order], (turned_y * inverse)[order]


def _meeting(a: np.float32, b: np.float32, first: Singles, lowest: Singles) -> Singles:
    """The corner where the side through `first` meets the one through `lowest`."""
    c, d = a * first[0] + b * first[1], a * lowest[1] - b * lowest[0]
    scale = np.float32(1) / (a * a + b * b)
    return np.stack(((c * a - d * b) * scale, (a * d + b * c) * scale))


def _spanned(
    corner: Singles, a: np.float32, b: np.float32, width: np.float32, height: np.float32
) -> tuple[Points, float]:
    """The rectangle from a corner along two directions, by its middle, sides and angle."""
    along, across = np.stack((a * width, b * width)), np.stack((-b * height, a * height))
    middle = corner + (along + across) * np.float32(0.5)
    wide, high = (
        np.float32(np.hypot(*along.astype(np.float64))),
        np.float32(np.hypot(*across.astype(np.float64))),
    )
    angle = np.radians(np.float64(np.float32(np.degrees(np.arctan2(*along[::-1].astype(np.float64))))))
    half_x, half_y = np.float32(np.cos(angle)) * np.float32(0.5), np.float32(np.sin(angle)) * np.float32(0.5)
    one = middle + np.stack((-half_y * high - half_x * wide, half_x * high - half_y * wide))
    two = middle + np.stack((half_y * high - half_x * wide, -half_x * high - half_y * wide))
    corners = np.stack((one, two, 2 * middle - one, 2 * middle - two)).astype(np.float64)
    return order_corners(corners), float(min(wide, high))


def order_corners(corners: Points) -> Points:
    """Four corners, clockwise from the upper left one: the upper one of the two that are furthest left."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left, right = by_x[:2], by_x[2:]
    upper_left, lower_left = left[np.argsort(left[:, 1], kind="stable")]
    upper_right, lower_right = right[np.argsort(right[:, 1], kind="stable")]
    return np.stack((upper_left, upper_right, lower_right, lower_left))


def area_and_perimeter(corners: Points) -> tuple[float, float]:
    """The area and the length of the outline of a polygon."""
    following = np.roll(corners, -1, axis=0)
    cross = corners[:, 0] * following[:, 1] - corners[:, 1] * following[:, 0]
    sides = np.hypot(*(following - corners).T)
    return float(abs(cross.sum()) / 2), float(sides.sum())


def grow(corners: Points, margin: float) -> Points:
    """The outline of a convex polygon, clockwise, grown by `margin`, in whole pixels.

    Its corners are rounded in steps that stray at most a quarter of a pixel from the arc.
    """
    sides = np.roll(corners, -1, axis=0) - corners
    lengths = np.hypot(*sides.T)
    if margin <= 0 or not lengths.all():
        return corners
    normals = np.arctan2(-sides[:, 0], sides[:, 1])  # outwards from each side
    steps = min(np.pi / np.arccos(1 - min(_ARC_TOLERANCE / margin, 1.0)), margin * np.pi)
    points = []
    for corner, before, after in zip(corners, np.roll(normals, 1), normals, strict=True):
        turn = (after - before) % (2 * np.pi)
        count = max(int(steps * turn / (2 * np.pi) + 0.5), 1)
        angles = np.append(before + np.arange(count) * (2 * np.pi / steps), after)
        points.append(corner + margin * np.stack((np.cos(angles), np.sin(angles)), axis=1))
    grown: Points = np.floor(np.concatenate(points) + 0.5)
    return grown
