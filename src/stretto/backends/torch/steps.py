"""Decode steps: one row for each sequence, captured as CUDA graphs.

A graph is captured when a step of its kind is first taken (rows in buckets of 1, 2, 4 … 256, with or without
shared items), and replayed with new integers in the same memory. All graphs share one pool for what they need
while they run; their logits, which outlast a step, are outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from weakref import ref

import torch

from stretto.backends.torch import chain, lean
from stretto.backends.torch.decoder import Decoder
from stretto.backends.torch.device import Tensor, capturing, is_hopper_or_newer, uses_kernels
from stretto.backends.torch.launching import compiling, is_known_version
from stretto.backends.torch.lean import is_dense
from stretto.backends.torch.matrix import MOST_ROWS
from stretto.backends.torch.memory import free_again, has_room, is_out_of_memory
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.rows import Logits, RowSampler, TorchRows
from stretto.backends.torch.views import append_cells
from stretto.backends.torch.work import PassWork

# Kernels of a new kind of pass, compiled several at a time before it.


class Ahead:
    """Walks through a pass once without computing it, so that all kernels it will launch are compiled.

    Only passes of dense models, whose integers are all made by the planner: experts are chosen by kernels,
    and what has not been computed must not be an index.
    """

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        on_gpu = device.type == "cuda" and uses_kernels(torch.empty(0, device=device))
        self._is_able = on_gpu and is_known_version() and is_dense(decoder)
        self._seen: set[Hashable] = set()

    def compile(self, kind: Hashable, run: Callable[[], Tensor]) -> None:
        """Compile what `run` launches, if this is the first pass of its kind."""
        if self._is_able and kind not in self._seen:
            self._seen.add(kind)
            with compiling():
                run()


MOST_GRAPHS = 24  # the oldest goes when there are more
SPARE_BYTES = 256 << 20  # that must be free before another one is captured
STEPS_UNCAPTURED = 1000  # until it is tried again

Key = tuple[int, bool, int]  # of a step: rows of its bucket, whether views share cells, where views are


class Eager:
    """A step that is computed anew where there are no graphs."""

    def __init__(self, replay: Callable[[], object]) -> None:
        self.replay = replay


@dataclass
class Captured:
    """A graph, the memory that it writes logits to, and rows of an earlier step that are still there."""

    graph: torch.cuda.CUDAGraph | Eager
    logits: Tensor  # float32[rows of the bucket, n_vocab]
    rows: Callable[[], Logits | None] = lambda: None

    def replay(self) -> None:
        """Take the step."""
        if (old := self.rows()) is not None:  # somebody still has logits of an earlier step
            old.preserve()
        self.graph.replay()


class Steps:
    """Runs decode steps of a decoder."""

    def __init__(self, decoder: Decoder, sampler: RowSampler, device: torch.device, exact: bool) -> None:
        self._decoder, self._sampler, self.device = decoder, sampler, device
        self.ahead = Ahead(decoder, device)
        self._is_lean = not exact and uses_kernels(torch.empty(0, device=device)) and lean.is_plain(decoder)
        if self._is_lean:
            lean.prepare(decoder)
        self.chain = chain.make(decoder, device) if exact else None
        self.prefetches = is_hopper_or_newer(device) and not self._is_lean
        self._graphs: dict[Key, Captured] = {}
        self.uncaptured: dict[Key, int] = {}  # steps that there was no memory for: how many will not try
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, work: PassWork, n: int) -> TorchRows:
        """The logits of the first n rows, on the device."""
        assert work.key is not None
        if self.device.type != "cuda":
            return self._sampler.rows(self._step(work)[:n])
        found = self.captured(work)
        found.replay()
        return self.rows(found, n)

    def captured(self, work: PassWork) -> Captured:
        """The graph of such a step; without graphs, or memory for one, the step itself."""
        assert work.key is not None
        found = None
        if self.device.type == "cuda":
            found = self._graphs.get(work.key) or self._capture(work.key, work)
        return found or self._eager(work)

    def _eager(self, work: PassWork) -> Captured:
        shape = work.n, self._sampler.n_vocab
        logits = torch.empty(shape, dtype=torch.float32, device=work.tokens.device)
        return Captured(Eager(lambda: logits.copy_(self._step(work)[:, : shape[1]])), logits)

    def rows(self, found: Captured, n: int) -> TorchRows:
        """The logits of the first n rows of the step that was replayed last."""
        rows = self._sampler.rows(found.logits[:n])
        found.rows = ref(rows.shared)
        return rows

    def clear(self) -> None:
        """Free all graphs; steps that had no room for one may try again."""
        self._graphs.clear()
        self.uncaptured.clear()

    def _capture(self, key: Key, work: PassWork) -> Captured | None:
        """The graph of a step; None while memory is short: the step runs without one, slower."""
        if self.uncaptured.get(key, 0):
            self.uncaptured[key] -= 1
            return None
        if len(self._graphs) >= MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        for old in [each for each in self._graphs if each[2] != key[2]]:  # the views are elsewhere now
            del self._graphs[old]
        # Kernels are compiled outside of the graph, by a step whose effects the graph repeats: K and
        # V are written twice, and states, which would advance twice, are put back.
        states = [each for each in self._decoder.memory.states if each is not None and work.runs is not None]
        slots = None if work.runs is None else work.runs.slots.long()
        before = [each[slots] for each in states]
        self.ahead.compile(("step", *key[:2]), lambda: self._step(work))
        self._step(work)
        for each, old in zip(states, before, strict=True):
            each[slots] = old
        found = None
        if has_room(self.device, SPARE_BYTES):
            try:
                found = self.record(work)
            except Exception as error:  # ending a capture that ran out of memory may raise another one
                if not any(each and is_out_of_memory(each) for each in (error, error.__context__)):
                    raise
                free_again(error, self._graphs.clear)
        if found is None:
            self.uncaptured[key] = STEPS_UNCAPTURED
        else:
            self._graphs[key] = found
        return found

    def record(self, work: PassWork) -> Captured:
        """Capture the graph of a step."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        logits = torch.empty(work.n, self._sampler.n_vocab, dtype=torch.float32, device=self.device)
        with capturing(graph, self._pool):
            self._step(work, logits)
        return Captured(graph, logits)

    def _step(self, work: PassWork, out: Tensor | None = None) -> Tensor:
        decoder = self._decoder
        for each in work.works.values():
            append_cells(each.views, each.places, each.offsets, each.lengths, work.cells, work.positions)
            break  # the views are the same for all kinds of layers
        prefetches = self.prefetches and work.n <= MOST_ROWS
        run = Pass(work, decoder.memory, has_axes=decoder.spec.has_grid_positions, prefetches=prefetches)
        if self._is_lean and work.n == 1:
            run.is_lean = True
            return lean.run(decoder, decoder.embed(run), run, out)
        if self.chain is not None and self.chain.takes(work.n):
            run.prefetches = False
            return self.chain.run(run, out)
        return decoder.logits(decoder.run(run), out)
