"""A model's layer for drafts (models/next_tokens.py) as a small model in a backend of its own.

It reads the file's tensors where they are: the output matrix is not in memory twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Projects
from stretto.models.next_tokens import JOIN, NextLayer, read_next_layer
from stretto.models.sites import Site, list_sites
from stretto.models.spec import ModelSpec
from stretto.weights import formats
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor

Floats = NDArray[np.float32]


class LayerBackend(Projects, Protocol):
    """What a backend needs to run such a layer."""

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab]; rows of `Batch.taps` are shown."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


OpenLayer = Callable[[GGUF, ModelSpec, int], LayerBackend]


class LayerFile(GGUF):
    """Tensors of open files under other names; the system keeps or evicts their pages as it likes."""

    def __init__(self, file: GGUF, tensors: Mapping[str, Tensor]) -> None:
        self.path, self.metadata, self.tensors = file.path, file.metadata, dict(tensors)
        self._paths = file.files

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the tensors."""
        return self._paths

    @property
    def nbytes(self) -> int:
        """The size of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def forget(self, tensor: Tensor | None = None, end: int | None = None) -> None:
        """Nothing is copied, so nothing can be let go."""

    def read_ahead(self, wanted: bool) -> None:
        """As the system does by itself."""


class NextHead:
    """The layer, opened when the first request drafts with it."""

    sites: tuple[Site, ...]
    skips_unknown = False
    ids: NDArray[np.int64] | None = None

    def __init__(self, file: GGUF, spec: ModelSpec, layer: NextLayer, open_layer: OpenLayer) -> None:
        self._file = LayerFile(file, {name: file.tensors[at] for name, at in layer.names.items()})
        self._spec, self._layer, self._open = spec, layer, open_layer
        self._embeddings = file.tensors["token_embd.weight"]
        names = layer.embedding_norm, layer.state_norm, "output_norm.weight"
        self._norms = [file.tensors[name].dequantize() for name in names]
        self._own_norm = file.tensors[layer.names["output_norm.weight"]].dequantize()
        self._site = list_sites(layer.spec)["layers.0.residual"]
        self.sites = (list_sites(spec)[f"layers.{spec.n_layer - 1}.residual"],)
        self._backend: LayerBackend | None = None

    def open(self, n_cells: int) -> None:
        """Have a backend with so many cells."""
        if self._backend is None:
            self._backend = self._open(self._file, self._layer.spec, n_cells)

    def join(self, tokens: Sequence[int], states: Floats) -> Floats:
        """float32[n, n_embd]: what the layer reads, of tokens and the normed states of those before them."""
        assert isinstance(self._backend, Projects)
        of_tokens, of_states, _ = self._norms
        embedded = embed(self._embeddings, tokens) * np.float32(self._spec.embedding_scale)
        both = np.concatenate([self._rms(embedded, of_tokens), self._rms(states, of_states)], axis=1)
        return self._backend.project(JOIN, both)

    def fuse(self, states: Floats) -> Floats:
        """The decoder's hidden states behind its last norm."""
        return self._rms(states, self._norms[2])

    def forward(self, batch: Batch) -> tuple[Floats, Floats]:
        """Logits of the wanted rows, and the states of all rows behind the layer's own last norm."""
        assert self._backend is not None
        shown = batch.tap(self._site, range(len(batch)))
        return self._backend.forward(batch), self._rms(shown.values, self._own_norm)

    def close(self) -> None:
        """Free everything."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def _rms(self, x: Floats, weight: Floats) -> Floats:
        return norm_rows(x, weight, self._layer.spec)


def embed(matrix: Tensor, tokens: Sequence[int]) -> Floats:
    """float32[n, n_embd]: rows of a matrix of embeddings."""
    found: Floats = formats.dequantize(
        matrix.data.reshape(matrix.shape[0], -1)[np.asarray(tokens)], matrix.format
    )
    return found


def norm_rows(x: Floats, weight: Floats, spec: ModelSpec) -> Floats:
    """Rows divided by the roots of their mean squares, times weights, as a model's last norm does it."""
    assert spec.output_norm is not None
    root = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(spec.output_norm.eps))
    made: Floats = (x / root * weight).astype(np.float32)
    return made


def find_next_head(file: GGUF, spec: ModelSpec, open_layer: OpenLayer) -> NextHead | None:
    """The layer for drafts of an open file, if it has one."""
    layer = read_next_layer(file, spec)
    return None if layer is None else NextHead(file, spec, layer, open_layer)
