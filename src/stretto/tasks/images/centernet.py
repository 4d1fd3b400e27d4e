"""CenterNet on MobileNet v3: objects of the 80 classes of COCO, from a model of TensorFlow.js.

Of an image of 512 × 512 the graph makes two maps of 128 × 128: how probably the centre of an object of each
class is there, and how far its four edges are. A centre is a score that no neighbour exceeds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.tasks.images.base import Detector, Found
from stretto.tasks.images.graph import open_graph
from stretto.tasks.images.prepare import Preparation, prepare
from stretto.tasks.images.tfjs import convert
from stretto.tasks.model import Source, TaskModel
from stretto.vision.image import Image

COCO = tuple(Path(__file__).with_name("coco.txt").read_text().splitlines())  # in the order of its numbers
SCORES, EDGES = "tower_0/keypoints", "tower_0/wh"
STRIDE = 4  # pixels of the input for one cell of the maps
PREPARATION = Preparation(width=512, height=512, scale=1.0, channels_last=True)


def open_task(source: Source, device: str, threads: int | None) -> TaskModel:
    """The model, converted to ONNX in memory."""
    graph = convert(source.files["centernet.json"], source.files["centernet.bin"], [SCORES, EDGES])
    return CenterNet(source, open_graph(graph, device, threads))


class CenterNet(Detector):
    """Finds objects by their centres; boxes of different classes suppress each other, as in its pipeline."""

    threshold = 0.3
    overlap = 0.4
    by_class = False
    labels = COCO

    def find(self, image: Image, threshold: float) -> Found:
        """The centres of objects, with their edges."""
        tensor, placement = prepare(image.pixels, PREPARATION)
        maps = self.run(tensor[None])
        scores, edges = maps[SCORES][0], maps[EDGES][0]  # [128, 128, 80], [128, 128, 4]
        y, x, classes = np.nonzero((scores >= threshold) & is_peak(scores))
        left, top, right, bottom = edges[y, x].T
        x0, y0 = x * STRIDE - left, y * STRIDE - top
        x1, y1 = x * STRIDE + right, y * STRIDE + bottom
        boxes = placement.to_image(np.stack((x0, y0, x1, y1), axis=1))
        return Found(boxes, scores[y, x, classes], classes)


def is_peak(scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether none of the eight neighbours in a map of [height, width, classes] is larger."""
    height, width = scores.shape[:2]
    padded = np.pad(scores, ((1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    best = scores
    for y in range(3):
        for x in range(3):
            best = np.maximum(best, padded[y : y + height, x : x + width])
    return np.asarray(scores == best)
