"""One call of a decoder's graph: past tensors are gathered or reused, present tensors are kept.

There is never padding before a text. Rows of different length run together with free room behind each past:
GroupQueryAttention counts the length of each row; other graphs get an attention mask with zeros there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.onnx.graph import IDS, DecoderGraph
from stretto.backends.onnx.kept import Kept, Presents, host_array
from stretto.backends.onnx.plan import Chain
from stretto.backends.onnx.pool import HeadPool
from stretto.backends.onnx_session import OnnxSession, import_runtime
from stretto.errors import ModelError

Ints = NDArray[np.int32]
Array = NDArray[Any]

ROOM_STEP = 64  # cells by which shared buffers are rounded up
MEMORY_OF = {"cuda": "cuda", "tensorrt": "cuda", "tensorrt-rtx": "cuda", "directml": "dml"}


class Caller:
    """Runs chains of tokens through a session."""

    def __init__(
        self, session: OnnxSession, graph: DecoderGraph, pool: HeadPool, presents: Presents, n_vocab: int
    ) -> None:
        self.session = session
        self.n_vocab = n_vocab
        self.graph = graph
        self.pool = pool
        self.presents = presents
        self.memory = MEMORY_OF.get(session.device, "cpu")
        self._runtime = import_runtime()

    def run(self, chains: Sequence[Chain], tokens: Ints, n_logits: int) -> Array:
        """Compute chains of one length together; [chains, n, n_vocab], the logits of their last n tokens.

        These are `n_logits` where the graph takes a number of them, else all. The chains must be in the order
        of `Presents.arranged`.
        """
        past = self._past(chains)
        shape = len(chains), n_logits if self.graph.keep else len(chains[0]), self.n_vocab
        logits = np.empty(shape, self.graph.file.outputs[self.graph.logits].type)
        binding = past.binding or self.session.raw.io_binding()
        try:
            self._bind_inputs(binding, chains, tokens, past, n_logits)
            if past.binding is None:
                self._bind_planes(binding, past)
            binding.bind_output(self.graph.logits, "cpu", 0, logits.dtype.type, shape, logits.ctypes.data)
            self.session.raw.run_with_iobinding(binding)
        except BaseException as error:
            self.presents.add(replace(past, binding=None))  # it may have K and V that the pool lacks
            if not isinstance(error, Exception):
                raise
            raise failure(error, self.graph) from error
        self.presents.add(self._following(chains, past, binding))
        return logits

    # -- the past --

    def _past(self, chains: Sequence[Chain]) -> Kept:
        """The past of some chains: what the last call left if possible, else gathered from the pool."""
        pasts = [chain.past for chain in chains]
        kept = self.presents.find(pasts)
        if kept is not None:
            self.presents.remove(kept)
            return self._with_room(kept, pasts, chains) if self.graph.shares else kept
        longer = self.presents.find(pasts, partly=True)
        if longer is not None and self.graph.shares:
            self.presents.sync_one(longer)  # what is behind gets overwritten, and may be somebody's
            self.presents.remove(longer)
            return self._with_room(longer, pasts, chains)
        if longer is not None and len(pasts) == 1 and longer.places is None:
            return self._cut(longer, pasts[0])
        return self._gathered(chains, self._width(chains) if self.graph.shares else None)

    def _width(self, chains: Sequence[Chain]) -> int:
        """The length of shared buffers: half as much again as is needed now."""
        needed = max(len(chain.past) + len(chain) for chain in chains)
        return -(-(needed + needed // 2) // ROOM_STEP) * ROOM_STEP

    def _with_room(self, kept: Kept, pasts: list[Ints], chains: Sequence[Chain]) -> Kept:
        """Buffers that the graph reads and writes in place, with room for the new tokens."""
        n_synced = [min(n, len(past)) for n, past in zip(kept.n_synced, pasts, strict=True)]
        if max(len(chain.past) + len(chain) for chain in chains) <= kept.width:
            return replace(kept, cells=pasts, n_synced=n_synced)
        width = self._width(chains)
        values = [self._longer(value, width) for value in kept.values]
        return Kept(pasts, values, width, kept.time, n_synced)

    def _longer(self, value: Any, width: int) -> Any:
        old = host_array(value)
        rows, heads, n, size = old.shape
        array = np.zeros((rows, heads, width, size), old.dtype)
        array[:, :, :n] = old
        return self._value(array, self.memory)

    def _cut(self, kept: Kept, past: Ints) -> Kept:
        """The first cells of what was kept of one row, which stays: a fork may go on with it."""
        n = len(past)
        self.presents.sync_one(kept)
        arrays = [np.ascontiguousarray(host_array(value)[:, :, :n]) for value in kept.values]
        return Kept([past], [self._value(array, self.memory) for array in arrays], n, kept.time, [n])

    def _gathered(self, chains: Sequence[Chain], width: int | None = None) -> Kept:
        """New tensors with the cells of each past, from the pool."""
        pasts = [chain.past for chain in chains]
        longest = max(len(past) for past in pasts)
        if longest:
            self.presents.n_gathered += 1
            self.presents.sync()
        width = longest if width is None else width
        ragged = any(len(past) < width for past in pasts)
        values = []
        for index, plane in enumerate(self.pool.planes):
            shape = (len(pasts), plane.heads, width, plane.size)
            array = (np.zeros if ragged else np.empty)(shape, self.pool.dtype)
            for row, past in enumerate(pasts):
                if len(past):
                    self._gather_row(index, past, array[row])
            values.append(self._value(array, self.memory))
        places = None
        if ragged and not self.graph.shares:
            places = [np.arange(len(past), dtype=np.int32) for past in pasts]
        return Kept(pasts, values, width, self.presents.clock, [len(past) for past in pasts], places)

    def _gather_row(self, index: int, past: Ints, target: Array) -> None:
        n = len(past)
        if n == target.shape[1]:
            self.pool.gather(index, past, target)
        else:
            part = np.empty((target.shape[0], n, target.shape[2]), target.dtype)
            self.pool.gather(index, past, part)
            target[:, :n] = part

    # -- inputs and outputs --

    def _bind_inputs(
        self, binding: Any, chains: Sequence[Chain], tokens: Ints, past: Kept, n_logits: int
    ) -> None:
        graph, n = self.graph, len(chains[0])
        ids = np.stack([tokens[chain.rows] for chain in chains])
        self._bind(binding, IDS, ids.astype(graph.ids_type))
        if graph.mask is not None:
            self._bind(binding, graph.mask, self._mask(chains, past, n).astype(graph.mask_type))
        if graph.positions is not None:
            positions = np.stack([chain.positions for chain in chains])
            self._bind(binding, graph.positions, positions.astype(graph.positions_type))
        if graph.branch is not None:
            self._bind(binding, graph.branch, np.array([len(chains[0].past) > 0]))
        if graph.keep is not None:
            value = graph.file.inputs[graph.keep]
            self._bind(binding, graph.keep, np.full((1,) * len(value.shape or ()), n_logits, value.type))

    def _mask(self, chains: Sequence[Chain], past: Kept, n: int) -> Array:
        """Ones where a row has tokens: all of it but the room behind a shorter past."""
        if self.graph.shares:
            totals = np.array([len(chain.past) + n for chain in chains])
            return np.arange(totals.max())[None] < totals[:, None]
        mask = np.ones((len(chains), past.width + n), bool)
        if past.places is not None:
            mask[:, : past.width] = False
            for row, places in enumerate(past.places):
                mask[row, places] = True
        return mask

    def _bind_planes(self, binding: Any, past: Kept) -> None:
        shares = self.graph.shares
        for plane, value in zip(self.pool.planes, past.values, strict=True):
            binding.bind_ortvalue_input(plane.past, value)
            if shares:
                binding.bind_ortvalue_output(plane.present, value)
            else:
                binding.bind_output(plane.present, self.memory)

    def _following(self, chains: Sequence[Chain], past: Kept, binding: Any) -> Kept:
        """What the call has left, for the next one."""
        n, time = len(chains[0]), self.presents.clock
        cells = [np.concatenate((chain.past, chain.cells)) for chain in chains]
        if self.graph.shares:
            return Kept(cells, past.values, past.width, time, past.n_synced, binding=binding)
        places = past.places
        if places is not None:
            new = np.arange(past.width, past.width + n, dtype=np.int32)
            places = [np.concatenate((each, new)) for each in places]
        values = binding.get_outputs()[: len(past.values)]
        return Kept(cells, values, past.width + n, time, past.n_synced, places)

    def _bind(self, binding: Any, name: str, array: Array) -> None:
        binding.bind_cpu_input(name, array)  # keeps the array, which bind_ortvalue_input did not before 1.30

    def _value(self, array: Array, memory: str) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(
            array, memory, self.session.index if memory != "cpu" else 0
        )


def failure(error: Exception, graph: DecoderGraph) -> ModelError:
    """The error of a call that ONNX Runtime has refused or broken off."""
    text = " ".join(str(error).split())
    return ModelError(f"ONNX Runtime cannot compute it: {text:.500}", path=graph.file.path)
