"""Decode steps: one row for each sequence, captured as CUDA graphs.

A graph is captured when a step of its kind is first taken (rows in buckets of 1, 2, 4 … 256, with or without
shared items), and replayed with new integers in the same memory. All graphs share one pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import ref

import torch

from stretto.backends.torch import lean
from stretto.backends.torch.decoder import Decoder
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.plan import Plan
from stretto.backends.torch.rows import Logits, RowSampler, TorchRows
from stretto.backends.torch.views import append_cells

MOST_GRAPHS = 24  # the oldest goes when there are more


@dataclass
class Captured:
    """A graph, the memory that it writes logits to, and rows of an earlier step that are still there."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor  # float32[rows of the bucket, n_vocab]
    rows: Callable[[], Logits | None] = lambda: None


class Steps:
    """Runs decode steps of a decoder."""

    def __init__(self, decoder: Decoder, sampler: RowSampler, device: torch.device, exact: bool) -> None:
        self._decoder, self._sampler, self._device = decoder, sampler, device
        self._is_lean = not exact and device.type == "cuda" and lean.is_plain(decoder)
        self._graphs: dict[tuple[int, bool, int], Captured] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, plan: Plan, n: int) -> TorchRows:
        """The logits of the first n rows, on the device."""
        assert plan.key is not None
        if self._device.type != "cuda":
            return self._sampler.rows(self._step(plan)[:n])
        found = self._graphs.get(plan.key) or self._capture(plan.key, plan)
        if (old := found.rows()) is not None:  # somebody still has logits of an earlier step
            old.preserve()
        found.graph.replay()
        rows = self._sampler.rows(found.logits[:n])
        found.rows = ref(rows.shared)
        return rows

    def clear(self) -> None:
        """Free all graphs."""
        self._graphs.clear()

    def _capture(self, key: tuple[int, bool, int], plan: Plan) -> Captured:
        if len(self._graphs) >= MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        for old in [each for each in self._graphs if each[2] != key[2]]:  # the views are elsewhere now
            del self._graphs[old]
        # Kernels are compiled outside of the graph, by a step whose effects the graph repeats: K and
        # V are written twice, and states, which would advance twice, are put back.
        states = [each for each in self._decoder.memory.states if each is not None and plan.runs is not None]
        slots = None if plan.runs is None else plan.runs.slots.long()
        before = [each[slots] for each in states]
        self._step(plan)
        for each, old in zip(states, before, strict=True):
            each[slots] = old
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = self._step(plan)
        self._graphs[key] = Captured(graph, logits)
        return self._graphs[key]

    def _step(self, plan: Plan) -> Tensor:
        decoder = self._decoder
        for work in plan.works.values():
            append_cells(work.views, work.places, work.offsets, work.lengths, plan.cells, plan.positions)
            break  # the views are the same for all kinds of layers
        run = Pass(plan, decoder.memory, has_axes=decoder.spec.has_grid_positions)
        if self._is_lean and plan.n == 1:
            return lean.run(decoder, decoder.embed(run), run)
        return decoder.logits(decoder.run(run))
