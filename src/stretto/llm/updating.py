"""The part of `LLM` that replaces its weights while it is open, as reinforcement learning does."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from stretto.backends.base import Updates
from stretto.engine import Engine
from stretto.engine.renewal import replace_weights
from stretto.errors import InvalidRequest, Unsupported, wrong_value
from stretto.models import read_spec
from stretto.weights import hub
from stretto.weights.folder import Folder, open_weights
from stretto.weights.gguf import GGUF
from stretto.weights.given import find_given, put_in_tensors
from stretto.weights.tensor import Tensor

Running = Literal["finish", "stop"]
IsNew = Callable[[Tensor], bool]


class Updating:
    """What a model's weights are, and how they are replaced."""

    _engine: Engine
    _path: Path | None  # of the file or folder that it was loaded from
    weights_version: str = ""  # of `update_weights`; "" are those of the file
    _n_updates = 0

    def update_weights(
        self,
        weights: Mapping[str, Any] | str | os.PathLike[str],
        *,
        version: str | int | None = None,
        running: Running = "finish",
    ) -> None:
        """Replace weights in place: by some tensors, or by those of a folder or file of the same model.

        A mapping has arrays, or tensors of torch, by the names of the model's folder (`model.state_dict()`)
        or GGUF file; what it leaves out stays. All are rounded to the formats that the model has. Requests
        that run "finish" first, or "stop" as cancelled ones, and new ones wait. Nothing that the old weights
        made is used again: cached prefixes are freed, those on disk belong to the old version, and open
        sequences are computed again. `llm.weights_version` is then `version`, or the number of updates.

        >>> llm.update_weights(trained.state_dict(), version=step)
        """
        backend, engine = self._engine.backend, self._engine
        if not isinstance(backend, Updates):
            raise Unsupported(f"the {backend.name} backend cannot replace weights; backend='native' can")
        if running not in ("finish", "stop"):
            raise wrong_value("running", running, "'finish' or 'stop'")
        if version is not None and (not isinstance(version, (str, int)) or isinstance(version, bool)):
            raise wrong_value("version", version, "a text or a number")
        file, is_new = (
            self._open_given(weights) if isinstance(weights, Mapping) else self._open_other(weights)
        )

        def apply() -> str:
            before = engine.fingerprint() if engine.fingerprint is not None else ""
            return sha256(f"{before} {backend.update(file, is_new)}".encode()).hexdigest()

        with closing(file):
            replace_weights(engine, apply, stop=running == "stop")
        self._n_updates += 1
        self.weights_version = str(self._n_updates if version is None else version)

    def _open_given(self, weights: Mapping[str, Any]) -> tuple[GGUF, IsNew]:
        """The model's own file with some tensors in place of its own."""
        if not weights or not all(isinstance(name, str) for name in weights):
            raise InvalidRequest("weights must have at least one tensor, by its name", param="weights")
        if self._path is None:
            raise Unsupported("tensors are given by the names of a model's file; stretto.load knows it")
        if self._path.is_dir():
            folder = Folder(self._path, given=weights)
            return folder, find_given(folder.given)
        file = open_weights(self._path)
        return file, find_given(put_in_tensors(file.tensors, weights))

    def _open_other(self, weights: str | os.PathLike[str]) -> tuple[GGUF, IsNew]:
        """Another file of the same model."""
        file = open_weights(hub.resolve(weights))
        try:
            found, own = read_spec(file), self._engine.backend.spec
            if (found.tensors(), found.n_layer) != (own.tensors(), own.n_layer):
                raise InvalidRequest(
                    f"{file.path} is another model: its tensors have other names or shapes", param="weights"
                )
        except BaseException:
            file.close()
            raise
        return file, lambda tensor: True
