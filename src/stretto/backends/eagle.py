"""An EAGLE-3 head (models/eagle3.py) as a small model in a backend of its own, beside the model's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from stretto.backends.base import Batch, Projects
from stretto.backends.next_layer import Floats, LayerBackend, LayerFile, OpenLayer, embed, norm_rows
from stretto.models.eagle3 import FUSE, EagleHead, read_eagle_head
from stretto.models.sites import list_sites
from stretto.models.spec import ModelSpec
from stretto.weights.folder import open_weights
from stretto.weights.gguf import GGUF


class EagleDrafts:
    """The head, opened when the first request drafts with it."""

    skips_unknown = True  # heads are trained without the first token

    def __init__(self, file: GGUF, head: EagleHead, open_layer: OpenLayer, files: ExitStack) -> None:
        self.sites, self.ids = head.sites, head.ids
        self._file, self._head, self._open, self._files = file, head, open_layer, files
        self._embedding_norm = head.embedding_norm.dequantize()
        self._state_norm = None if head.state_norm is None else head.state_norm.dequantize()
        self._site = list_sites(head.spec)["layers.0.residual"]
        self._backend: LayerBackend | None = None

    def open(self, n_cells: int) -> None:
        """Have a backend with so many cells."""
        if self._backend is None:
            self._backend = self._open(LayerFile(self._file, self._head.tensors), self._head.spec, n_cells)

    def fuse(self, states: Floats) -> Floats:
        """One state of those of several layers."""
        assert isinstance(self._backend, Projects)
        return self._backend.project(FUSE, states)

    def join(self, tokens: Sequence[int], states: Floats) -> Floats:
        """float32[n, 2 × n_embd]: the residual, and behind it the normalised embedding."""
        spec = self._head.spec
        if self._state_norm is not None:
            states = norm_rows(states, self._state_norm, spec)
        embedded = norm_rows(embed(self._head.embeddings, tokens), self._embedding_norm, spec)
        return np.concatenate([states, embedded], axis=1)

    def forward(self, batch: Batch) -> tuple[Floats, Floats]:
        """Logits of the wanted rows, and the residuals of all rows behind the layer."""
        assert self._backend is not None
        shown = batch.tap(self._site, range(len(batch)))
        return self._backend.forward(batch), shown.values

    def close(self) -> None:
        """Free everything."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        self._files.close()


def open_eagle_head(model: Path, spec: ModelSpec, open_layer: OpenLayer, path: Path) -> EagleDrafts:
    """The head in a file or a folder, for a model whose file is opened again for what heads share with it."""
    with ExitStack() as stack:
        file, shared = (stack.enter_context(open_weights(each)) for each in (path, model))
        head = read_eagle_head(file, shared, spec)
        return EagleDrafts(file, head, open_layer, stack.pop_all())
