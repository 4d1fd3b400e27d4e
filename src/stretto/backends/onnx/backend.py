"""The backend of ONNX decoders: the engine's cells over graphs that have past and present tensors only.

K and V of all cells are in a pool on the host; each view of a batch is run as a causal call whose past is
gathered from it, or is what the last call left. What a causal graph cannot compute exactly is `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities, FusedRun, NoSlots
from stretto.backends.onnx.calls import Caller
from stretto.backends.onnx.graph import DecoderGraph
from stretto.backends.onnx.kept import Presents
from stretto.backends.onnx.plan import Chain, check_exact, plan
from stretto.backends.onnx.pool import Pool
from stretto.backends.onnx.spec import DecoderSpec
from stretto.backends.onnx_session import OnnxSession
from stretto.errors import ModelError, Unsupported

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

MAX_ROWS = 64  # of one call
MAX_UNEVEN = 1.5  # the longest past of a call, compared with the shortest


class OnnxBackend(NoSlots):
    """Runs an ONNX decoder with a fixed number of cells."""

    name = "onnx"
    precision = "exact"

    def __init__(
        self, session: OnnxSession, graph: DecoderGraph, decoder: DecoderSpec, n_cells: int, threads: int
    ) -> None:
        self.session = session
        self.graph = graph
        self.decoder = decoder
        self.spec = decoder.spec
        self.n_cells = n_cells
        self.active_threads = threads
        self.capabilities = Capabilities(
            merge=graph.explicit,
            shift=decoder.is_rotated and graph.explicit,
            embeddings=False,
            hidden=False,
        )
        self.pool = Pool(graph.planes, n_cells, graph.type)
        self.presents = Presents(self.pool, n_cells)
        self.cell_bytes = self.pool.cell_bytes
        self.cell_layout = f"onnx {graph.type}, {_layout(graph)}"
        self._caller = Caller(session, graph, self.pool, self.presents)
        # Zeros of the mask in the middle of a text are exact where nothing counts tokens.
        self._ragged = graph.shares or (
            graph.explicit and graph.mask is not None and decoder.windows == () and graph.branch is None
        )

    @property
    def device(self) -> str:
        """The device that the session runs on."""
        return self.session.device

    def forward(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_vocab]."""
        waves = plan(batch)
        placement = batch.placement
        assert placement is not None  # `plan` has asked
        for wave in waves:
            check_exact(wave, placement.table, self.graph.explicit, self.decoder.windows)
        tokens, wanted = batch.tokens, batch.wanted
        self.presents.touch(placement.cells)
        logits = np.empty((len(wanted), self.spec.n_vocab), np.float32)
        places = {int(row): index for index, row in enumerate(wanted)}
        for wave in waves:
            for group in self._groups(wave):
                self._run(group, tokens, places, logits)
        return logits

    def _run(self, chains: Sequence[Chain], tokens: Ints, places: dict[int, int], logits: Floats) -> None:
        """Compute chains of one length, and take the rows of logits that are wanted."""
        n, chains = len(chains[0]), self.presents.arranged(chains)
        asked = [i for chain in chains for i, row in enumerate(chain.rows) if row in places]
        rows = self._caller.run(chains, tokens, n - min(asked, default=n - 1))
        if rows.ndim != 3 or rows.shape[2] != self.spec.n_vocab or rows.shape[1] > n:
            raise ModelError(
                f"logits of shape {list(rows.shape)}, but there are {self.spec.n_vocab} tokens",
                path=self.graph.file.path,
                field="output 'logits'",
            )
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
        if len(group) == MAX_ROWS:
            return False
        if self.graph.shares and n > 1 and longest:  # the operator takes one row then
            return False
        if shortest == longest:
            return True
        return self._ragged and shortest > 0 and longest <= MAX_UNEVEN * shortest + 64

    def hidden(self, batch: Batch) -> Floats:
        """A graph returns logits only."""
        self.capabilities.require("hidden", self.name)
        raise AssertionError  # the line above has raised

    def loop(self, run: FusedRun) -> tuple[list[int], Floats]:
        """Only the native backend has a loop of its own."""
        raise Unsupported(f"the {self.name} backend has no fused loop; backend='native' has")

    # -- cells --

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy K and V of cells `source` to cells `target`."""
        self.presents.sync()
        self.presents.touch(target)
        self.pool.copy(source, target)

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Rotate keys by `delta` positions, with the rope that config.json gives."""
        self.capabilities.require("shift", self.name)
        self.presents.sync()
        self.presents.touch(cells)
        self.pool.rotate(cells, delta, self.decoder.ropes)

    def read_cells(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], plane by plane."""
        self.presents.sync()
        return self.pool.read(cells)

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """Write K and V of `cells`, in the format of `read_cells`."""
        self.presents.sync()
        self.presents.touch(cells)
        self.pool.write(cells, data)

    def close(self) -> None:
        """Free the session and the cache."""
        self.presents.clear()
        self.pool.arrays.clear()
        self.session.close()


def _layout(graph: DecoderGraph) -> str:
    """The planes in words, for the check of data from elsewhere."""
    kinds = list(dict.fromkeys((plane.heads, plane.size) for plane in graph.planes))
    words = " ".join(f"{heads}x{size}" for heads, size in kinds)
    return f"{graph.n_layer} layers, heads {words}"
