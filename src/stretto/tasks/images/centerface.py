"""CenterFace: faces, with five landmarks each: both eyes, the nose, both corners of the mouth.

The graph takes images of any size whose edges are multiples of 32, though its file declares one size; that is
corrected when it is loaded. It makes maps at a quarter of the size: how probably a face is centred there, the
logarithm of its size, how far its centre is from the cell's, and where the landmarks lie in the box.
"""

from __future__ import annotations

from math import ceil, sqrt
from pathlib import Path

import numpy as np

from stretto.tasks.images.base import Detector, Found
from stretto.tasks.images.graph import import_onnx, open_graph
from stretto.tasks.images.prepare import Preparation, prepare
from stretto.tasks.model import Source, TaskModel
from stretto.vision.image import Image

SCORES, SIZES, OFFSETS, POINTS = "537", "538", "539", "540"
STRIDE = 4  # pixels of the input for one cell of the maps
MULTIPLE = 32  # of the input's edges
MAX_PIXELS = 1536 * 1536  # of the input; larger images are made smaller
MAX_LOG_SIZE = 8.0  # of a box, in cells


def open_task(source: Source, device: str, threads: int | None) -> TaskModel:
    """The model, for images of any size."""
    graph = free_sizes(source.files["centerface.onnx"])
    return CenterFace(source, open_graph(graph, device, threads))


def free_sizes(path: Path) -> bytes:
    """The model's file with names in place of its sizes."""
    model = import_onnx().load(str(path), load_external_data=False)
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.name in weights or len(dims) != 4:
            continue
        names = (
            ("n", "height", "width")
            if value.name not in (SCORES, SIZES, OFFSETS, POINTS)
            else ("n", "h", "w")
        )
        for number, name in zip((0, 2, 3), names, strict=True):
            dims[number].dim_param = name
    made: bytes = model.SerializeToString()
    return made


class CenterFace(Detector):
    """Finds faces; their landmarks are points of the detections."""

    threshold = 0.5
    overlap = 0.3
    labels = ("face",)

    def find(self, image: Image, threshold: float) -> Found:
        """The centres of faces, with their sizes and landmarks."""
        width, height = input_size(*image.size)
        tensor, placement = prepare(image.pixels, Preparation(width, height, scale=1.0))
        maps = {name: array[0] for name, array in self.run(tensor[None]).items()}
        y, x = np.nonzero(maps[SCORES][0] >= threshold)
        rows, columns = np.exp(np.minimum(maps[SIZES][:, y, x], MAX_LOG_SIZE)) * STRIDE
        centre_y, centre_x = (np.stack((y, x)) + maps[OFFSETS][:, y, x] + 0.5) * STRIDE
        x0 = np.clip(centre_x - columns / 2, 0, width)
        y0 = np.clip(centre_y - rows / 2, 0, height)
        boxes = np.stack((x0, y0, x0 + columns, y0 + rows), axis=1)
        marks = maps[POINTS][:, y, x].reshape(5, 2, -1)  # y and x of each, in shares of the box
        points = np.stack((marks[:, 1] * columns + x0, marks[:, 0] * rows + y0), axis=1)  # [5, 2, n]
        return Found(
            placement.to_image(boxes),
            maps[SCORES][0][y, x],
            np.zeros(len(x), np.int64),
            placement.to_image(points.reshape(10, -1).T),
        )


def input_size(width: int, height: int) -> tuple[int, int]:
    """The input's width and height for an image: its own, up to the next multiple, within the limit.

    >>> input_size(500, 333)
    (512, 352)
    """
    share = min(1.0, sqrt(MAX_PIXELS / (width * height)))
    longest = MAX_PIXELS // MULTIPLE
    new = (min(longest, ceil(edge * share / MULTIPLE) * MULTIPLE) for edge in (width, height))
    return next(new), next(new)
