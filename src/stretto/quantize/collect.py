"""Measures importance matrices: runs a model over a text, and sums the squares of its matrices' inputs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from stretto.backends.matrices import Matrices
from stretto.backends.native import Collected, NativeBackend
from stretto.errors import InvalidRequest
from stretto.models import ModelSpec
from stretto.quantize.imatrix import ImportanceMatrix, Inputs
from stretto.text.tokenizer import Tokenizer
from stretto.weights.folder import open_weights
from stretto.weights.gguf import GGUF

CHUNK_TOKENS = 512
# Of these all rows are read by tokens, or the input is what the last norm leaves: llama.cpp keeps them too.
SKIPPED = ("token_embd.weight", "output.weight")
Progress = Callable[[int, int], None]  # chunks that are done, and all of them


class Reader(Protocol):
    """A loaded model: `stretto.load(…, backend="native", prefix_cache=False)`."""

    @property
    def verbs(self) -> tuple[str, ...]:
        """What it can do."""
        ...

    @property
    def backend(self) -> object:
        """What runs it."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of a text."""
        ...

    def score(self, ids: Any) -> Any:
        """Read a text."""
        ...

    def embed(self, texts: Any) -> Any:
        """Read texts, of an encoder."""
        ...


def collect_importance(
    model: Reader,
    path: str | os.PathLike[str],
    text: str,
    *,
    dataset: str = "",
    chunk_tokens: int = CHUNK_TOKENS,
    chunks: int | None = None,
    progress: Progress | None = None,
) -> ImportanceMatrix:
    """The importance matrix of a loaded model, whose file is `path`, on a text.

    The text is cut into chunks, each read by itself.

    >>> with stretto.load("model-f16.gguf", backend="native", prefix_cache=False) as llm:
    ...     collect_importance(llm, "model-f16.gguf", text).write("imatrix.gguf")
    """
    backend = model.backend
    if not isinstance(backend, NativeBackend):
        raise InvalidRequest(
            "importance is measured by the native backend; load the model with backend='native'"
        )
    bos = model.tokenizer.bos_id if model.tokenizer.add_bos else None
    pieces = _cut(model.tokenizer.encode(text), chunk_tokens, chunks, bos)
    backend.collect(True)
    try:
        for done, piece in enumerate(pieces):
            if "score" in model.verbs:
                model.score(piece)
            else:
                model.embed([piece])
            if progress is not None:
                progress(done + 1, len(pieces))
        collected = backend.collected()
    finally:
        backend.collect(False)
    with open_weights(path) as file:
        inputs = _by_tensor(file, backend.spec, collected)
    return ImportanceMatrix(inputs, (dataset,) if dataset else (), len(pieces), chunk_tokens)


def _cut(ids: list[int], length: int, most: int | None, bos: int | None) -> list[list[int]]:
    """Whole chunks, each with its first token replaced by BOS as in llama.cpp; a short text is one chunk."""
    if len(ids) < 2:
        raise InvalidRequest("the text has fewer than two tokens; give a longer one", param="text")
    count = max(1, len(ids) // length)
    count = count if most is None else min(count, most)
    pieces = [ids[at * length : (at + 1) * length] for at in range(count)]
    return [piece if bos is None else [bos, *piece[1:]] for piece in pieces]


def _by_tensor(file: GGUF, spec: ModelSpec, collected: list[Collected]) -> dict[str, Inputs]:
    """Inputs by the names of the file's tensors; matrices of experts and heads stand in one."""
    matrices = Matrices(file, spec)
    inputs: dict[str, Inputs] = {}
    for name, rows, sums, times in collected:
        if name in ("output", "token_embd") or name.startswith("cls"):
            continue
        found = matrices.rows(name, rows)
        tensor = found.tensor
        if found.is_copy or tensor.shape[-1] != len(sums) or tensor.name in SKIPPED:
            continue
        count = int(np.prod(tensor.shape[:-2])) if len(tensor.shape) > 2 else 1
        if tensor.name not in inputs:
            inputs[tensor.name] = Inputs(
                np.zeros((count, len(sums)), np.float32), np.zeros(count, np.float32)
            )
        index = found.first // tensor.shape[-2] if count > 1 else 0
        inputs[tensor.name].sums[index] = sums
        inputs[tensor.name].counts[index] = times
    return inputs
