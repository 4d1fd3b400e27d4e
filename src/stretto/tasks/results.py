"""What tasks return: small values that print, go to JSON and draw themselves onto the image.

    found = stretto.load("centernet").detect("street.jpg")
    print(found)                     # person 0.91 at (12, 40, 88, 300)
    found[0].box.width, found.to_json()
    found.draw("street.jpg").save("out.png")

Coordinates are pixels of the image that was given, from its upper left corner; times are seconds.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest, Unsupported
from stretto.vision.image import Image

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage


# Draws results onto images.
#
#     draw_boxes("street.jpg", [("cat", "cat 0.91", (10, 20, 60, 80), ())]).save("out.png")
#
# An image is anything that `stretto.Image.open` takes. Sizes follow the image, so that labels can be read
# on a thumbnail and on a photograph.

Point = tuple[float, float]
Labelled = tuple[
    str, str, tuple[float, float, float, float], tuple[Point, ...]
]  # class, text, box, landmarks

_COLORS = ((214, 39, 40), (31, 119, 180), (44, 160, 44), (148, 103, 189), (255, 127, 14), (23, 130, 150))
_TINT = (214, 39, 40)


def draw_boxes(image: Any, boxes: Sequence[Labelled]) -> PillowImage:
    """The image with boxes, their texts and landmarks; a class always has the same colour."""
    from PIL import ImageDraw

    canvas = _canvas(image)
    pen, width, font = ImageDraw.Draw(canvas), _stroke(canvas), _font(canvas)
    for name, text, box, points in boxes:
        color = _COLORS[zlib.crc32(name.encode()) % len(_COLORS)]
        pen.rectangle(box, outline=color, width=width)
        for x, y in points:
            pen.ellipse((x - width, y - width, x + width, y + width), fill=color)
        _tag(pen, box[:2], text, color, font)
    return canvas


def draw_outlines(image: Any, outlines: Sequence[tuple[Point, ...]]) -> PillowImage:
    """The image with polygons, numbered in their order."""
    from PIL import ImageDraw

    canvas = _canvas(image)
    pen, width, font = ImageDraw.Draw(canvas), _stroke(canvas), _font(canvas)
    for number, corners in enumerate(outlines, 1):
        color = _COLORS[number % len(_COLORS)]
        pen.polygon(list(corners), outline=color, width=width)
        _tag(pen, corners[0], str(number), color, font)
    return canvas


def draw_mask(image: Any, alpha: NDArray[np.float32]) -> PillowImage:
    """The image with its foreground tinted."""
    from PIL import Image as Pillow

    pixels = _pixels(image, alpha).astype(np.float32)
    share = 0.5 * np.clip(alpha, 0, 1)[:, :, None]
    mixed = pixels * (1 - share) + np.asarray(_TINT, np.float32) * share
    return Pillow.fromarray(np.rint(mixed).astype(np.uint8))


def cut_out(image: Any, alpha: NDArray[np.float32]) -> PillowImage:
    """The image with `alpha` as its transparency."""
    from PIL import Image as Pillow

    levels = np.rint(255 * np.clip(alpha, 0, 1)).astype(np.uint8)
    return Pillow.fromarray(np.dstack((_pixels(image, alpha), levels)))


def _pixels(image: Any, alpha: NDArray[np.float32]) -> NDArray[np.uint8]:
    pixels = Image.open(image).pixels
    if pixels.shape[:2] != alpha.shape:
        raise InvalidRequest(
            f"the image has {pixels.shape[1]} × {pixels.shape[0]} pixels and the mask {alpha.shape[1]} × "
            f"{alpha.shape[0]}; give the image that was segmented",
            param="image",
        )
    return pixels


def _canvas(image: Any) -> PillowImage:
    from PIL import Image as Pillow

    return Pillow.fromarray(Image.open(image).pixels)


def _stroke(canvas: PillowImage) -> int:
    return max(2, round(max(canvas.size) / 300))


def _font(canvas: PillowImage) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(max(10, round(max(canvas.size) / 50)))


def _tag(pen: Any, corner: tuple[float, float], text: str, color: tuple[int, int, int], font: Any) -> None:
    """A label on a filled rectangle that ends at `corner`, or begins there at the image's upper edge."""
    x, y = corner
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    height = bottom - top + 4
    y = y - height if y >= height else y
    pen.rectangle((x, y, x + right - left + 4, y + height), fill=color)
    pen.text((x + 2 - left, y + 2 - top), text, fill=(255, 255, 255), font=font)


Floats = NDArray[Any]  # of 32 or 64 bits


@dataclass(frozen=True, kw_only=True)
class Result:
    """Base of all results: the model that made them, and its licence."""

    model: str = ""
    license: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and texts, as JSON has them."""
        made = _plain(self)
        assert isinstance(made, dict)
        return made

    def to_json(self, indent: int | None = None) -> str:
        """The result as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent)

    def draw(self, image: Any) -> PillowImage:
        """The image with the result drawn onto it; `image` is anything that `stretto.Image.open` takes."""
        raise Unsupported(f"{type(self).__name__} has nothing that could be drawn onto an image")


@dataclass(frozen=True)
class Label:
    """A class, and how sure the model is of it: from 0 to 1."""

    name: str
    score: float

    def __str__(self) -> str:
        return f"{self.name} {self.score:.2f}"


@dataclass(frozen=True)
class Classification(Result):
    """The best labels of a text, an image or a file, best first."""

    labels: tuple[Label, ...]

    @classmethod
    def of(cls, names: Sequence[str], scores: Floats, top: int, **about: str) -> Classification:
        """The labels of the `top` greatest scores; `about` are the model and its licence."""
        labels = tuple(Label(names[i], float(scores[i])) for i in greatest(scores, top))
        return cls(labels, **about)

    @property
    def best(self) -> Label:
        """The most probable label."""
        return self.labels[0]

    def __iter__(self) -> Iterator[Label]:
        return iter(self.labels)

    def __str__(self) -> str:
        return "\n".join(map(str, self.labels))


@dataclass(frozen=True)
class Ranked:
    """A document: its number in what was given, its score, and its text."""

    index: int
    score: float
    text: str


@dataclass(frozen=True)
class Ranking(Result):
    """Documents by how well they answer a query, best first; `n_tokens` were read, 0 if that is not known."""

    items: tuple[Ranked, ...]
    n_tokens: int = field(default=0, kw_only=True)

    @classmethod
    def of(
        cls, documents: Sequence[str], scores: Floats, top: int | None, n_tokens: int = 0, **about: str
    ) -> Ranking:
        """The documents by their scores, all or the `top` best; `about` are the model and its licence."""
        items = tuple(Ranked(i, float(scores[i]), documents[i]) for i in greatest(scores, top))
        return cls(items, n_tokens=n_tokens, **about)

    def __iter__(self) -> Iterator[Ranked]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Ranked:
        return self.items[number]

    def __str__(self) -> str:
        return "\n".join(f"{item.score:8.4f}  {item.text}" for item in self.items)


@dataclass(frozen=True)
class Box:
    """A rectangle, from (x0, y0) to (x1, y1)."""

    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """(x0, y0, x1, y1)."""
        return self.x0, self.y0, self.x1, self.y1

    @property
    def width(self) -> float:
        """From left to right."""
        return self.x1 - self.x0

    @property
    def height(self) -> float:
        """From top to bottom."""
        return self.y1 - self.y0

    @property
    def area(self) -> float:
        """Pixels inside."""
        return max(self.width, 0.0) * max(self.height, 0.0)

    def iou(self, other: Box) -> float:
        """The share of the common area in that of both together: 1 for equal boxes, 0 for disjoint ones."""
        width = min(self.x1, other.x1) - max(self.x0, other.x0)
        height = min(self.y1, other.y1) - max(self.y0, other.y0)
        common = max(width, 0.0) * max(height, 0.0)
        union = self.area + other.area - common
        return common / union if union > 0 else 0.0

    def __str__(self) -> str:
        return f"({self.x0:.0f}, {self.y0:.0f}, {self.x1:.0f}, {self.y1:.0f})"


@dataclass(frozen=True)
class Detection:
    """An object in an image; `points` are its landmarks, where the model has them (eyes, nose, mouth)."""

    label: str
    score: float
    box: Box
    points: tuple[tuple[float, float], ...] = ()

    def __str__(self) -> str:
        return f"{self.label} {self.score:.2f} at {self.box}"


@dataclass(frozen=True)
class Detections(Result):
    """The objects in an image of `width` × `height` pixels, most certain first."""

    items: tuple[Detection, ...]
    width: int
    height: int

    def __iter__(self) -> Iterator[Detection]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Detection:
        return self.items[number]

    def __str__(self) -> str:
        return "\n".join(map(str, self.items)) or "nothing"

    def draw(self, image: Any) -> PillowImage:
        """The image with its boxes, labels and landmarks."""
        return draw_boxes(
            image,
            [
                (item.label, f"{item.label} {item.score:.2f}", item.box.corners, item.points)
                for item in self.items
            ],
        )


@dataclass(frozen=True, eq=False)
class Segmentation(Result):
    """The foreground of an image: `alpha` is float32[height, width], from 0 to 1."""

    alpha: NDArray[np.float32]

    @property
    def width(self) -> int:
        """Pixels from left to right."""
        return int(self.alpha.shape[1])

    @property
    def height(self) -> int:
        """Pixels from top to bottom."""
        return int(self.alpha.shape[0])

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The pixels that are foreground for the greater part."""
        mask: NDArray[np.bool_] = self.alpha >= 0.5
        return mask

    def cut_out(self, image: Any) -> PillowImage:
        """The image with a transparent background (RGBA)."""
        return cut_out(image, self.alpha)

    def draw(self, image: Any) -> PillowImage:
        """The image with the mask laid over it."""
        return draw_mask(image, self.alpha)

    def to_dict(self) -> dict[str, Any]:
        """The alpha channel as a PNG in a `data:` URL."""
        head = {"model": self.model, "license": self.license, "width": self.width, "height": self.height}
        return {**head, "alpha": _png_url(self.alpha)}

    def __str__(self) -> str:
        return f"{100 * float(self.mask.mean()):.1f} % of {self.width} × {self.height} pixels"


@dataclass(frozen=True)
class Line:
    """A line of text in an image: its four corners, from the upper left one clockwise."""

    text: str
    score: float
    corners: tuple[tuple[float, float], ...]

    @property
    def box(self) -> Box:
        """The upright rectangle around it."""
        xs, ys = zip(*self.corners, strict=True)
        return Box(min(xs), min(ys), max(xs), max(ys))


@dataclass(frozen=True)
class Reading(Result):
    """The text in an image, line by line in reading order."""

    lines: tuple[Line, ...]
    width: int
    height: int

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(line.text for line in self.lines)

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def __str__(self) -> str:
        return self.text

    def draw(self, image: Any) -> PillowImage:
        """The image with the lines' outlines, numbered."""
        return draw_outlines(image, [line.corners for line in self.lines])


@dataclass(frozen=True)
class Segment:
    """A piece of speech, from `start` to `end` seconds."""

    start: float
    end: float
    text: str

    def __str__(self) -> str:
        return f"[{self.start:7.2f} – {self.end:7.2f}] {self.text}"


@dataclass(frozen=True)
class Transcript(Result):
    """Transcribed speech, in pieces with their times."""

    segments: tuple[Segment, ...]
    duration: float

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join(segment.text for segment in self.segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)

    def __str__(self) -> str:
        return "\n".join(map(str, self.segments))

    def to_dict(self) -> dict[str, Any]:
        """The segments, and the text of all of them."""
        return {"text": self.text, **super().to_dict()}


def greatest(scores: Floats, top: int | None) -> list[int]:
    """The numbers of the greatest scores, greatest first, equal ones in their order."""
    order: list[int] = np.argsort(-scores, kind="stable")[:top].tolist()
    return order


def _plain(value: Any) -> Any:
    """A value as JSON has it; numbers of NumPy become Python's."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _png_url(alpha: NDArray[np.float32]) -> str:
    from PIL import Image as Pillow

    levels = np.clip(np.rint(alpha * 255), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Pillow.fromarray(levels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


# Transcripts as subtitles, in SubRip's and WebVTT's formats.


def srt(transcript: Transcript) -> str:
    """SubRip: numbered blocks, a comma before the milliseconds."""
    blocks = [f"{number}\n{_block(one, ',')}" for number, one in enumerate(transcript.segments, 1)]
    return "\n".join(blocks)


def vtt(transcript: Transcript) -> str:
    """WebVTT: blocks below a heading, a point before the milliseconds."""
    return "\n".join(["WEBVTT\n", *(_block(one, ".") for one in transcript.segments)])


def _block(segment: Segment, point: str) -> str:
    text = " ".join(segment.text.split())  # an empty line would end the block
    return f"{_clock(segment.start, point)} --> {_clock(segment.end, point)}\n{text}\n"


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds.

    >>> _clock(3661.5, ",")
    '01:01:01,500'
    """
    whole = round(seconds * 1000)
    hours, minutes = divmod(whole // 60_000, 60)
    return f"{hours:02}:{minutes:02}:{whole // 1000 % 60:02}{point}{whole % 1000:03}"
