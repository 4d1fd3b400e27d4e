"""Images as encoders take them, and the ways to resize and cut them that several families share."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from stretto.vision.decode import Pixels


@dataclass(frozen=True)
class Prepared:
    """An image as an encoder takes it: its tiles, in a grid; one that was not split has no rows."""

    tiles: Pixels  # uint8[n, height, width, 3]
    rows: int = 0
    columns: int = 0

    def digest(self) -> bytes:
        """SHA-256 of the pixels and the grid."""
        head = f"{self.tiles.shape} {self.rows} {self.columns}".encode()
        return sha256(head + np.ascontiguousarray(self.tiles).tobytes()).digest()


def resize(pixels: Pixels, height: int, width: int, filter_name: str) -> Pixels:
    """An image in another size; `filter_name` is one of Pillow's."""
    from PIL import Image as Pillow

    if pixels.shape[:2] == (height, width):
        return pixels
    resample = Pillow.Resampling[filter_name.upper()]
    return np.asarray(Pillow.fromarray(pixels).resize((width, height), resample))


def fit(height: int, width: int, edge: int) -> tuple[int, int]:
    """A size of the same shape whose longest edge is `edge`."""
    if width >= height:
        return max(1, int(edge * height / width)), edge
    return edge, max(1, int(edge * width / height))


def cut(pixels: Pixels, rows: int, columns: int) -> Pixels:
    """uint8[rows × columns, …]: the tiles of an image whose sides they divide, row by row."""
    height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
    parts = pixels.reshape(rows, height, columns, width, 3).swapaxes(1, 2)
    return parts.reshape(-1, height, width, 3)
