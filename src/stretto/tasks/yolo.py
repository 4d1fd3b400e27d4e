"""YOLO-style detectors by convention: what the file itself says is enough to run it.

    stretto.load("yolo11n.onnx").detect("street.jpg")

Exports of YOLOv5 to YOLOv11, YOLOX and their kin are recognised by the shapes of input and outputs
(yolo_heads.py); names of classes are those in the file's metadata, where Ultralytics' exports have them.
Images are letterboxed as the family does it, and boxes come back in pixels of the image.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import OnnxSession
from stretto.errors import ModelError
from stretto.tasks.images.base import Detector, Floats, Found, Integers, to_corners
from stretto.tasks.images.prepare import Preparation, prepare
from stretto.tasks.model import Source
from stretto.vision.image import Image

# The outputs of YOLO-style detectors: what each kind looks like, and how it becomes boxes.
#
#     kind = recognize({"output0": (1, 84, 8400)}, width=640, height=640)      # "yolov8"
#     boxes, scores, classes = HEADS[kind](arrays, width, height, n_classes)
#
#     yolov5    [1, n, 5 + classes]   centre and size in pixels, objectness, classes; three boxes a cell
#     yolov8    [1, 4 + classes, n]   centre and size in pixels, classes; one box a cell
#     yolox     [1, n, 5 + classes]   centre and size relative to the cell, objectness, classes; one a cell
#     kept      [1, n, 6]             corners, score and class of the boxes that the graph itself has kept
#     kept7     [n, 7]                number of the image, corners, class, score, as YOLOv7 exports them
#     kept4     four outputs          how many there are, corners, scores, classes (TensorRT's EfficientNMS)
#
# A cell is 8, 16 or 32 pixels wide (64 too, in the large variants), so the size of the input says how many
# boxes there are, and that tells the kinds apart.

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


USUAL_EDGE = 640  # of an input whose size the file leaves open
MAX_EDGE = 4096
GREY = 0.45
MAX_METADATA_CHARACTERS = 1 << 20
MAX_NAME_CHARACTERS = 200
MAX_CLASSES = 100_000

# YOLOX takes pixels as OpenCV reads them, in the upper left corner; the others shares of red, green, blue.
USUAL = Preparation(USUAL_EDGE, USUAL_EDGE, fit="letterbox")
OF_YOLOX = Preparation(USUAL_EDGE, USUAL_EDGE, fit="letterbox", centered=False, scale=1.0, bgr=True)

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Convention:
    """What was found out about a file: the kind of its head, its input's size, the names of its classes."""

    head: str
    width: int
    height: int
    labels: Sequence[str]


class Numbered(Sequence[str]):
    """Names for classes that have none: "class 0", "class 1", …"""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, number: int) -> str:  # type: ignore[override]  # slices are not needed
        if not 0 <= number < self._n:
            raise IndexError(number)
        return f"class {number}"


class Yolo(Detector):
    """A detector with one of the known heads."""

    def __init__(
        self,
        source: Source,
        session: OnnxSession,
        convention: Convention,
        preparation: Preparation | None = None,
        outputs: Sequence[str] | None = None,
    ) -> None:
        super().__init__(source, session)
        every = list(session.file.outputs)
        usual = OF_YOLOX if convention.head == "yolox" else USUAL
        sized = replace(usual, width=convention.width, height=convention.height)
        self.convention = convention
        self.preparation = preparation or sized
        self.labels = convention.labels
        self.suppresses = convention.head in KEPT
        self._outputs = outputs or (every if convention.head == "kept4" else every[:1])

    def find(self, image: Image, threshold: float) -> Found:
        """All boxes whose best class is probable enough."""
        return self._found([image], threshold)[0]

    def find_all(self, images: Iterable[Image], threshold: float) -> list[Found]:
        """The boxes of several images, which go through the graph together if it takes several."""
        if self.takes_several and self.convention.head != "kept7":
            return self._found(images, threshold)
        return super().find_all(images, threshold)

    def _found(self, images: Iterable[Image], threshold: float) -> list[Found]:
        how, head = self.preparation, self.convention.head
        prepared = [prepare(image.pixels, how) for image in images]
        arrays = self.run(np.stack([tensor for tensor, _ in prepared]), self._outputs)
        made = []
        for number, (_, placement) in enumerate(prepared):
            own = {name: array[number : number + 1] for name, array in arrays.items()}
            own = arrays if head == "kept7" else own  # of one image always
            boxes, scores, classes = decode(head, own, how.width, how.height, len(self.labels))
            likely = np.flatnonzero(scores >= threshold)
            made.append(Found(placement.to_image(boxes[likely]), scores[likely], classes[likely]))
        return made


def find_convention(session: OnnxSession) -> Convention | None:
    """The convention that a file follows, or None; `ModelError` if it is a known one that is not served."""
    file = session.file
    if len(file.inputs) != 1:
        return None
    (given,) = file.inputs.values()
    if given.type not in ("float32", "float16") or given.shape is None or len(given.shape) != 4:
        return None
    if given.shape[0] not in (1, None) and isinstance(given.shape[0], int):
        return None
    if given.shape[1] != 3:
        return None
    task = file.metadata.get("task", "detect")
    if task != "detect":
        raise ModelError(
            f"is an export for the task {task!r:.50}; of such exports only 'detect' is known", path=file.path
        )
    width, height = _input_size(session)
    if not count_cells(width, height) or not 32 <= min(width, height) <= max(width, height) <= MAX_EDGE:
        return None
    shapes = output_shapes(session, width, height)
    head = recognize(shapes, width, height)
    if head is None:
        return None
    return Convention(head, width, height, read_class_names(session, head, shapes))


def output_shapes(session: OnnxSession, width: int, height: int) -> Shapes:
    """The shapes of the outputs for one image; found by running the graph if the file leaves them open."""
    declared: dict[str, tuple[int, ...]] = {}
    for name, value in session.file.outputs.items():
        sizes = tuple(size for size in value.shape or () if isinstance(size, int))
        if value.shape and len(sizes) == len(value.shape):
            declared[name] = sizes
    if len(declared) == len(session.file.outputs):
        return declared
    (given,) = session.file.inputs.values()
    grey = np.full((1, 3, height, width), GREY, given.type)
    return {name: array.shape for name, array in session.run({given.name: grey}).items()}


def read_class_names(session: OnnxSession, head: str, shapes: Shapes) -> Sequence[str]:
    """The names in the metadata; numbers in place of names that it lacks."""
    names = read_names(session.file.metadata.get("names", ""))
    room = count_classes(head, shapes)
    if names is None:
        return Numbered(MAX_CLASSES if room is None else room)
    if room is not None and len(names) != room:
        raise ModelError(
            f"its metadata names {len(names)} classes, but its output has room for {room}; it may be an "
            "export for another task than detection",
            path=session.file.path,
            field="names",
        )
    return names


def read_names(text: str) -> tuple[str, ...] | None:
    """Names as exports write them: `{0: 'person', 1: 'bicycle'}`, a list, or JSON; None for anything else.

    The text is read as a literal, never run.
    """
    if not text or len(text) > MAX_METADATA_CHARACTERS:
        return None
    try:
        made = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        try:
            made = json.loads(text)
        except (ValueError, RecursionError):
            return None
    if isinstance(made, dict):
        by_number = {str(key): value for key, value in made.items() if isinstance(key, (int, str))}
        made = [by_number.get(str(number)) for number in range(len(made))]
    if not isinstance(made, list) or not 0 < len(made) <= MAX_CLASSES:
        return None
    if not all(isinstance(name, str) and len(name) <= MAX_NAME_CHARACTERS for name in made):
        return None
    return tuple(made)


def _input_size(session: OnnxSession) -> tuple[int, int]:
    """Width and height: those of the file, of its metadata (`imgsz`), or the usual ones."""
    (given,) = session.file.inputs.values()
    height, width = (given.shape or ())[2:4]
    said = read_size(session.file.metadata.get("imgsz", ""))
    sizes = [width if isinstance(width, int) else said[1], height if isinstance(height, int) else said[0]]
    return sizes[0], sizes[1]


def read_size(text: str) -> tuple[int, int]:
    """Height and width from `[640, 640]`, or the usual ones."""
    try:
        made = json.loads(text[:100])
    except (ValueError, RecursionError):
        return USUAL_EDGE, USUAL_EDGE
    if isinstance(made, list) and len(made) == 2 and all(type(size) is int for size in made):
        return made[0], made[1]
    return USUAL_EDGE, USUAL_EDGE
