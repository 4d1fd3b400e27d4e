"""Resizes images and cuts lines of text out of them, straightened.

The samples are those of OpenCV, with which the models were trained: bilinear without smoothing for sizes,
bicubic with a = -0.75 for perspective.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.tasks.reading.geometry import Points

Pixels = NDArray[np.uint8]
Singles = NDArray[np.float32]

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
