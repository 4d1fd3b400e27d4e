"""Magika: the types of files, by the bytes at their beginnings and ends.

stretto.load("magika").classify("setup.py").best          # python 1.00
stretto.load("magika").classify(b"\\x89PNG\\r\\n…")
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx_session import OnnxSession, open_session
from stretto.errors import InvalidRequest, ModelError
from stretto.tasks.model import Source, TaskModel
from stretto.tasks.results import Classification, Label

MODEL, CONFIG, CONTENT_TYPES = "model.onnx", "config.min.json", "content_types_kb.min.json"
SOURCES = "a path, or the bytes of a file"
_BATCH_FILES = 64
_EMPTY, _TEXT, _UNKNOWN = "empty", "txt", "unknown"


@dataclass(frozen=True)
class Config:
    """What the model sees of a file, and when its answers are believed."""

    begin: int  # bytes at the beginning
    end: int  # bytes at the end
    block: int  # bytes that are read of each, before white space is removed
    least: int  # files with fewer bytes are told apart by whether they are text
    padding: int
    labels: tuple[str, ...]
    threshold: float
    thresholds: Mapping[str, float]
    replaced: Mapping[str, str]  # classes that have another name outside
    texts: frozenset[str]  # classes that are text


class FileTypes(TaskModel):
    """Tells the types of files; `classify` is its verb."""

    verbs = ("classify",)
    takes = "bytes"

    def __init__(self, source: Source, session: OnnxSession, config: Config) -> None:
        super().__init__(source)
        self._session = session
        self._config = config

    def classify(self, files: Any, *, top: int = 5) -> Any:
        """The type of a file, or of each of a list of them, by path or bytes; at most `top` labels.

        The first label is the answer. It is `txt` or `unknown` where the model is not sure enough of its best
        class, which follows.
        """
        if isinstance(top, bool) or not isinstance(top, int) or top < 1:
            raise InvalidRequest(f"top must be at least 1, not {top!r}", param="top", value=top)
        if not isinstance(files, (list, tuple)):
            return self._classified([files], top)[0]
        batches = (files[i : i + _BATCH_FILES] for i in range(0, len(files), _BATCH_FILES))
        return [result for batch in batches for result in self._classified(batch, top)]

    def close(self) -> None:
        """Release the model."""
        self._session.close()

    def _classified(self, files: Sequence[Any], top: int) -> list[Classification]:
        seen = [_features(file, self._config) for file in files]
        rows = [features for features in seen if not isinstance(features, str)]
        scores = iter(self._scores(np.stack(rows)) if rows else ())
        return [
            Classification(
                (Label(features, 1.0),) if isinstance(features, str) else self._labels(next(scores), top),
                model=self.name,
                license=self.license,
            )
            for features in seen
        ]

    def _scores(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        scores = self._session.run({"bytes": rows}, ["target_label"])["target_label"]
        if scores.shape != (len(rows), len(self._config.labels)):
            raise ModelError(
                f"{scores.shape} scores for {len(self._config.labels)} labels", field="target_label"
            )
        return scores

    def _labels(self, scores: NDArray[np.float32], top: int) -> tuple[Label, ...]:
        """The answer, then the classes by their scores."""
        config = self._config
        found = {config.labels[i]: float(scores[i]) for i in np.argsort(-scores, kind="stable")[: top + 1]}
        best, score = next(iter(found.items()))
        answer = config.replaced.get(best, best)
        if score < config.thresholds.get(best, config.threshold):
            answer = _TEXT if answer in config.texts else _UNKNOWN
        labels = [Label(answer, score), *(Label(*one) for one in found.items() if one[0] != answer)]
        return tuple(labels[:top])


def open_task(source: Source, device: str, threads: int | None) -> FileTypes:
    """Open the model of the bundle `magika`."""
    session = open_session(source.files[MODEL], device, threads)
    return FileTypes(source, session, _read_config(source.files[CONFIG], source.files[CONTENT_TYPES]))


def _read_config(path: Path, types: Path) -> Config:
    try:
        values, known = json.loads(path.read_bytes()), json.loads(types.read_bytes())
        if values["mid_size"] or values["use_inputs_at_offsets"]:
            raise ModelError("bytes of the middle are not supported", path=path, field="mid_size")
        return Config(
            begin=values["beg_size"],
            end=values["end_size"],
            block=values["block_size"],
            least=values["min_file_size_for_dl"],
            padding=values["padding_token"],
            labels=tuple(values["target_labels_space"]),
            threshold=values["medium_confidence_threshold"],
            thresholds=values["thresholds"],
            replaced=values["overwrite_map"],
            texts=frozenset(name for name, kind in known.items() if kind["is_text"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"this is no configuration of Magika: {error!r}", path=path) from None


def _features(source: Any, config: Config) -> NDArray[np.int32] | str:
    """What the model sees of a file, int32[begin + end], or the label of one that is too short for it."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _seen(io.BytesIO(source), len(memoryview(source).cast("B")), config)
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidRequest(f"a file is {SOURCES}, not {type(source).__name__}", param="files")
    name = os.fspath(source)
    try:
        status = Path(name).stat()
        if not S_ISREG(status.st_mode):
            raise InvalidRequest(f"{name!r} is no file; give {SOURCES}", param="files", value=name)
        with Path(name).open("rb") as file:
            return _seen(file, status.st_size, config)
    except FileNotFoundError:
        raise InvalidRequest(f"{name!r}: no such file", param="files", value=name) from None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{name!r} cannot be read: {error}", param="files", value=name) from None


def _seen(file: BinaryIO, size: int, config: Config) -> NDArray[np.int32] | str:
    if size == 0:
        return _EMPTY
    head = file.read(min(size, config.block))
    file.seek(max(size - config.block, 0))
    begin = head.lstrip()[: config.begin]
    end = file.read(config.block).rstrip()[-config.end :]
    if size < config.least or len(begin) < config.least:
        return _text_or_not(head)
    row = np.full(config.begin + config.end, config.padding, np.int32)
    row[: len(begin)] = np.frombuffer(begin, np.uint8)
    if end:
        row[-len(end) :] = np.frombuffer(end, np.uint8)
    return row


def _text_or_not(data: bytes) -> str:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return _UNKNOWN
    return _TEXT
