"""Classes of texts by their words alone: tf-idf and a linear classifier, as scikit-learn exports them.

    stretto.load("hatesonar").classify("What bloody weather, damn it").best.name     # offensive_language

The graph is read, not run: ONNX Runtime's operator for lower case needs a locale (en_US) that many machines
lack, and what is left of the graph are a dictionary and a product.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.tasks.model import Source, TaskModel, each
from stretto.tasks.results import Classification
from stretto.weights.onnx import read_onnx

MODEL = "model.onnx"
LABELS = ("hate_speech", "offensive_language", "neither")
MAX_CHARACTERS = 1_000_000
_MAX_FILE_BYTES = 64 << 20
_WORD = "[a-zA-Z0-9_]+"

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class Linear:
    """The weights: for each word its column, its inverse document frequency, and a row for each class."""

    columns: Mapping[str, int]
    idf: Numbers  # float32[n_words]
    coefficients: Numbers  # float32[n_classes, n_words]
    intercepts: Numbers  # float32[n_classes]

    def chances(self, text: str) -> Numbers:
        """The probability of each class."""
        counts = Counter(word for word in re.findall(_WORD, text.lower()) if word in self.columns)
        places = np.asarray([self.columns[word] for word in counts], np.intp)
        weights = np.asarray(list(counts.values()), np.float32) * self.idf[places]
        weights /= np.linalg.norm(weights) or 1
        scores = self.coefficients[:, places] @ weights + self.intercepts
        powers = np.exp(scores - scores.max())
        made: Numbers = powers / powers.sum()
        return made


class Words(TaskModel):
    """Gives texts their classes; `classify` is its verb."""

    verbs = ("classify",)
    takes = "text"

    def __init__(self, source: Source, linear: Linear) -> None:
        super().__init__(source)
        self._linear = linear

    def classify(self, texts: Any, *, top: int = 5) -> Any:
        """The classes of a text, or of each of a list of them, most probable first."""
        if isinstance(top, bool) or not isinstance(top, int) or top < 1:
            raise InvalidRequest(f"top must be at least 1, not {top!r}", param="top", value=top)
        return each(texts, lambda text: self._classified(text, top))

    def _classified(self, text: Any, top: int) -> Classification:
        if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
            raise InvalidRequest(
                f"a text of at most {MAX_CHARACTERS:,} characters is expected", param="texts"
            )
        chances = self._linear.chances(text)
        return Classification.of(LABELS, chances, top, model=self.name, license=self.license)


def open_task(source: Source, device: str, threads: int | None) -> Words:
    """Open the model of the bundle `hatesonar`."""
    if device not in ("auto", "cpu"):
        raise InvalidRequest(
            f"{source.name} runs on the CPU, not on {device!r}", param="device", value=device
        )
    return Words(source, _read(source.files[MODEL], len(LABELS)))


def _read(path: Path, n_classes: int) -> Linear:
    """The weights in a graph of a tokenizer, a TfIdfVectorizer and a LinearClassifier."""
    file = read_onnx(path)  # bounds sizes and depths
    if path.stat().st_size > _MAX_FILE_BYTES or file.external:
        raise ModelError("too large for a model of words", path=path)
    try:
        import onnx
    except ImportError as error:
        raise Unsupported(
            f"this model needs the package onnx: pip install 'stretto[onnx]' ({error})"
        ) from None
    graph = onnx.load(str(path), load_external_data=False).graph
    nodes = {
        node.op_type: {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        for node in graph.node
    }
    try:
        words, linear = nodes["TfIdfVectorizer"], nodes["LinearClassifier"]
        idf = onnx.numpy_helper.to_array(next(one for one in graph.initializer if one.name == "idfcst"))
        settings = (nodes["Tokenizer"]["tokenexp"], words["mode"], words["max_gram_length"])
        places = np.asarray(words["ngram_indexes"], np.intp)
        coefficients = np.asarray(linear["coefficients"], np.float32).reshape(n_classes, -1)
        columns = {word.decode(): int(n) for word, n in zip(words["pool_strings"], places, strict=True)}
        intercepts = np.asarray(linear["intercepts"], np.float32)
    except (KeyError, StopIteration, ValueError) as error:
        raise ModelError(f"no tf-idf with a linear classifier: {error!r}", path=path) from None
    fits = coefficients.shape[1] == len(idf) and intercepts.shape == (n_classes,) and idf.ndim == 1
    if not fits or not len(places) or places.min() < 0 or places.max() >= len(idf):
        raise ModelError(f"{len(columns)} words for {coefficients.shape} coefficients", path=path)
    if settings != (_WORD.encode(), b"TF", 1) or linear["post_transform"] != b"SOFTMAX":
        raise ModelError(f"a model of words with {settings} is not supported", path=path)
    return Linear(columns, idf.astype(np.float32), coefficients, intercepts)
