"""One call of a decoder's graph: past tensors are gathered or reused, present tensors are kept.

There is never padding before a text. Rows of different length run together with free room behind each past:
GroupQueryAttention counts the length of each row; other graphs get an attention mask with zeros there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Decoding
from stretto.backends.onnx.graph import IDS, DecoderGraph
from stretto.backends.onnx.grouping import Chain
from stretto.backends.onnx.pool import HeadPool
from stretto.backends.onnx_session import OnnxSession, import_runtime, make_failure

# K and V of sequences as the last call of the graph left them, so that a plain continuation gathers
# nothing.
#
# A `Kept` holds the present tensors of one call. New K and V stay in it until somebody needs them elsewhere
# (`Presents.sync` writes them to the pool): a sequence that only grows never touches the pool. A cell that
# has been written since makes a `Kept` useless from there on; stamps tell.

TYPES = {"tensor(float)": "<f4", "tensor(float16)": "<f2"}  # of K and V, for NumPy


@dataclass
class Kept:
    """Tensors of a call, [rows, heads, width, size] each, and the cells that are in them.

    `places` says where the cells of a row are along the third axis; None: from 0 on, in order.
    """

    cells: list[Ints]
    values: list[Any]  # OrtValues, one for each plane
    width: int
    time: int  # of the call
    n_synced: list[int]  # cells of each row that the pool has
    places: list[Ints] | None = None
    binding: Any = None  # with past and present bound, where they are the same buffers

    @property
    def n_cells(self) -> int:
        """The room that it takes, in cells."""
        return len(self.cells) * self.width


@dataclass
class Presents:
    """What was kept, the latest last, within `max_cells`."""

    pool: HeadPool
    max_cells: int
    stamps: NDArray[np.int64] = field(init=False)  # the time of the last write of each cell
    clock: int = 0
    kept: list[Kept] = field(default_factory=list)
    n_gathered: int = 0  # calls that gathered their past, and that did not
    n_reused: int = 0

    def __post_init__(self) -> None:
        self.stamps = np.zeros(self.pool.n_cells, np.int64)

    def touch(self, cells: Ints) -> None:
        """Note that cells get new contents."""
        self.clock += 1
        self.stamps[cells] = self.clock

    def find(self, pasts: Sequence[Ints], partly: bool = False) -> Kept | None:
        """The latest that has exactly these rows of cells, or with `partly` more behind them."""
        for kept in reversed(self.kept):
            if len(kept.cells) == len(pasts) and self._has(kept, pasts, partly):
                return kept
        return None

    def arrange(self, chains: Sequence[Chain]) -> Sequence[Chain]:
        """The chains in the order of the rows of what was kept of them, if there is such a thing."""
        if len(chains) > 1 and len(chains[0].past):
            for kept in reversed(self.kept):
                rows = {int(cells[-1]): row for row, cells in enumerate(kept.cells)}
                order = [rows.get(int(chain.past[-1]), -1) for chain in chains]
                if len(rows) == len(chains) and sorted(order) == list(range(len(chains))):
                    return [chain for _, chain in sorted(zip(order, chains, strict=True), key=itemgetter(0))]
        return chains

    def remove(self, kept: Kept) -> None:
        """Take something out: the next call continues it."""
        self.kept = [each for each in self.kept if each is not kept]
        self.n_reused += 1

    def _has(self, kept: Kept, pasts: Sequence[Ints], partly: bool) -> bool:
        for cells, past in zip(kept.cells, pasts, strict=True):
            n = len(past)
            if not n or (len(cells) < n if partly else len(cells) != n):
                return False
            # The last cell differs first; a cell that was written since holds something else now.
            if cells[n - 1] != past[-1] or not np.array_equal(cells[:n], past):
                return False
            if self.stamps[past].max() > kept.time:
                return False
        return True

    def add(self, kept: Kept) -> None:
        """Keep the tensors of a call, and drop the oldest ones."""
        self.kept.append(kept)
        room = self.max_cells - kept.n_cells
        for number in range(len(self.kept) - 2, -1, -1):
            room -= self.kept[number].n_cells
            if room < 0:
                self.drop(number + 1)
                break

    def drop(self, n: int) -> None:
        """Give up the first `n`, once the pool has what they hold."""
        for kept in self.kept[:n]:
            self.sync_one(kept)
        del self.kept[:n]

    def sync(self) -> None:
        """Let the pool have everything, before it is read."""
        for kept in self.kept:
            self.sync_one(kept)

    def sync_one(self, kept: Kept) -> None:
        """Let the pool have what one call has left."""
        rows = [row for row, cells in enumerate(kept.cells) if kept.n_synced[row] < len(cells)]
        if not rows:
            return
        moves = [(row, *self._moved(kept, row)) for row in rows]
        for index, value in enumerate(kept.values):
            array = host_array(value)
            for row, cells, places in moves:
                self.pool.scatter(index, cells, array[row][:, places])
        for row in rows:
            kept.n_synced[row] = len(kept.cells[row])

    def _moved(self, kept: Kept, row: int) -> tuple[Ints, Ints]:
        """The cells of a row that the pool lacks and nobody has written since, and where they are."""
        first = kept.n_synced[row]
        cells = kept.cells[row][first:]
        if kept.places is None:
            places = np.arange(first, first + len(cells), dtype=np.int32)
        else:
            places = kept.places[row][first:]
        current = self.stamps[cells] <= kept.time
        return cells[current], places[current]

    def clear(self) -> None:
        """Free everything."""
        self.kept.clear()


def host_array(value: Any) -> NDArray[Any]:
    """The numbers of an OrtValue: as they are if it is on the host, else a copy."""
    if value.device_name().lower() == "cpu":
        return np.asarray(_HostMemory(value))
    copied: NDArray[Any] = value.numpy()
    return copied


class _HostMemory:
    """The memory of an OrtValue as NumPy takes it; OrtValues have `__dlpack__` from ONNX Runtime 1.26 on."""

    def __init__(self, value: Any) -> None:
        self._value = value  # owns the memory
        self.__array_interface__ = {
            "shape": tuple(value.shape()),
            "typestr": TYPES[value.data_type()],
            "data": (value.data_ptr(), True),  # which is read only
            "version": 3,
        }


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
        of `Presents.arrange`.
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
            raise make_failure(error, self.graph.file) from error
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
        self.bind(binding, IDS, ids.astype(graph.ids_type))
        if graph.mask is not None:
            self.bind(binding, graph.mask, self._mask(chains, past, n).astype(graph.mask_type))
        if graph.positions is not None:
            positions = np.stack([chain.positions for chain in chains])
            self.bind(binding, graph.positions, positions.astype(graph.positions_type))
        if graph.branch is not None:
            self.bind(binding, graph.branch, np.array([len(chains[0].past) > 0]))
        if graph.keep is not None:
            value = graph.file.inputs[graph.keep]
            self.bind(binding, graph.keep, np.full((1,) * len(value.shape or ()), n_logits, value.type))

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

    def bind(self, binding: Any, name: str, array: Array) -> None:
        """Give the session an array of the host."""
        binding.bind_cpu_input(name, array)  # keeps the array, which bind_ortvalue_input did not before 1.30

    def _value(self, array: Array, memory: str) -> Any:
        return self._runtime.OrtValue.ortvalue_from_numpy(
            array, memory, self.session.index if memory != "cpu" else 0
        )


# The end of one sequence that grows by a token a call: everything is bound once, and only numbers change.
#
# A decode step of a small model takes a few milliseconds, and between two of them caches are cold: each
# tensor that is made or bound costs tens of microseconds. So this keeps the binding of the call before,
# whose past and present are one buffer, and the memory of its token, position, mask and logits.
# `benchmarks/onnx_export.py` measures it.

Floats = NDArray[np.float32]


class Tail:
    """A sequence whose K and V are in the buffers of one `Kept`, and the call that adds a token to them.

    `edits` and `n` say which sequence, and how much of it is computed: while its view has these edits, cells
    were only appended to it (cache/views.py). `settle` tells the others of the new cells; until then nobody
    else may look at what was kept.
    """

    def __init__(
        self, raw: Any, graph: DecoderGraph, presents: Presents, kept: Kept, edits: int, position: int
    ) -> None:
        self.edits = edits
        self.n = len(kept.cells[0])
        self.position = position  # of the next token
        self._graph, self._presents, self._kept = graph, presents, kept
        self.run_bound, self._binding, self._width = raw.run_with_iobinding, kept.binding, kept.width
        self._new: list[int] = []  # cells of tokens since the last `settle`
        self._ids = np.zeros((1, 1), graph.ids_type)
        self._positions = np.zeros((1, 1), graph.positions_type)
        self._mask = np.zeros((1, kept.width), graph.mask_type)
        self._mask[0, : self.n] = 1
        self._logits: NDArray[Any] | None = None
        self._n_references = 0  # to the logits, while nobody else has them
        self._is_wide = graph.file.outputs[graph.logits].type == "float32"

    def continues(self, edits: int, n: int, position: int) -> bool:
        """Whether the token at `position`, behind `n` cells of a view with these edits, is the next one."""
        return n == self.n and edits == self.edits and position == self.position and n < self._width

    def follows(self, batch: Decoding) -> bool:
        """Whether a decode step is the next one of this sequence."""
        return (
            len(batch.ids) == 1
            and self.continues(batch.edits[0], batch.counts[0] - 1, batch.places[0])
            and batch.rotated is None
        )

    def step(self, token: int, cell: int, n_vocab: int) -> Floats:
        """float32[1, n_vocab]: compute the next token into a cell; if it raises, nothing has changed."""
        n, position = self.n, self.position
        self._ids[0, 0], self._positions[0, 0], self._mask[0, n] = token, position, 1
        if self._logits is None:
            self._bind_inputs()
        if self._logits is None or sys.getrefcount(self._logits) != self._n_references:
            self._bind_logits(n_vocab)
        self.run_bound(self._binding)
        self._new.append(cell)
        self.n, self.position = n + 1, position + 1
        logits = self._logits
        assert logits is not None
        return logits if self._is_wide else logits.astype(np.float32)

    def settle(self) -> None:
        """Note the cells of new tokens: their K and V are in the buffers, and not yet in the pool."""
        if self._new:
            kept, new = self._kept, np.array(self._new, np.int32)
            self._presents.touch(new)
            kept.cells[0], kept.time = np.concatenate((kept.cells[0], new)), self._presents.clock
            self._new.clear()

    def _bind_inputs(self) -> None:
        graph = self._graph
        names = {IDS: self._ids, graph.mask: self._mask, graph.positions: self._positions}
        for name, array in names.items():
            if name is not None:
                place = array.dtype.type, array.shape, array.ctypes.data
                self._binding.bind_input(name, "cpu", 0, *place)

    def _bind_logits(self, n_vocab: int) -> None:
        """Memory for a row of logits that the caller may keep: it is used again when nobody has it."""
        graph = self._graph
        self._logits = np.empty((1, n_vocab), graph.file.outputs[graph.logits].type)
        self._n_references = sys.getrefcount(self._logits)  # counted as in `step`
        place = self._logits.dtype.type, (1, 1, n_vocab), self._logits.ctypes.data
        self._binding.bind_output(graph.logits, "cpu", 0, *place)
