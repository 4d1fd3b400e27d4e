"""The backend of ONNX decoders: the engine's cells over graphs that have past and present tensors only.

K and V of all cells are in a pool on the host; each view of a batch is run as a causal call whose past is
gathered from it, or is what the last call left. What a causal graph cannot compute exactly is `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities
from stretto.backends.onnx.base import PoolBackend
from stretto.backends.onnx.calls import Caller
from stretto.backends.onnx.graph import DecoderGraph
from stretto.backends.onnx.kept import Presents
from stretto.backends.onnx.plan import Chain, check_exact, plan
from stretto.backends.onnx.pool import HeadPool
from stretto.backends.onnx.spec import DecoderSpec
from stretto.backends.onnx_session import OnnxSession

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
        self.capabilities = Capabilities(
            merge=graph.explicit,
            shift=decoder.is_rotated and graph.explicit,
            embeddings=False,
            hidden=False,
        )
        self.presents = Presents(pool, n_cells)
        self._caller = Caller(session, graph, pool, self.presents, self.spec.n_vocab)
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
        waves = plan(batch)
        placement = batch.placement
        assert placement is not None  # `plan` has asked
        waves = [turn for wave in waves for turn in _in_turn([self._pieces(each) for each in wave])]
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

    def _pieces(self, chain: Chain) -> list[Chain]:
        """A chain in parts, one after another, whose logits do not take too much memory."""
        most = len(chain) if self.graph.keep else max(1, MAX_LOGITS // self.spec.n_vocab)
        return [chain.part(first, first + most) for first in range(0, len(chain), most)]

    def _run(self, chains: Sequence[Chain], tokens: Ints, places: dict[int, int], logits: Floats) -> None:
        """Compute chains of one length, and take the rows of logits that are wanted."""
        n, chains = len(chains[0]), self.presents.arranged(chains)
        asked = [i for chain in chains for i, row in enumerate(chain.rows) if row in places]
        rows = self._caller.run(chains, tokens, n - min(asked, default=n - 1))
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
        self.presents.sync()

    def _before_writing(self, cells: Ints) -> None:
        self.presents.touch(cells)

    def close(self) -> None:
        """Free the session and the cache."""
        self.presents.clear()
        super().close()


def _in_turn(pieces: list[list[Chain]]) -> list[list[Chain]]:
    """The first parts of all chains, then the second parts, and so on."""
    most = max(len(parts) for parts in pieces)
    return [[parts[turn] for parts in pieces if len(parts) > turn] for turn in range(most)]
