"""llama.cpp as a backend, through `llama-cpp-python`, for architectures and formats that Stretto lacks.

    llm = stretto.load("gpt2.gguf", backend="llamacpp")

Logits are llama.cpp's own. It runs in another process (`llama_process`), since it ends its own at failed
assertions. Sequences, forks, truncation, removal from the middle, the prefix cache and hooks
work as with other backends (`llama_cells` says how cells become its sequences). Whatever its cache cannot
express is `Unsupported`: several tokens at one position, moving tokens, images, attention weights, saving.
Results are those of one batch: it does not promise the same bits in another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities, FusedRun, NoSlots
from stretto.backends.batch import Placement
from stretto.backends.llama_cells import LlamaCells, Lost
from stretto.backends.llama_library import NoRoom, Row, full
from stretto.backends.llama_process import LlamaProcess
from stretto.errors import InvalidRequest, ModelError, Unsupported
from stretto.models.spec import ModelSpec
from stretto.weights.gguf import GGUF

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

PURGE_PASSES = 64  # freed cells are removed from llama.cpp's cache every so often


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of a batch that belong to one view: they follow `past`, one position after the other."""

    rows: list[int]
    past: Ints
    cells: Ints


class LlamaBackend(NoSlots):
    """A model run by llama.cpp."""

    name = "llamacpp"
    precision = "standard"
    capabilities = Capabilities(merge=False, shift=False, embeddings=False, hidden=True)
    cell_bytes = 0  # K and V stay in llama.cpp
    cell_layout = "llama.cpp"

    def __init__(
        self, file: GGUF, spec: ModelSpec, n_cells: int, threads: int, kv: str = "f16", repack: bool = True
    ) -> None:
        self.llama = LlamaProcess(file.path, n_cells, threads, kv, repack)
        if (self.llama.n_vocab, self.llama.n_embd) != (spec.n_vocab, spec.n_embd):
            sizes = f"{self.llama.n_vocab} tokens and {self.llama.n_embd} numbers each"
            self.llama.close()
            raise ModelError(f"llama.cpp reads {sizes}, not {spec.n_vocab} and {spec.n_embd}", path=file.path)
        self.spec = spec
        self.n_cells = n_cells
        self.active_threads = threads
        self.cells = LlamaCells(self.llama, n_cells)
        self.passes = 0

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab], as llama.cpp computes them."""
        return self._run(batch, hidden=False)

    def hidden(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_embd]: the final hidden states."""
        return self._run(batch, hidden=True)

    def _run(self, batch: Batch, hidden: bool) -> Floats:
        placement = batch.placement
        if placement is None:
            raise InvalidRequest("the batch has no cells yet; call batch.place(cells) first")
        _check(batch, placement)
        wanted = set(batch.wanted.tolist())
        found: dict[int, Floats] = {}
        self.cells.place(placement.cells)
        self.passes += 1
        if self.passes % PURGE_PASSES == 0:
            self.cells.purge(placement.table)
        waiting = _parts(batch, placement)
        while waiting:
            mine, waiting = _ready(waiting)
            self._pass(mine, batch, placement.table, wanted, hidden, found)
        width = self.spec.n_embd if hidden else self.spec.n_vocab
        rows = [found[row] for row in batch.wanted.tolist()]
        return np.stack(rows) if rows else np.empty((0, width), np.float32)

    def _pass(
        self,
        parts: list[Part],
        batch: Batch,
        table: Ints,
        wanted: set[int],
        hidden: bool,
        found: dict[int, Floats],
    ) -> None:
        """Run parts that depend on nothing that is still to come."""
        tokens, positions, cells = batch.tokens, batch.positions, self.cells
        cells.begin()
        sequences: list[int] = []
        try:
            for part in parts:
                sequence, lost = cells.bring(part.past, table)
                sequences.append(sequence)
                if lost is not None:
                    self._replay(lost, table)
            order = sorted(
                (row, sequence) for part, sequence in zip(parts, sequences, strict=True) for row in part.rows
            )
            for start in range(0, len(order), self.llama.n_batch):
                piece = order[start : start + self.llama.n_batch]
                rows = [(int(tokens[r]), int(positions[r]), s, r in wanted) for r, s in piece]
                outputs = self._decode(rows, table, hidden)
                found.update(zip([r for r, _ in piece if r in wanted], outputs, strict=True))
            for part, sequence in zip(parts, sequences, strict=True):
                cells.write(sequence, part.cells, tokens[part.rows], positions[part.rows])
        except BaseException:  # what it has computed of them is not known
            for sequence in sequences:
                cells.forget(sequence)
            raise

    def _replay(self, lost: Lost, table: Ints) -> None:
        """Compute cells again that llama.cpp has lost."""
        cells = self.cells
        tokens, positions = cells.tokens[lost.cells].tolist(), cells.positions[lost.cells].tolist()
        rows = [(t, p, lost.sequence, False) for t, p in zip(tokens, positions, strict=True)]
        for start in range(0, len(rows), self.llama.n_batch):
            self._decode(rows[start : start + self.llama.n_batch], table, False)
        cells.restore(lost.sequence, lost.cells)

    def _decode(self, rows: list[Row], table: Ints, hidden: bool) -> Floats:
        """Run rows; if there is no room, without what was freed, and then without what is idle."""
        try:
            return self.llama.decode(rows, hidden)
        except NoRoom:
            self.cells.purge(table)
        try:
            return self.llama.decode(rows, hidden)
        except NoRoom:
            if not self.cells.evict_idle():
                raise full(len(rows), self.llama.n_ctx) from None
        try:
            return self.llama.decode(rows, hidden)
        except NoRoom:
            raise full(len(rows), self.llama.n_ctx) from None

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """llama.cpp's own loop is not used."""
        raise Unsupported(f"the {self.name} backend has no fused loop; backend='native' has")

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """K and V cannot be copied from cell to cell."""
        raise _unsupported("copying cells")

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Keys cannot be rotated cell by cell."""
        raise _unsupported("moving tokens to other positions")

    def read_cells(self, cells: Ints) -> Bytes:
        """K and V cannot be read."""
        raise _unsupported("saving a sequence")

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """K and V cannot be written."""
        raise _unsupported("restoring a sequence")

    def close(self) -> None:
        """Free the model and its context."""
        self.llama.close()


def _check(batch: Batch, placement: Placement) -> None:
    """Raise `Unsupported` for what llama.cpp's cache has no meaning for."""
    if batch.vectors or placement.rotated is not None or placement.causal is not None:
        raise _unsupported("vectors in place of tokens, as of images,")
    if len(batch.probes) or batch.watched:
        raise _unsupported("measuring attention")


def _parts(batch: Batch, placement: Placement) -> list[Part]:
    """The rows by view, each view's rows at its end."""
    positions, table = batch.positions, placement.table
    rows_of: dict[int, list[int]] = {}
    for row, index in enumerate(placement.view_of.tolist()):
        rows_of.setdefault(index, []).append(row)
    parts = []
    for index, rows in rows_of.items():
        view, cells = placement.views[index], placement.cells[rows]
        n = len(view) - len(rows)
        steps = np.diff(table[view])
        if (steps == 0).any():
            raise _unsupported("several tokens at one position")
        if not np.array_equal(view[n:], cells):
            raise _unsupported("a token before the end of its sequence")
        if (np.diff(positions[rows]) != 1).any() or (n > 0 and steps[n - 1] != 1):
            raise _unsupported("a position that does not follow the last one of its sequence")
        parts.append(Part(rows, view[:n].copy(), cells))
    return parts


def _ready(parts: list[Part]) -> tuple[list[Part], list[Part]]:
    """Those parts whose past is computed, and those that follow cells of other parts in the batch."""
    coming = np.concatenate([part.cells for part in parts])
    ready = [part for part in parts if not np.isin(part.past, coming).any()]
    if not ready:
        raise _unsupported("sequences of one batch that follow each other")
    return ready, [part for part in parts if part not in ready]


def _unsupported(what: str) -> Unsupported:
    return Unsupported(f"the llamacpp backend cannot do this: {what}; backend='native' can")
