"""ONNX files by path: with a recipe beside them, or without one if they follow a known convention.

stretto.load("model.onnx")        # model.toml beside it says what it is (recipe.py)
stretto.load("yolo11n.onnx")      # by convention (yolo.py)
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import OnnxSession, open_session
from stretto.errors import ModelError
from stretto.tasks.images import base
from stretto.tasks.images.prepare import Preparation, prepare
from stretto.tasks.images.u2net import resize_mask, stretch
from stretto.tasks.model import Source, TaskModel
from stretto.tasks.recipe import Recipe, read_recipe
from stretto.tasks.yolo import Convention, Yolo, find_convention
from stretto.vision.image import Image

MIN_TENSOR_BYTES = 1 << 30
TYPES = ("float32", "float16", "uint8")  # of an input

EXAMPLE = """\
task = "classify"                  # or detect, segment
license = "…"
labels = "labels.txt"              # one a line, beside the model
[input]
width = 224
height = 224
fit = "crop"                       # stretch, crop, letterbox
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
[output]
activation = "softmax"             # none, softmax, sigmoid"""


def open_task(source: Source, device: str, threads: int | None) -> TaskModel:
    """A model by its recipe, or by convention; `ModelError` says what a recipe needs if there is neither."""
    (path,) = source.files.values()
    beside = path.with_suffix(".toml")
    recipe = read_recipe(beside) if beside.exists() or beside.is_symlink() else None
    session = open_session(path, device, threads, memory=_tensor_bytes())
    try:
        if recipe is not None:
            return _by_recipe(replace(source, license=recipe.license), session, recipe)
        convention = find_convention(session)
        if convention is None:
            raise ModelError(_needed(path, session), path=path)
        said = session.file.metadata.get("license", "")
        known = replace(source, license=said[:200]) if said.isprintable() and said else source
        return Yolo(known, session, convention)
    except BaseException:
        session.close()
        raise


def _tensor_bytes() -> int:
    """Memory for the tensors of a model that nobody vouches for: half of the machine's."""
    return max(MIN_TENSOR_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


def _needed(path: Path, session: OnnxSession) -> str:
    ends = [
        ", ".join(f"{value.name} {list(value.shape or ())}" for value in values.values())
        for values in (session.file.inputs, session.file.outputs)
    ]
    return (
        f"follows no convention that is known (inputs: {ends[0]:.300}; outputs: {ends[1]:.300}); write a "
        f"recipe {path.with_suffix('.toml').name} beside it (stretto docs how-to/tasks/recipes), for example:"
        f"\n{EXAMPLE}"
    )


def _by_recipe(source: Source, session: OnnxSession, recipe: Recipe) -> TaskModel:
    preparation = _preparation(session, recipe)
    output = recipe.output
    for name in (output.scores, output.boxes, output.classes, output.mask):
        if name is not None and name not in session.file.outputs:
            known = ", ".join(session.file.outputs)
            raise ModelError(
                f"there is no output {name!r}, but {known:.300}", path=recipe.path, field="output"
            )
    if recipe.task == "classify":
        labels = recipe.labels or ()
        return base.Classifier(
            source, session, preparation, labels, output=output.scores, activation=output.activation
        )
    if recipe.task == "segment":
        return RecipeSegmenter(source, session, preparation, recipe)
    if output.head is None:
        return RecipeDetector(source, session, preparation, recipe)
    made = Yolo(
        source,
        session,
        Convention(output.head, preparation.width, preparation.height, recipe.labels or ()),
        preparation,
    )
    made.threshold, made.overlap = output.threshold, output.overlap
    return made


def _preparation(session: OnnxSession, recipe: Recipe) -> Preparation:
    """The input that the recipe describes, which must be the graph's."""
    given, inputs = recipe.input, session.file.inputs
    name = given.name or next(iter(inputs))
    if len(inputs) != 1 or name not in inputs:
        raise ModelError(
            f"the graph has the inputs {', '.join(inputs):.300}; a recipe is for models with one, an image",
            path=recipe.path,
            field="input.name",
        )
    value = inputs[name]
    size = (3, given.height, given.width) if given.layout == "nchw" else (given.height, given.width, 3)
    shape = value.shape if value.shape is not None else (None,) * 4
    fits = len(shape) == 4 and all(
        not isinstance(there, int) or there == here for there, here in zip(shape[1:], size, strict=True)
    )
    if not fits or value.type not in TYPES or (isinstance(shape[0], int) and shape[0] != 1):
        raise ModelError(
            f"the graph's input {name!r} is {value.type} {list(shape)}, and the recipe's [1, "
            f"{', '.join(map(str, size))}]; types are {', '.join(TYPES)}",
            path=recipe.path,
            field="input",
        )
    usual = 1.0 if value.type == "uint8" else 1 / 255
    return Preparation(
        width=given.width,
        height=given.height,
        fit=given.fit,
        edge=given.edge,
        filter=given.filter,
        centered=given.centered,
        fill=given.fill,
        scale=usual if given.scale is None else given.scale,
        mean=given.mean,
        std=given.std,
        bgr=given.order == "bgr",
        channels_last=given.layout == "nhwc",
    )


class RecipeSegmenter(base.Segmenter):
    """A graph whose output is a mask: [1, channels, height, width], [1, height, width] or [height, width]."""

    def __init__(
        self, source: Source, session: OnnxSession, preparation: Preparation, recipe: Recipe
    ) -> None:
        super().__init__(source, session)
        if preparation.fit != "stretch":
            raise ModelError('must be "stretch" for a mask', path=recipe.path, field="input.fit")
        self.preparation = preparation
        self._recipe = recipe
        self._output = recipe.output.mask or next(iter(session.file.outputs))

    def alpha(self, image: Image) -> NDArray[np.float32]:
        """The mask in the image's size."""
        how = self._recipe.output
        tensor, _ = prepare(image.pixels, self.preparation)
        mask = self.run(tensor[None], [self._output])[self._output]
        if mask.ndim == 4 and how.channel < mask.shape[1] and how.activation == "softmax":
            mask = np.moveaxis(base.ACTIVATIONS["softmax"](np.moveaxis(mask, 1, -1)), -1, 1)
        mask = mask[0, how.channel] if mask.ndim == 4 and how.channel < mask.shape[1] else mask
        mask = mask[0] if mask.ndim == 3 and len(mask) == 1 else mask
        if mask.ndim != 2 or not mask.size:
            raise ModelError(f"the output {self._output!r} is {list(mask.shape)}, which is no mask")
        made = np.nan_to_num(mask.astype(np.float32), posinf=1, neginf=0)
        if how.activation == "sigmoid":
            made = np.asarray(base.ACTIVATIONS["sigmoid"](made), np.float32)
        return resize_mask(stretch(made) if how.stretch else np.clip(made, 0, 1), image.width, image.height)


class RecipeDetector(base.Detector):
    """A graph with outputs for boxes [n, 4], scores [n] or [n, classes], and maybe classes [n]."""

    def __init__(
        self, source: Source, session: OnnxSession, preparation: Preparation, recipe: Recipe
    ) -> None:
        super().__init__(source, session)
        self.preparation = preparation
        self.labels = recipe.labels or ()
        self.threshold, self.overlap = recipe.output.threshold, recipe.output.overlap
        self._recipe = recipe

    def find(self, image: Image, threshold: float) -> base.Found:
        """Boxes with a class that has a label."""
        how = self._recipe.output
        tensor, placement = prepare(image.pixels, self.preparation)
        names = [name for name in (how.boxes, how.scores, how.classes) if name is not None]
        arrays = self.run(tensor[None], names)
        try:
            boxes, scores, classes = self._decode(*(arrays[name] for name in names))
        except (IndexError, TypeError, ValueError) as error:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            raise ModelError(f"its outputs ({shapes:.300}) are no boxes and scores: {error}") from error
        fine = (scores >= threshold) & (classes >= 0) & (classes < len(self.labels))
        return base.Found(placement.to_image(self._corners(boxes[fine])), scores[fine], classes[fine])

    def _decode(
        self, boxes: base.Floats, scores: base.Floats, numbers: NDArray[Any] | None = None
    ) -> tuple[base.Floats, base.Floats, base.Integers]:
        """Boxes as they are, one score for each, and its class; −1 for what is no number of one."""
        boxes = boxes.reshape(-1, 4)
        scores = base.ACTIVATIONS[self._recipe.output.activation](scores.reshape(len(boxes), -1))
        if numbers is None:
            classes = scores.argmax(axis=1)
        else:
            whole = np.nan_to_num(numbers.reshape(len(boxes)).astype(np.float64), nan=-1)
            classes = np.clip(whole, -1, len(self.labels)).astype(np.int64)
        if scores.shape[1] > 1:
            scores = scores[np.arange(len(scores)), np.clip(classes, 0, scores.shape[1] - 1)]
        return boxes, scores.reshape(-1), classes

    def _corners(self, boxes: base.Floats) -> base.Floats:
        """Corners in pixels of the input."""
        how, size = self._recipe.output, (self.preparation.width, self.preparation.height) * 2
        made = boxes * np.array(size if how.units == "shares" else (1, 1, 1, 1), np.float32)
        if how.format == "centre":
            return base.to_corners(made)
        if how.format == "corner":
            return np.concatenate((made[:, :2], made[:, :2] + made[:, 2:]), axis=1)
        return made
