"""Models that classify, detect and segment images: what all of a kind have in common.

A model of its own sets what is special to it: labels, the preparation of its input, and how the arrays that
its graph makes become scores, boxes or a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import OnnxSession
from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.tasks.images.prepare import Preparation, prepare
from stretto.tasks.model import Source, TaskModel, each
from stretto.tasks.results import Box, Classification, Detection, Detections, Segmentation
from stretto.vision.image import Image

# Boxes of a detector: which of them are kept, and results made of those.
#
# kept = suppress(boxes, scores, classes, overlap=0.45) # indices, best first

MAX_CANDIDATES = 3000  # the best ones, which are compared with each other

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]


def suppress(boxes: Floats, scores: Floats, classes: Integers | None, overlap: float) -> NDArray[np.int64]:
    """Non-maximum suppression: the indices of the boxes that are kept, best first.

    A box goes if a better one that is kept overlaps it (intersection over union) by more than `overlap`.
    Boxes of different `classes` do not touch each other; without classes all do. Of equal scores the first
    is better. Boxes of float[n, 4] are x0, y0, x1, y1.
    """
    finite = np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    order = np.flatnonzero(finite)[np.argsort(-scores[finite], kind="stable")][:MAX_CANDIDATES]
    boxes = np.asarray(boxes, np.float64)[order]
    kinds = np.zeros(len(order), np.int64) if classes is None else classes[order]
    areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    alive = np.ones(len(order), bool)
    for best in range(len(order)):
        if not alive[best]:
            continue
        rest = slice(best + 1, None)
        low = np.maximum(boxes[best, :2], boxes[rest, :2])
        high = np.minimum(boxes[best, 2:], boxes[rest, 2:])
        common = np.prod(np.maximum(high - low, 0), axis=1)
        union = areas[best] + areas[rest] - common
        alive[rest] &= (common <= overlap * union) | (kinds[rest] != kinds[best]) | (union <= 0)
    return order[alive].astype(np.int64)


def to_corners(boxes: Floats) -> Floats:
    """x0, y0, x1, y1 of boxes given as centre and size."""
    half = boxes[..., 2:4] / 2
    return np.concatenate((boxes[..., :2] - half, boxes[..., :2] + half), axis=-1)


def detections(
    source: Source,
    size: tuple[int, int],
    labels: Sequence[str],
    boxes: Floats,
    scores: Floats,
    classes: Integers,
    points: Floats | None = None,
) -> Detections:
    """A result of boxes that are in pixels already; empty ones are left out. `points` are x, y, x, y, …"""
    items = []
    for number, (box, score, kind) in enumerate(
        zip(boxes.tolist(), scores.tolist(), classes.tolist(), strict=True)
    ):
        if box[2] <= box[0] or box[3] <= box[1]:
            continue
        marks = () if points is None else tuple(map(tuple, points[number].reshape(-1, 2).tolist()))
        items.append(Detection(labels[kind], score, Box(*box), marks))
    return Detections(tuple(items), *size, model=source.name, license=source.license)


def check_share(name: str, value: object) -> float:
    """A threshold from 0 to 1, or `InvalidRequest`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidRequest(f"{name} must be from 0 to 1, not {value!r}", param=name, value=value)
    return float(value)


def check_count(name: str, value: object) -> int:
    """A number of results, at least 1, or `InvalidRequest`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(f"{name} must be at least 1, not {value!r}", param=name, value=value)
    return value


BATCH = 8  # images that go through a graph together, if it takes several

R = TypeVar("R")
Array = NDArray[Any]


class ImageModel(TaskModel):
    """A model of one graph that takes one image, or several of one size."""

    def __init__(self, source: Source, session: OnnxSession) -> None:
        super().__init__(source)
        self.source = source
        self._session: OnnxSession | None = session
        self._input = next(iter(session.file.inputs.values()))

    @property
    def session(self) -> OnnxSession:
        """The graph in ONNX Runtime."""
        if self._session is None:
            raise Unsupported(f"{self.name} is closed; load it again")
        return self._session

    def run(self, tensor: Array, outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Compute outputs by name, as float32."""
        tensor = tensor if self._input.type == "float32" else tensor.astype(self._input.type)
        made: Mapping[str, Array] = self.session.run({self._input.name: tensor}, outputs)
        for name, array in made.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
                raise ModelError(f"the output {name!r:.100} holds no numbers")
        return {name: array.astype(np.float32, copy=False) for name, array in made.items()}

    @property
    def takes_several(self) -> bool:
        """Whether the graph takes any number of images at once."""
        shape = self._input.shape
        return shape is not None and len(shape) > 0 and not isinstance(shape[0], int)

    def close(self) -> None:
        """Free the session."""
        if self._session is not None:
            self._session.close()
        self._session = None


class Classifier(ImageModel):
    """A graph whose output has a score for each label."""

    verbs = ("classify",)

    def __init__(
        self,
        source: Source,
        session: OnnxSession,
        preparation: Preparation,
        labels: Sequence[str],
        *,
        output: str | None = None,
        activation: str = "none",
    ) -> None:
        super().__init__(source, session)
        self.preparation = preparation
        self.labels = tuple(labels)
        self._output = output or next(iter(session.file.outputs))
        self._activation = ACTIVATIONS[activation]

    def classify(self, images: Any, *, top: int = 5) -> Classification | list[Classification]:
        """The best `top` labels of an image, or of each image of a list.

        >>> stretto.load("efficientnet-lite0").classify("coffee.jpg").best
        Label(name='espresso', score=0.94)
        """
        top = check_count("top", top)
        if not isinstance(images, (list, tuple)):
            return self._classify([images], top)[0]
        size = BATCH if self.takes_several else 1
        return [made for batch in _chunks(images, size) for made in self._classify(batch, top)]

    def _classify(self, images: Sequence[Any], top: int) -> list[Classification]:
        tensors = [prepare(Image.open(image).pixels, self.preparation)[0] for image in images]
        scores = self.run(np.stack(tensors), [self._output])[self._output]
        if scores.size != len(images) * len(self.labels):
            raise ModelError(
                f"the output {self._output!r} is {list(scores.shape)}, but there are {len(self.labels)} "
                f"labels for each of {len(images)} images"
            )
        rows = self._activation(scores.reshape(len(images), -1).astype(np.float64))
        return [self._result(np.nan_to_num(row), top) for row in rows]

    def _result(self, scores: Floats, top: int) -> Classification:
        return Classification.of(self.labels, scores, top, model=self.name, license=self.license)


@dataclass(frozen=True)
class Found:
    """Boxes in pixels of the image, before the best are chosen; `points` are x, y, x, y, … of landmarks."""

    boxes: Floats  # [n, 4]: x0, y0, x1, y1
    scores: Floats  # [n]
    classes: Integers  # [n]
    points: Floats | None = None  # [n, 2 × k]


class Detector(ImageModel):
    """A graph that finds objects. A subclass implements `find`.

    `threshold` and `overlap` are the defaults of `detect`; `by_class` says whether boxes of different classes
    may lie on each other, and `suppresses` whether the graph has chosen the best boxes itself.
    """

    verbs = ("detect",)
    threshold = 0.25
    overlap = 0.45
    by_class = True
    suppresses = False
    labels: Sequence[str] = ()

    def find(self, image: Image, threshold: float) -> Found:
        """All boxes with at least that score."""
        raise NotImplementedError  # each model finds its boxes in another way

    def find_all(self, images: Iterable[Image], threshold: float) -> list[Found]:
        """The boxes of up to `BATCH` images; a subclass whose graph takes several may be faster here."""
        return [self.find(image, threshold) for image in images]

    def detect(
        self,
        images: Any,
        *,
        threshold: float | None = None,
        overlap: float | None = None,
        limit: int = 100,
    ) -> Detections | list[Detections]:
        """The objects in an image, or in each image of a list, with a score of at least `threshold`.

        Of boxes that share more than `overlap` of their area the best is kept (non-maximum suppression), and
        at most `limit` of an image.

        >>> stretto.load("centernet").detect("street.jpg", threshold=0.4)[0].label
        'person'
        """
        least = self.threshold if threshold is None else check_share("threshold", threshold)
        most = self.overlap if overlap is None else check_share("overlap", overlap)
        limit = check_count("limit", limit)
        if not isinstance(images, (list, tuple)):
            return self._detect([images], least, most, limit)[0]
        size = BATCH if self.takes_several else 1
        return [made for batch in _chunks(images, size) for made in self._detect(batch, least, most, limit)]

    def _detect(
        self, sources: Sequence[Any], threshold: float, overlap: float, limit: int
    ) -> list[Detections]:
        sizes: list[tuple[int, int]] = []

        def opened() -> Iterator[Image]:  # one after the other, so that only one is in memory
            for source in sources:
                image = Image.open(source)
                sizes.append(image.size)
                yield image

        with np.errstate(all="ignore"):  # a graph may make anything; what is no number is left out
            found = self.find_all(opened(), threshold)
        return [self._chosen(*pair, overlap, limit) for pair in zip(sizes, found, strict=True)]

    def _chosen(self, size: tuple[int, int], found: Found, overlap: float, limit: int) -> Detections:
        share = 1.0 if self.suppresses else overlap
        classes = found.classes if self.by_class else None
        kept = suppress(found.boxes, found.scores, classes, share)[:limit]
        points = None if found.points is None else found.points[kept]
        return detections(
            self.source,
            size,
            self.labels,
            found.boxes[kept],
            found.scores[kept],
            found.classes[kept],
            points,
        )


class Segmenter(ImageModel):
    """A graph that makes a mask. A subclass implements `alpha`."""

    verbs = ("segment",)

    def alpha(self, image: Image) -> NDArray[np.float32]:
        """float32[height, width], from 0 to 1."""
        raise NotImplementedError  # each model makes its mask in another way

    def segment(self, images: Any) -> Segmentation | list[Segmentation]:
        """The foreground of an image, or of each image of a list.

        >>> stretto.load("u2net").segment("cat.jpg").cut_out("cat.jpg").save("cat.png")
        """
        return each(images, self._segment)

    def _segment(self, image: Any) -> Segmentation:
        return Segmentation(self.alpha(Image.open(image)), model=self.name, license=self.license)


def softmax(scores: Floats) -> Floats:
    """Probabilities of logits, along the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(scores: Floats) -> Floats:
    """1 ÷ (1 + e⁻ˣ), also for large numbers."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * scores)))


def _same(scores: Floats) -> Floats:
    return scores


ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "none": _same,
    "softmax": softmax,
    "sigmoid": sigmoid,
}


def _chunks(values: Sequence[R], size: int) -> Iterator[Sequence[R]]:
    return (values[start : start + size] for start in range(0, len(values), size))
