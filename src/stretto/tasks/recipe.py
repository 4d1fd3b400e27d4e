"""A recipe: what a model nobody has written code for needs, in a small TOML file beside it.

    recipe = read_recipe(Path("model.toml"))

`model.toml` stands beside `model.onnx`:

    task = "classify"                    # or detect, segment
    license = "MIT"
    labels = ["cat", "dog"]              # or a text file beside it, one label a line: "labels.txt"

    [input]
    width = 224
    height = 224
    fit = "crop"                         # stretch, crop, letterbox
    edge = 256                           # of the shorter edge, before the crop
    mean = [0.485, 0.456, 0.406]
    std = [0.229, 0.224, 0.225]

    [output]
    scores = "logits"
    activation = "softmax"               # none, softmax, sigmoid

stretto docs reference/recipes lists all fields. A recipe is as little trusted as a model: it has a limited
size, every field is checked, unknown ones are refused, and paths in it may not leave its folder.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import ModelError
from stretto.tasks.images.prepare import FILTERS, FITS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 1 << 20  # of a recipe, and of a file of labels
MAX_LABELS = 100_000
MAX_CHARACTERS = 200  # of a name or a label
MAX_EDGE = 4096

TASKS = ("classify", "detect", "segment")
HEADS = ("yolov5", "yolov8", "yolox", "kept", "kept7", "kept4")
ACTIVATIONS = ("none", "softmax", "sigmoid")
FORMATS = ("corners", "centre", "corner")  # x0 y0 x1 y1; centre and size; upper left corner and size
UNITS = ("pixels", "shares")  # of the input


@dataclass(frozen=True)
class InputRecipe:
    """How an image becomes the input; fields are those of `Preparation`."""

    width: int
    height: int
    name: str | None = None
    fit: str = "stretch"
    edge: int | None = None
    filter: str = "linear"
    centered: bool = True
    fill: int = 114
    scale: float | None = None  # 1/255, and 1 for an input of uint8
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    order: str = "rgb"
    layout: str = "nchw"


@dataclass(frozen=True)
class OutputRecipe:
    """Which outputs there are, and what they hold."""

    scores: str | None = None
    activation: str = "none"
    head: str | None = None
    boxes: str | None = None
    classes: str | None = None
    format: str = "corners"
    units: str = "pixels"
    threshold: float = 0.25
    overlap: float = 0.45
    mask: str | None = None
    channel: int = 0
    stretch: bool = False


@dataclass(frozen=True)
class Recipe:
    """A recipe whose fields have been checked."""

    path: Path
    task: str
    input: InputRecipe
    output: OutputRecipe = field(default_factory=OutputRecipe)
    license: str = "unknown"
    labels: tuple[str, ...] | None = None


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe; `ModelError` names the field that is wrong."""
    try:
        table = tomllib.loads(_read_text(path, path.parent))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ModelError(f"is no TOML: {error}", path=path) from None
    return _Reader(path).recipe(table)


def _read_text(path: Path, folder: Path) -> str:
    """A small text file that is in the folder, also if it is a link."""
    try:
        if not path.resolve(strict=True).is_relative_to(folder.resolve(strict=True)) or not path.is_file():
            raise ModelError("is no file of its folder; a recipe's files stand beside it", path=path)
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ModelError(f"has more than {MAX_BYTES:,} bytes", path=path)
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"is no UTF-8: {error}", path=path) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot be read: {error}", path=path) from None


Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_CHARACTERS and value.isprintable()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_between(low: float, high: float) -> Check:
    return lambda value: _is_number(value) and low <= value <= high


def _is_integer(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _is_one_of(*values: str) -> Check:
    return lambda value: isinstance(value, str) and value in values


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _are_channels(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_between(-1e6, 1e6), value))


def _are_positive(value: Any) -> bool:
    return _are_channels(value) and all(number > 1e-9 for number in value)


# The fields with what they take, in words and as a check.
_EDGE = (f"a whole number from 1 to {MAX_EDGE}", _is_integer(1, MAX_EDGE))
_NAME = ("the name of one of the graph's", _is_text)
_SHARE = ("a number from 0 to 1", _is_between(0, 1))
_FLAG = ("true or false", _is_flag)


def _choice(*values: str) -> tuple[str, Check]:
    return f"one of {', '.join(values)}", _is_one_of(*values)


INPUT: Mapping[str, tuple[str, Check]] = {
    "name": _NAME,
    "width": _EDGE,
    "height": _EDGE,
    "fit": _choice(*FITS),
    "edge": _EDGE,
    "filter": _choice(*FILTERS),
    "centered": _FLAG,
    "fill": ("a whole number from 0 to 255", _is_integer(0, 255)),
    "scale": ("a number from 0 to 255", _is_between(0, 255)),
    "mean": ("three numbers", _are_channels),
    "std": ("three numbers above 0", _are_positive),
    "order": _choice("rgb", "bgr"),
    "layout": _choice("nchw", "nhwc"),
}
_ACTIVATION = {"activation": _choice(*ACTIVATIONS)}
OUTPUTS: Mapping[str, Mapping[str, tuple[str, Check]]] = {
    "classify": {"scores": _NAME, **_ACTIVATION},
    "detect": {
        "head": _choice(*HEADS),
        "boxes": _NAME,
        "scores": _NAME,
        "classes": _NAME,
        "format": _choice(*FORMATS),
        "units": _choice(*UNITS),
        "threshold": _SHARE,
        "overlap": _SHARE,
        **_ACTIVATION,
    },
    "segment": {
        "mask": _NAME,
        "channel": ("a whole number from 0 to 4095", _is_integer(0, 4095)),
        "stretch": _FLAG,
        **_ACTIVATION,
    },
}
TOP: Mapping[str, tuple[str, Check]] = {
    "task": _choice(*TASKS),
    "license": (f"a text of at most {MAX_CHARACTERS} characters", _is_text),
    "labels": ("a list of texts, or the name of a file", lambda value: isinstance(value, (str, list))),
    "input": ("a table", lambda value: isinstance(value, dict)),
    "output": ("a table", lambda value: isinstance(value, dict)),
}


class _Reader:
    """Checks the tables of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def recipe(self, table: Mapping[str, Any]) -> Recipe:
        self._check(table, TOP, "", ("task", "input"))
        given, wanted = table["input"], table.get("output", {})
        self._check(given, INPUT, "input.", ("width", "height"))
        self._check(wanted, OUTPUTS[table["task"]], "output.", ())
        self._check_input(given)
        tuples: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
        }
        recipe = Recipe(
            self._path,
            table["task"],
            InputRecipe(**tuples),
            OutputRecipe(**wanted),
            table.get("license", "unknown"),
            self._labels(table.get("labels")),
        )
        self._check_whole(recipe)
        return recipe

    def _check(
        self,
        table: Mapping[str, Any],
        known: Mapping[str, tuple[str, Check]],
        prefix: str,
        needed: tuple[str, ...],
    ) -> None:
        for name, value in table.items():
            if name not in known:
                raise self._error(prefix + name, f"is not known; there are {', '.join(known)}")
            takes, check = known[name]
            if not check(value):
                raise self._error(prefix + name, f"must be {takes}, not {value!r:.100}")
        for name in needed:
            if name not in table:
                raise self._error(prefix + name, f"is missing; it is {known[name][0]}")

    def _check_input(self, given: Mapping[str, Any]) -> None:
        if "edge" in given and given.get("fit") != "crop":
            raise self._error("input.edge", 'is for fit = "crop" only')

    def _check_whole(self, recipe: Recipe) -> None:
        output = recipe.output
        if recipe.task == "classify" and recipe.labels is None:
            raise self._error("labels", "is missing; a classifier has a label for each score")
        if recipe.task != "detect":
            return
        if output.head and (output.boxes or output.classes or output.scores):
            raise self._error("output.head", "a known head needs no names of outputs; leave one of them out")
        if not output.head and not (output.boxes and output.scores):
            raise self._error("output", f"needs head (one of {', '.join(HEADS)}), or both boxes and scores")
        if recipe.labels is None:
            raise self._error("labels", "is missing; a detector has a label for each class")

    def _labels(self, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        if isinstance(value, str):
            value = self._lines(value)
        if not 0 < len(value) <= MAX_LABELS:
            raise self._error("labels", f"must be from 1 to {MAX_LABELS:,} labels, not {len(value)}")
        for label in value:
            if not _is_text(label):
                raise self._error("labels", f"{label!r:.100} is no text of 1 to {MAX_CHARACTERS} characters")
        return tuple(value)

    def _lines(self, name: str) -> list[str]:
        if not _is_text(name) or Path(name).name != name or name in (".", ".."):
            raise self._error("labels", f"{name!r:.100} is no name of a file in the recipe's folder")
        return _read_text(self._path.parent / name, self._path.parent).splitlines()

    def _error(self, name: str, message: str) -> ModelError:
        return ModelError(message, path=self._path, field=name)
