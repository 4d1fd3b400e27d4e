"""PP-OCR: reads the text in images with three models, for lines, their direction and their characters.

stretto.load("ppocr").read("letter.png").text
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import OnnxSession, open_session
from stretto.errors import ModelError
from stretto.tasks.model import Source, TaskModel, each
from stretto.tasks.reading.geometry import Pixels, Points, cut_line, is_tall, order_corners, resize
from stretto.tasks.reading.lines import find_lines, page_order
from stretto.tasks.results import Line, Reading
from stretto.vision.image import Image

# Reads lines of text that were cut out: batches of similar width, and CTC decoding.

BATCH_LINES = 6
_LINE_HEIGHT = 48
_MIN_BATCH_WIDTH = 320
_MAX_RATIO = 200  # width : height of a line; longer ones are squeezed


def read_characters(metadata: str) -> list[str]:
    """The characters that the classes stand for, from the model's metadata: the blank first, a space last."""
    if not metadata:
        raise ModelError("the model has no characters in its metadata", field="character")
    return ["", *metadata.split("\n"), " "]


def recognise(
    session: OnnxSession, characters: Sequence[str], crops: Sequence[Pixels]
) -> list[tuple[str, float]]:
    """The text of each crop, and how sure the model is of it: the mean over its characters."""
    found: list[tuple[str, float]] = [("", 0.0)] * len(crops)
    for batch in batches(crops):
        ratio = max(_MIN_BATCH_WIDTH / _LINE_HEIGHT, *(_ratio(crops[i]) for i in batch))
        lines = np.stack([prepare_crop(crops[i], _LINE_HEIGHT, int(_LINE_HEIGHT * ratio)) for i in batch])
        scores = run_session(session, lines)
        if scores.ndim != 3 or scores.shape[2] != len(characters):
            raise ModelError(f"{scores.shape} scores for {len(characters)} characters", field="character")
        for number, line in zip(batch, scores, strict=True):
            found[number] = decode(line, characters)
    return found


def batches(crops: Sequence[Pixels]) -> list[list[int]]:
    """Numbers of crops in batches, narrow ones first, so that little is padded."""
    order = sorted(range(len(crops)), key=lambda i: crops[i].shape[1] / crops[i].shape[0])
    return [order[i : i + BATCH_LINES] for i in range(0, len(order), BATCH_LINES)]


def prepare_crop(crop: Pixels, height: int, width: int) -> NDArray[np.float32]:
    """The crop from -1 to 1 in float32[3, height, width]: scaled to the height, zeros to its right."""
    made = np.zeros((3, height, width), np.float32)
    scaled = resize(np.ascontiguousarray(crop), min(math.ceil(height * _ratio(crop)), width), height)
    made[:, :, : scaled.shape[1]] = scaled.transpose(2, 0, 1).astype(np.float32) / 127.5 - 1
    return made


def decode(scores: NDArray[np.float32], characters: Sequence[str]) -> tuple[str, float]:
    """The best text of float32[n_steps, n_classes]: equal neighbours are one character, blanks none.

    >>> decode(np.eye(3, dtype=np.float32)[[1, 1, 0, 1, 2]], ["", "o", "k"])
    ('ook', 1.0)
    """
    best = scores.argmax(axis=1)
    keep = (best != 0) & np.concatenate(([True], best[1:] != best[:-1]))
    if not keep.any():
        return "", 0.0
    text = "".join(characters[number] for number in best[keep])
    return text, float(scores.max(axis=1)[keep].mean())


def run_session(session: OnnxSession, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The output of a model that has one input and one output."""
    (name, *others), (output, *_) = session.file.inputs, session.file.outputs
    if others:
        raise ModelError(f"one input is expected, and there are {len(others) + 1}", path=session.file.path)
    made: NDArray[np.float32] = session.run({name: values}, [output])[output]
    return made


def _ratio(crop: Pixels) -> float:
    return float(min(crop.shape[1] / crop.shape[0], _MAX_RATIO))


DETECTION, RECOGNITION, DIRECTION = (
    "PP-OCRv6_det_small.onnx",
    "PP-OCRv6_rec_small.onnx",
    "ch_ppocr_mobile_v2.0_cls_mobile.onnx",
)
_MAX_SIDE = 2000  # pixels; larger images are scaled down
_MIN_SIDE = 30
_DETECTION_SIDE = 736  # the shorter side has at least as many pixels when lines are looked for
_WIDE = 8  # an image this many times longer on one side than on the other gets a margin
_STEP = 32  # sides are multiples of it
_DIRECTION_HEIGHT, _DIRECTION_WIDTH = 48, 192
_SURE_TURNED = 0.9
_WORD_CHARACTERS = 3  # fewer may be narrow without running upwards: 1, I, l


@dataclass(frozen=True)
class _Page:
    """An image as the models get it, and the way back: original = (here - origin) × scale."""

    pixels: Pixels  # blue, green, red
    origin: tuple[int, int]
    scale: tuple[float, float]


class PPOCR(TaskModel):
    """Reads printed text, in lines; `read` is its verb."""

    verbs = ("read",)

    def __init__(
        self, source: Source, detection: OnnxSession, recognition: OnnxSession, direction: OnnxSession
    ) -> None:
        super().__init__(source)
        self._detection = detection
        self._recognition = recognition
        self._direction = direction
        self._characters = read_characters(recognition.file.metadata.get("character", ""))

    def read(self, images: Any, *, min_score: float = 0.5) -> Any:
        """The text in an image, or in each of a list of them; lines under `min_score` are left out.

        >>> stretto.load("ppocr").read("letter.png").lines[0].text
        'Dear reader,'
        """
        return each(images, lambda image: self._read(Image.open(image), min_score))

    def close(self) -> None:
        """Release the models."""
        for session in (self._detection, self._recognition, self._direction):
            session.close()

    def _read(self, image: Image, min_score: float) -> Reading:
        page = _prepared(image.pixels[:, :, ::-1])
        quads = self._find(page.pixels)
        crops = [cut_line(page.pixels, quad) for quad in quads]
        turned = self._upside_down(crops)
        upright = [crop[::-1, ::-1] if turn else crop for crop, turn in zip(crops, turned, strict=True)]
        texts = recognise(self._recognition, self._characters, upright)
        kept = [n for n, (text, score) in enumerate(texts) if text.strip() and score >= min_score]
        upright_lines = [is_tall(quads[n]) and len(texts[n][0]) >= _WORD_CHARACTERS for n in kept]
        order = page_order([quads[n] for n in kept], upright_lines, [turned[n] for n in kept])
        return Reading(
            lines=tuple(Line(*texts[n], _corners(quads[n], page, image)) for n in (kept[i] for i in order)),
            width=image.width,
            height=image.height,
            model=self.name,
            license=self.license,
        )

    def _find(self, pixels: Pixels) -> list[Points]:
        """The corners of lines, in whole pixels."""
        height, width = pixels.shape[:2]
        factor = max(1.0, _DETECTION_SIDE / min(height, width))
        scaled = resize(pixels, _to_step(width * factor), _to_step(height * factor))
        values = scaled.transpose(2, 0, 1)[None].astype(np.float32) / 127.5 - 1
        chances = run_session(self._detection, values)
        limit = np.asarray((width, height))
        found = []
        for quad in find_lines(chances[0, 0]):
            ratio = limit / (scaled.shape[1], scaled.shape[0])
            corners = order_corners(np.clip(np.rint(quad * ratio), 0, limit - 1))
            across, down = np.hypot(*(corners[1] - corners[0])), np.hypot(*(corners[3] - corners[0]))
            if int(across) > 3 and int(down) > 3:
                found.append(corners)
        return found

    def _upside_down(self, crops: Sequence[Pixels]) -> list[bool]:
        """Whether each line stands on its head."""
        found = [False] * len(crops)
        for batch in batches(crops):
            lines = np.stack([prepare_crop(crops[i], _DIRECTION_HEIGHT, _DIRECTION_WIDTH) for i in batch])
            for number, (_, turned) in zip(batch, run_session(self._direction, lines), strict=True):
                found[number] = bool(turned > _SURE_TURNED)
        return found


def open_task(source: Source, device: str, threads: int | None) -> PPOCR:
    """Open the models of the bundle `ppocr`."""
    detection, recognition, direction = (
        open_session(source.files[name], device, threads) for name in (DETECTION, RECOGNITION, DIRECTION)
    )
    return PPOCR(source, detection, recognition, direction)


def _prepared(pixels: Pixels) -> _Page:
    """The image within the models' bounds on its sides and on their ratio."""
    height, width = pixels.shape[:2]
    factor = min(max(1.0, _MIN_SIDE / min(height, width)), _MAX_SIDE / max(height, width))
    if factor != 1:
        pixels = resize(np.ascontiguousarray(pixels), _to_step(width * factor), _to_step(height * factor))
    scale = width / pixels.shape[1], height / pixels.shape[0]
    top, left = _margins(*pixels.shape[:2])
    if top or left:
        pixels = np.pad(pixels, ((top, top), (left, left), (0, 0)))
    return _Page(np.ascontiguousarray(pixels), (left, top), scale)


def _margins(height: int, width: int) -> tuple[int, int]:
    """Rows to add above and below, and columns to add on both sides.

    A strip would become much too long when its shorter side is made as long as the models want it.
    """
    if height <= _MIN_SIDE or width > _WIDE * height:
        return abs(2 * max(width // _WIDE, _MIN_SIDE) - height) // 2, 0
    if height > _WIDE * width:
        return 0, abs(2 * (height // _WIDE) - width) // 2
    return 0, 0


def _to_step(length: float) -> int:
    return max(_STEP, round(int(length) / _STEP) * _STEP)


def _corners(quad: Points, page: _Page, image: Image) -> tuple[tuple[float, float], ...]:
    """Corners on the page as corners in the image that was given."""
    points = (quad - page.origin) * page.scale
    bounded = np.clip(points, 0, (image.width, image.height))
    return tuple((float(x), float(y)) for x, y in bounded)
