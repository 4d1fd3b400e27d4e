"""The outputs of YOLO-style detectors: what each kind looks like, and how it becomes boxes.

    kind = recognize({"output0": (1, 84, 8400)}, width=640, height=640)      # "yolov8"
    boxes, scores, classes = HEADS[kind](arrays, width, height, n_classes)

    yolov5    [1, n, 5 + classes]   centre and size in pixels, objectness, classes; three boxes a cell
    yolov8    [1, 4 + classes, n]   centre and size in pixels, classes; one box a cell
    yolox     [1, n, 5 + classes]   centre and size relative to the cell, objectness, classes; one box a cell
    kept      [1, n, 6]             corners, score and class of the boxes that the graph itself has kept
    kept7     [n, 7]                number of the image, corners, class, score, as YOLOv7 exports them
    kept4     four outputs          how many there are, corners, scores, classes (TensorRT's EfficientNMS)

A cell is 8, 16 or 32 pixels wide (64 too, in the large variants), so the size of the input says how many
boxes there are, and that tells the kinds apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ModelError
from stretto.tasks.images.boxes import Floats, Integers, to_corners

STRIDES = ((8, 16, 32), (8, 16, 32, 64))
ANCHORS = 3  # boxes for each cell of YOLOv5
MAX_LOG_SIZE = 10.0  # of a box, in cells
MAX_OFFSET = 8.0  # of a raw centre from its cell, in cells, for half of all boxes

Shape = tuple[int, ...]
Arrays = Mapping[str, NDArray[Any]]
Decoded = tuple[Floats, Floats, Integers]  # corners in pixels of the input, scores, classes


def count_cells(width: int, height: int) -> dict[int, tuple[int, ...]]:
    """The strides by the number of cells that they make together.

    >>> count_cells(640, 640)
    {8400: (8, 16, 32), 8500: (8, 16, 32, 64)}
    """
    fitting = [strides for strides in STRIDES if not width % strides[-1] and not height % strides[-1]]
    return {sum(width // step * (height // step) for step in strides): strides for strides in fitting}


def recognize(shapes: Mapping[str, Shape], width: int, height: int) -> str | None:
    """The kind of head with outputs of these shapes, or None."""
    if len(shapes) == 4 and _are_kept(list(shapes.values())):
        return "kept4"
    shape = next(iter(shapes.values()))
    cells = count_cells(width, height)
    if len(shapes) == 1 and len(shape) == 2 and shape[1] == 7:
        return "kept7"
    if len(shape) != 3 or shape[0] != 1:
        return None
    _, rows, columns = shape
    if rows in cells and columns >= 6:
        return "yolox"
    if rows in {ANCHORS * n for n in cells} and columns >= 6:
        return "yolov5"
    if columns in cells and rows >= 5:
        return "yolov8"
    return "kept" if len(shapes) == 1 and columns == 6 else None


def _are_kept(shapes: list[Shape]) -> bool:
    """(1, 1), (1, n, 4), (1, n), (1, n)."""
    counts, boxes, scores, classes = shapes
    return len(counts) <= 2 and len(boxes) == 3 and boxes[2] == 4 and scores == classes == boxes[:2]


def count_classes(kind: str, shapes: Mapping[str, Shape]) -> int | None:
    """The number of classes that the output has room for; None where it holds their numbers."""
    if kind in KEPT:
        return None
    shape = next(iter(shapes.values()))
    return shape[1] - 4 if kind == "yolov8" else shape[2] - 5


def decode(kind: str, arrays: Arrays, width: int, height: int, n_classes: int) -> Decoded:
    """Boxes, scores and classes of one image; `ModelError` if the outputs are not those of this head."""
    try:
        boxes, scores, classes = HEADS[kind](list(arrays.values()), width, height, n_classes)
        if boxes.shape != (len(scores), 4) or scores.shape != classes.shape or scores.ndim != 1:
            raise ValueError(f"boxes of {boxes.shape}, scores of {scores.shape}, classes of {classes.shape}")
    except (IndexError, KeyError, TypeError, ValueError) as error:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise ModelError(f"its outputs ({shapes:.300}) are not those of {kind}: {error}") from error
    known = (classes >= 0) & (classes < n_classes)
    return boxes[known], scores[known], classes[known]


def _yolov5(arrays: list[NDArray[Any]], width: int, height: int, n_classes: int) -> Decoded:
    rows = arrays[0][0]
    return to_corners(rows[:, :4]), *_best(rows[:, 5 : 5 + n_classes] * rows[:, 4:5])


def _yolov8(arrays: list[NDArray[Any]], width: int, height: int, n_classes: int) -> Decoded:
    rows = arrays[0][0].T
    return to_corners(rows[:, :4]), *_best(rows[:, 4 : 4 + n_classes])


def _yolox(arrays: list[NDArray[Any]], width: int, height: int, n_classes: int) -> Decoded:
    rows = arrays[0][0]
    if rows.ndim != 2 or rows.shape[1] < 6:  # also an empty one, whose median would be a warning
        raise ValueError(f"rows of {list(rows.shape[1:])} values, instead of a box, a score and classes")
    strides = count_cells(width, height)[len(rows)]
    if float(np.median(np.abs(rows[:, :2]))) > MAX_OFFSET:
        raise ModelError(
            "its boxes are in pixels already, so it is no YOLOX, though it has as many of them; say "
            '[output] head = "yolov5" in a recipe beside it'
        )
    grid = [_cells(width // step, height // step, step) for step in strides]
    corners, steps = np.concatenate([cells for cells, _ in grid]), np.concatenate([step for _, step in grid])
    centres = rows[:, :2] * steps + corners
    sizes = np.exp(np.minimum(rows[:, 2:4], MAX_LOG_SIZE)) * steps
    boxes = to_corners(np.concatenate((centres, sizes), axis=1))
    return boxes, *_best(rows[:, 5 : 5 + n_classes] * rows[:, 4:5])


def _cells(columns: int, rows: int, stride: int) -> tuple[Floats, Floats]:
    """float32[n, 2]: the upper left corners of cells, row by row; float32[n, 1]: their size."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    corners = np.stack((x, y), axis=1).astype(np.float32) * stride
    return corners, np.full((rows * columns, 1), stride, np.float32)


def _kept(arrays: list[NDArray[Any]], width: int, height: int, n_classes: int) -> Decoded:
    rows = arrays[0][0]
    return rows[:, :4], rows[:, 4], _whole(rows[:, 5])


def _kept7(arrays: list[NDArray[Any]], width: int, height: int, n_classes: int) -> Decoded:
    rows = arrays[0][arrays[0][:, 0] == 0]
    return rows[:, 1:5], rows[:, 6], _whole(rows[:, 5])


def _kept4(arrays: list[NDArray[Any]], width: int, height: int, n_classes: int) -> Decoded:
    n = int(np.clip(arrays[0].reshape(-1)[0], 0, arrays[1].shape[1]))
    return arrays[1][0, :n], arrays[2][0, :n], _whole(arrays[3][0, :n])


def _best(scores: Floats) -> tuple[Floats, Integers]:
    """The best class of each box."""
    classes = scores.argmax(axis=1)
    return scores[np.arange(len(scores)), classes], classes


def _whole(classes: NDArray[Any]) -> Integers:
    """Numbers of classes that may be floats; −1 for what is no number of one."""
    finite = np.where(np.isfinite(classes) & (np.abs(classes) < 1 << 30), classes, -1)
    return finite.astype(np.int64)


HEADS: Mapping[str, Callable[[list[NDArray[Any]], int, int, int], Decoded]] = {
    "yolov5": _yolov5,
    "yolov8": _yolov8,
    "yolox": _yolox,
    "kept": _kept,
    "kept7": _kept7,
    "kept4": _kept4,
}
KEPT = ("kept", "kept7", "kept4")  # non-maximum suppression is in the graph
