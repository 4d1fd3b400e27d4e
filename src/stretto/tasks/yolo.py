"""YOLO-style detectors by convention: what the file itself says is enough to run it.

    stretto.load("yolo11n.onnx").detect("street.jpg")

Exports of YOLOv5 to YOLOv11, YOLOX and their kin are recognised by the shapes of input and outputs
(yolo_heads.py); names of classes are those in the file's metadata, where Ultralytics' exports have them.
Images are letterboxed as the family does it, and boxes come back in pixels of the image.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.backends.onnx_session import OnnxSession
from stretto.errors import ModelError
from stretto.tasks.images.base import Detector, Found
from stretto.tasks.images.prepare import Preparation, prepare
from stretto.tasks.model import Source
from stretto.tasks.yolo_heads import KEPT, count_cells, count_classes, decode, recognize
from stretto.vision.image import Image

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


def convention_of(session: OnnxSession) -> Convention | None:
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
    return Convention(head, width, height, labels_of(session, head, shapes))


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


def labels_of(session: OnnxSession, head: str, shapes: Shapes) -> Sequence[str]:
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
