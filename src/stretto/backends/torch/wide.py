"""Rows with more candidates than one program can hold, which are rare: their cuts are searched in turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from stretto.backends.torch.device import Tensor, capturing

STRETCH = 128  # logits that have one peak, as in the native sampler
TILE = 32  # stretches of a program that reads a whole row
WAYS = 32  # keys that are tried in one turn
STATE = 4  # integers of a row's state
# Of 2^32 keys a 33rd part is left each time, so that the seventh turn finds a cut, and the eighth looks
# what is above it. There are two cuts; one more turn makes use of the last one's numbers.
TURNS = 2 * 8 + 1
WARPS = 8
EXACT = {"enable_fp_fusion": False}  # no contraction, as on the host


class Buffers(NamedTuple):
    """Tensors of a sampler (sampler.py)."""

    block: Tensor
    peaks: Tensor
    masks: Tensor
    weights: Tensor
    tokens: Tensor
    following: Tensor
    steps: Tensor


class WideRows:
    """Samples the rows that have been marked as wide. Its memory is taken on first use."""

    def __init__(self, buffers: Buffers, n_vocab: int) -> None:
        self._of = buffers
        self._n_vocab = n_vocab
        self._n_peaks = buffers.peaks.shape[1]
        self._n_parts = -(-self._n_peaks // TILE)
        self._work: tuple[Tensor, ...] = ()
        self._graphs: dict[int, Callable[[], Any]] = {}

    def run(self, bucket: int) -> None:
        """Sample them, of the first `bucket` rows."""
        if not self._work:
            self._allocate()
        if not self._of.tokens.is_cuda:
            self._launch(bucket)
            return
        if bucket not in self._graphs:
            self._graphs[bucket] = self._capture(bucket)
        self._graphs[bucket]()

    def _allocate(self) -> None:
        import torch

        n, device = len(self._of.tokens), self._of.tokens.device
        parts = (2, n, self._n_parts, WAYS)
        self._work = (
            torch.zeros((TURNS, n, STATE), dtype=torch.int64, device=device),
            torch.zeros((TURNS, n), dtype=torch.float64, device=device),
            torch.zeros(parts, dtype=torch.int32, device=device),
            torch.zeros(parts, dtype=torch.float64, device=device),
        )

    def _capture(self, bucket: int) -> Callable[[], Any]:
        import torch

        marked = self._of.tokens.clone()
        self._launch(bucket)  # compiles
        self._of.tokens.copy_(marked)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph):
            self._launch(bucket)
        replay: Callable[[], Any] = graph.replay
        return replay

    def _launch(self, bucket: int) -> None:
        from stretto.backends.torch.kernels import search

        of, (states, sums, counts, heavies) = self._of, self._work
        sizes = (self._n_vocab, self._n_peaks, of.masks.shape[1], self._n_parts)
        peaks, parts = _power(self._n_peaks), _power(self._n_parts)
        grid = (self._n_parts, bucket)
        for turn in range(TURNS):
            search.search[grid](
                of.block, of.peaks, of.masks, of.weights, of.tokens, states, sums, counts, heavies, *sizes,
                turn, states.shape[1], PEAKS=peaks, PARTS=parts, TILE=TILE, num_warps=WARPS, **EXACT,
            )  # fmt: skip
        search.tally[grid](
            of.block, of.peaks, of.masks, of.tokens, states[-1], counts, heavies, *sizes,
            PEAKS=peaks, TILE=TILE, **EXACT,
        )  # fmt: skip
        search.pick[(bucket,)](
            of.block, of.peaks, of.masks, of.tokens, of.following, of.steps, states[-1], counts, heavies,
            *sizes, PEAKS=peaks, PARTS=parts, TILE=TILE, **EXACT,
        )  # fmt: skip


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()
