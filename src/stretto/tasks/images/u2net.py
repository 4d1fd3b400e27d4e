"""U²-Net: the foreground of an image, as a mask of 320 × 320 that is resized to the image's size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import open_session
from stretto.tasks.images.base import Segmenter
from stretto.tasks.images.prepare import Preparation, prepare
from stretto.tasks.model import Source, TaskModel
from stretto.vision.image import Image

FIRST = "1959"  # the finest of seven masks
PREPARATION = Preparation(
    width=320,
    height=320,
    filter="lanczos",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)


def open_task(source: Source, device: str, threads: int | None) -> TaskModel:
    """The model."""
    return U2Net(source, open_session(source.files["u2net.onnx"], device, threads))


class U2Net(Segmenter):
    """Tells what an image shows from what is behind it."""

    def alpha(self, image: Image) -> NDArray[np.float32]:
        """The mask, stretched to the whole range from 0 to 1."""
        tensor, _ = prepare(image.pixels, PREPARATION)
        mask = self.run(tensor[None], [FIRST])[FIRST][0, 0]
        return resize_mask(stretch(mask), image.width, image.height)


def stretch(mask: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mask with 0 for its smallest number and 1 for its largest; all 0 if there is only one."""
    low, high = float(mask.min()), float(mask.max())
    if not high > low:
        return np.zeros_like(mask)
    return np.asarray((mask - low) / (high - low), np.float32)


def resize_mask(mask: NDArray[np.float32], width: int, height: int) -> NDArray[np.float32]:
    """The mask in another size, still from 0 to 1."""
    from PIL import Image as Pillow

    resized = Pillow.fromarray(mask).resize((width, height), Pillow.Resampling.LANCZOS)
    made = np.array(resized, np.float32)
    return np.clip(made, 0, 1, out=made)
