"""Reads lines of text that were cut out: batches of similar width, and CTC decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import OnnxSession
from stretto.errors import ModelError
from stretto.tasks.reading.crops import Pixels, resize

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
        lines = np.stack([normalised(crops[i], _LINE_HEIGHT, int(_LINE_HEIGHT * ratio)) for i in batch])
        scores = computed(session, lines)
        if scores.ndim != 3 or scores.shape[2] != len(characters):
            raise ModelError(f"{scores.shape} scores for {len(characters)} characters", field="character")
        for number, line in zip(batch, scores, strict=True):
            found[number] = decode(line, characters)
    return found


def batches(crops: Sequence[Pixels]) -> list[list[int]]:
    """Numbers of crops in batches, narrow ones first, so that little is padded."""
    order = sorted(range(len(crops)), key=lambda i: crops[i].shape[1] / crops[i].shape[0])
    return [order[i : i + BATCH_LINES] for i in range(0, len(order), BATCH_LINES)]


def normalised(crop: Pixels, height: int, width: int) -> NDArray[np.float32]:
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


def computed(session: OnnxSession, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The output of a model that has one input and one output."""
    (name, *others), (output, *_) = session.file.inputs, session.file.outputs
    if others:
        raise ModelError(f"one input is expected, and there are {len(others) + 1}", path=session.file.path)
    made: NDArray[np.float32] = session.run({name: values}, [output])[output]
    return made


def _ratio(crop: Pixels) -> float:
    return float(min(crop.shape[1] / crop.shape[0], _MAX_RATIO))
