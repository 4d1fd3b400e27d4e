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


# Resizes images and cuts lines of text out of them, straightened.
#
# The samples are those of OpenCV, with which the models were trained: bilinear without smoothing for sizes,
# bicubic with a = -0.75 for perspective.

Pixels = NDArray[np.uint8]

_CUBIC = -0.75
_TALL = 1.5  # height : width


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """The image in another size, uint8[height, width, 3]: bilinear samples, also where it shrinks."""
    if pixels.shape[:2] == (height, width):
        return pixels
    above, below, down = _neighbours(pixels.shape[0], height)
    left, right, across = _neighbours(pixels.shape[1], width)
    rows = _mixed(pixels[above].astype(np.float32), pixels[below], down[:, None, None])
    return np.rint(_mixed(rows[:, left], rows[:, right], across[:, None])).astype(np.uint8)


def _neighbours(n_source: int, n_target: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Singles]:
    """For each sample the pixels before and after it, and the share of the latter."""
    at = np.clip((np.arange(n_target) + 0.5) * (n_source / n_target) - 0.5, 0, n_source - 1)
    before = np.floor(at).astype(np.intp)
    return before, np.minimum(before + 1, n_source - 1), (at - before).astype(np.float32)


def _mixed(one: Singles, other: Pixels | Singles, share: Singles) -> Singles:
    return one + (other - one) * share


def cut_line(pixels: Pixels, corners: Points) -> Pixels:
    """The line within four corners of whole pixels, level, uint8[height, width, 3]."""
    width, height = _size(corners)
    crop = _warp(pixels, corners, width, height)
    return np.rot90(crop) if is_tall(corners) else crop


def is_tall(corners: Points) -> bool:
    """Whether a line runs upwards or downwards, by its shape."""
    width, height = _size(corners)
    return height >= _TALL * width


def _size(corners: Points) -> tuple[int, int]:
    sides = np.hypot(*(np.roll(corners, -1, axis=0) - corners).T)
    return max(int(max(sides[0], sides[2])), 1), max(int(max(sides[1], sides[3])), 1)


def _warp(pixels: Pixels, corners: Points, width: int, height: int) -> Pixels:
    (x0, y0), (x1, y1) = corners[0], corners[2]
    upright = np.asarray([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    if np.array_equal(corners, upright):  # every sample falls onto a pixel
        left, top = int(x0), int(y0)
        return pixels[top : top + height, left : left + width]
    target = np.asarray([(0, 0), (width, 0), (width, height), (0, height)], np.float64)
    a, b, c, d, e, f, g, h = _perspective(target, corners)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    scale = g * x + h * y + 1
    return _sample(pixels, (a * x + b * y + c) / scale, (d * x + e * y + f) / scale)


def _perspective(source: Points, target: Points) -> NDArray[np.float64]:
    """The eight coefficients of the projection that takes four points to four others."""
    rows, values = [], []
    for (x, y), (u, v) in zip(source, target, strict=True):
        rows += [(x, y, 1, 0, 0, 0, -x * u, -y * u), (0, 0, 0, x, y, 1, -x * v, -y * v)]
        values += [u, v]
    return np.linalg.solve(np.asarray(rows, np.float64), np.asarray(values, np.float64))


def _sample(pixels: Pixels, x: NDArray[np.float64], y: NDArray[np.float64]) -> Pixels:
    """Bicubic samples at points; the image's edge is continued beyond it."""
    height, width = pixels.shape[:2]
    left, top = np.floor(x).astype(np.intp), np.floor(y).astype(np.intp)
    across, down = _weights(x - left), _weights(y - top)  # float32[4, rows, columns]
    total = np.zeros((*x.shape, 3), np.float32)
    for j in range(4):
        rows = np.clip(top + j - 1, 0, height - 1)
        line = np.zeros_like(total)
        for i in range(4):
            columns = np.clip(left + i - 1, 0, width - 1)
            line += across[i][..., None] * pixels[rows, columns]
        total += down[j][..., None] * line
    return np.clip(np.rint(total), 0, 255).astype(np.uint8)


def _weights(t: NDArray[np.float64]) -> Singles:
    """The weights of the four neighbours of a point that lies `t` after the second."""
    near, far = np.stack((t, 1 - t)), np.stack((t + 1, 2 - t))
    inner = ((_CUBIC + 2) * near - (_CUBIC + 3)) * near * near + 1
    outer = ((_CUBIC * far - 5 * _CUBIC) * far + 8 * _CUBIC) * far - 4 * _CUBIC
    return np.stack((outer[0], inner[0], inner[1], outer[1])).astype(np.float32)
