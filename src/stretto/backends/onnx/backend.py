"""The backend of ONNX decoders: the engine's cells over graphs that have past and present tensors only.

K and V of all cells are in a pool on the host; each view of a batch is run as a causal call whose past is
gathered from it, or is what the last call left. What a causal graph cannot compute exactly is `Unsupported`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities, Decoding, FusedRun, NoSlots
from stretto.backends.looping import goes_on, is_interrupted, make_batch, next_uniform
from stretto.backends.onnx.calls import Caller, Presents, Tail
from stretto.backends.onnx.graph import DecoderGraph, Plane
from stretto.backends.onnx.grouping import Chain, check_exact, group_chains
from stretto.backends.onnx.packing import Packing
from stretto.backends.onnx.pool import HeadPool, Pool
from stretto.backends.onnx.spec import DecoderSpec
from stretto.backends.onnx_session import INDEXED, OnnxSession, make_failure
from stretto.errors import Unsupported
from stretto.sampling.sampler import choose

# The part that both backends of ONNX decoders share: a session, a pool of cells, and what a graph lacks.

Bytes = NDArray[np.uint8]


class PoolBackend(NoSlots):
    """A decoder on ONNX Runtime whose K and V are in a pool on the host."""

    name = "onnx"
    precision = "exact"
    capabilities: Capabilities
    packing = Packing()  # which products the native kernels compute

    def __init__(self, session: OnnxSession, decoder: DecoderSpec, pool: Pool, threads: int) -> None:
        self.session = session
        self.decoder = decoder
        self.spec = decoder.spec
        self.pool = pool
        self.n_cells = pool.n_cells
        self.active_threads = 1 if session.device.partition(":")[0] in INDEXED else threads  # of the CPU
        self.cell_bytes = pool.cell_bytes
        self.cell_layout = f"onnx {pool.dtype.name}, {_layout(pool.planes)}"

    @property
    def device(self) -> str:
        """The device that the session runs on."""
        return self.session.device

    def _before_reading(self) -> None:
        """See that the pool has everything."""

    def _before_writing(self, cells: Ints) -> None:
        """Note that cells of the pool get new contents."""

    def hidden(self, batch: Batch) -> Floats:
        """A graph returns logits only."""
        self.capabilities.require("hidden", self.name)
        raise AssertionError  # the line above has raised

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """Only the native backend has a loop of its own."""
        raise Unsupported(f"the {self.name} backend has no fused loop; backend='native' has")

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy K and V of cells `source` to cells `target`."""
        self._before_reading()
        self._before_writing(target)
        self.pool.copy(source, target)

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Rotate keys by `delta` positions, with the rope that the model's files give."""
        self.capabilities.require("shift", self.name)
        self._before_reading()
        self._before_writing(cells)
        self.pool.rotate(cells, delta, self.decoder.ropes)

    def read_cells(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], plane by plane."""
        self._before_reading()
        return self.pool.read(cells)

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """Write K and V of `cells`, in the format of `read_cells`."""
        self._before_reading()
        self._before_writing(cells)
        self.pool.write(cells, data)

    def close(self) -> None:
        """Free the session and the cache."""
        self.pool.arrays.clear()
        self.session.close()


def _layout(planes: Sequence[Plane]) -> str:
    """The planes in words, for the check of data from elsewhere."""
    kinds = " ".join(dict.fromkeys(f"{plane.heads}x{plane.size}" for plane in planes))
    return f"{len({plane.layer for plane in planes})} layers, heads {kinds}"


# The fused loop of ONNX decoders: several tokens of one sequence without the engine's steps between them.
#
# Sampling and accepting a token are the engine's own, so it makes the same tokens. It saves the plan, the
# batch and the bookkeeping of a step, which a model of a few milliseconds a token notices.


def run_loop(run: FusedRun, compute: Callable[[list[int]], Floats]) -> tuple[list[int], Floats]:
    """Sample tokens, and have those computed that were not yet, until one ends it.

    `compute` returns float32[1, n_vocab], the logits after the last of some tokens.
    """
    found: list[int] = []
    row = run.logits
    assert isinstance(row, np.ndarray)  # rows of this backend are on the host
    run.logits = np.empty(0, np.float32)  # the memory of the row can be used again
    while len(found) < len(run.cells):
        begun = time.perf_counter()
        if run.hooks:
            row = row.copy()  # logits belong to whoever computed them
            for hook in run.hooks:
                hook(row, run.tokens)
        found.append(choose(row, run.params, run.tokens, run.n_prompt, next_uniform(run), run.mask))
        run.sampling += time.perf_counter() - begun
        if not goes_on(run, found):
            break
        del row
        row = compute(found[run.n_run :])[0]
        run.n_run = len(found)
        if is_interrupted(run):
            break
    return found, row


Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

MAX_ROWS = 64  # of one call
MAX_UNEVEN = 1.5  # the longest past of a call, compared with the shortest
MAX_LOGITS = 1 << 25  # numbers of one call: most graphs compute the logits of every token


class OnnxBackend(PoolBackend):
    """Runs an ONNX decoder with past and present tensors, with a fixed number of cells."""

    def __init__(
        self, session: OnnxSession, graph: DecoderGraph, decoder: DecoderSpec, n_cells: int, threads: int
    ) -> None:
        pool = HeadPool(graph.planes, n_cells, graph.type)
        super().__init__(session, decoder, pool, threads)
        self.graph = graph
        self.presents = Presents(pool, n_cells)
        self.caller = Caller(session, graph, pool, self.presents, self.spec.n_vocab)
        self.tail: Tail | None = None  # of the sequence that was run last
        on_host = self.caller.memory == "cpu"
        can_grow = on_host and graph.shares and graph.counts_mask and graph.branch is None
        self.capabilities = Capabilities(
            merge=graph.explicit,
            shift=decoder.is_rotated and graph.explicit,
            embeddings=False,
            hidden=False,
            fused=can_grow,
            ahead=can_grow,
        )
        # Zeros of the mask in the middle of a text are exact where nothing counts tokens.
        self._ragged = graph.shares or (
            graph.explicit
            and graph.mask is not None
            and graph.branch is None
            and not graph.fused
            and decoder.windows == ()
        )

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab]."""
        if not isinstance(batch, Decoding):
            return self._forward(batch)
        if self.tail is not None and self.tail.follows(batch):
            return self._grow(batch.ids[0], batch.taken[0])
        logits = self._forward(batch)
        if len(batch) == 1:
            self._begin_tail(batch.edits[0], batch.counts[0], batch.places[0], batch.table)
        return logits

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """Sample and run tokens until one ends it or the cells are used up."""
        self.capabilities.require("fused", self.name)

        def compute(tokens: list[int]) -> Floats:
            n, position = run.n_view - len(run.cells) + run.n_run, run.position + run.n_run
            if len(tokens) == 1 and self.tail is not None and self.tail.continues(run.edits, n, position):
                return self._grow(tokens[0], int(run.cells[run.n_run]))
            logits = self._forward(make_batch(run, tokens))
            if len(tokens) == 1:
                self._begin_tail(run.edits, n + 1, position, run.table)
            return logits

        return run_loop(run, compute)

    def _begin_tail(self, edits: int, n: int, position: int, table: Ints) -> None:
        """Let the sequence of the last call, whose only token was its last one, grow in its buffers."""
        if not (self.capabilities.fused and edits and n > 1):
            return
        kept = self.presents.kept[-1]
        # With windows tokens have to follow each other, as `check_exact` says.
        if self.decoder.windows != () and (table[kept.cells[0]] != np.arange(n)).any():
            return
        self.tail = Tail(self.session.raw, self.graph, self.presents, kept, edits, position + 1)

    def end_tail(self) -> None:
        """Let other calls have the buffers of the sequence that was run last."""
        if self.tail is not None:
            self.tail.settle()
            self.tail = None

    def _grow(self, token: int, cell: int) -> Floats:
        """The next token of the sequence that was run last."""
        tail = self.tail
        assert tail is not None
        try:
            return tail.step(token, cell, self.spec.n_vocab)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            self.end_tail()
            raise make_failure(error, self.graph.file) from error

    def _forward(self, batch: Batch) -> Floats:
        """`forward` of any batch."""
        self.end_tail()  # its buffers may be used for something else
        waves = group_chains(batch)
        placement = batch.placement
        assert placement is not None  # `group_chains` has asked
        waves = [turn for wave in waves for turn in _in_turn([self._pieces(each) for each in wave])]
        for wave in waves:
            check_exact(wave, placement.table, self.graph.explicit, self.decoder.windows)
        tokens, wanted = batch.tokens, batch.wanted
        self.presents.touch(placement.cells)
        logits = np.empty((len(wanted), self.spec.n_vocab), np.float32)
        places = {int(row): index for index, row in enumerate(wanted)}
        for wave in waves:
            for group in self._groups(wave):
                self.run(group, tokens, places, logits)
        return logits

    def _pieces(self, chain: Chain) -> list[Chain]:
        """A chain in parts, one after another, whose logits do not take too much memory."""
        most = len(chain) if self.graph.keep else max(1, MAX_LOGITS // self.spec.n_vocab)
        return [chain.part(first, first + most) for first in range(0, len(chain), most)]

    def run(self, chains: Sequence[Chain], tokens: Ints, places: dict[int, int], logits: Floats) -> None:
        """Compute chains of one length, and take the rows of logits that are wanted."""
        n, chains = len(chains[0]), self.presents.arrange(chains)
        asked = [i for chain in chains for i, row in enumerate(chain.rows) if row in places]
        rows = self.caller.run(chains, tokens, n - min(asked, default=n - 1))
        skipped = n - rows.shape[1]  # the graph computes the last ones only, if it is told to
        for number, chain in enumerate(chains):
            for i, row in enumerate(chain.rows):
                if row in places:
                    logits[places[row]] = rows[number, i - skipped]

    def _groups(self, wave: list[Chain]) -> list[list[Chain]]:
        """Chains that run in one call: as many tokens each, and pasts of about the same length."""
        groups: list[list[Chain]] = []
        for n, chains in groupby(sorted(wave, key=lambda chain: (len(chain), len(chain.past))), key=len):
            group: list[Chain] = []
            for chain in chains:
                if group and not self._fits(group, chain, n):
                    groups.append(group)
                    group = []
                group.append(chain)
            groups.append(group)
        return groups

    def _fits(self, group: list[Chain], chain: Chain, n: int) -> bool:
        shortest, longest = len(group[0].past), len(chain.past)
        if len(group) == MAX_ROWS or (len(group) + 1) * n * self.spec.n_vocab > MAX_LOGITS:
            return False
        if self.graph.fused and n > 1 and longest:  # GroupQueryAttention takes one row then
            return False
        if shortest == longest:
            return True
        return self._ragged and shortest > 0 and longest <= MAX_UNEVEN * shortest + 64

    # -- cells --

    def _before_reading(self) -> None:
        self.end_tail()
        self.presents.sync()

    def _before_writing(self, cells: Ints) -> None:
        self.end_tail()
        self.presents.touch(cells)

    def close(self) -> None:
        """Free the session and the cache."""
        self.tail = None
        self.presents.clear()
        super().close()


def _in_turn(pieces: list[list[Chain]]) -> list[list[Chain]]:
    """The first parts of all chains, then the second parts, and so on."""
    most = max(len(parts) for parts in pieces)
    return [[parts[turn] for parts in pieces if len(parts) > turn] for turn in range(most)]
