"""Sampling on the device: parameters of many rows in one block, a few launches, tokens back.

All buffers are static, and no launch depends on the numbers in them: `launch` can be captured in a CUDA
graph, also together with the pass that makes the logits, where `following` is the input of the next pass. A
row's random number comes with it, or is made on the device from its stream (`RandomStream`), `steps`
numbers ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stretto.backends.torch.device import Tensor, capturing
from stretto.backends.torch.penalties import Entries
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import RandomStream

# Rows with more candidates than one program can hold, which are rare: their cuts are searched in turns.

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


Mask = NDArray[np.uint32]

# Of one row: its distance from `peaks` in floats (0: no row), uniform, top-p, seed, index, draw (−1:
# `uniform` is given), temperature, the logarithm of min-p, top-k, the slot of its mask (−1: none).
ROW = Struct("<qddQQqffii")
CANDIDATES = 1024  # that one program can hold
ALIGNMENT = 16  # bytes, of rows: they are read in vectors
SELECT_WARPS = 8
WIDE = -9  # a row that `select` leaves to others
MAX_TOP_K = (1 << 31) - 1


class Ask(NamedTuple):
    """What one row is sampled with."""

    address: int  # of float32[n_vocab] on the device, a multiple of `ALIGNMENT`
    params: SamplingParams
    uniform: float = 0.0
    mask: Mask | None = None
    entries: Entries | None = None  # penalties and bias
    stream: RandomStream | None = None  # makes its numbers on the device, from its next one on


class Sampler:
    """The buffers of a device, and the launches that use them."""

    def __init__(
        self, device: Any, n_vocab: int, capacity: int = 256, following: Tensor | None = None
    ) -> None:
        import torch

        self._torch = torch
        self.device = torch.device(device)
        self.n_vocab, self.capacity = n_vocab, capacity
        self.n_peaks = -(-n_vocab // STRETCH)
        self._n_parts = -(-self.n_peaks // TILE)
        self._n_words = -(-n_vocab // 32)
        self._sizes = n_vocab, self.n_peaks, self._n_words
        self._peaks_power = _power(self.n_peaks)
        self._on_cuda = self.device.type == "cuda"
        self._host_block = self._pinned((capacity, ROW.size // 8), torch.int64)
        self._block = self._empty((capacity, ROW.size // 8), torch.int64)
        numbers = self._host_block.numpy()
        self._bytes = memoryview(numbers).cast("B")
        self._uniforms = numbers.view(np.float64)[:, 1]
        self._written: tuple[list[SamplingParams], int, int, bool] | None = None  # by `sample_again`
        self._peaks = self._empty((capacity, self.n_peaks), torch.float32)
        self._stretches = self._empty((capacity, self.n_peaks), torch.int32)
        self._weights = self._empty((capacity, self.n_peaks), torch.float32)
        self._values = self._empty((capacity, CANDIDATES), torch.float32)
        self._ids = self._empty((capacity, CANDIDATES), torch.int32)
        self._shares = self._empty((capacity, CANDIDATES), torch.float64)
        self._lows = self._empty((capacity,), torch.float32)
        self._masks = self._empty((capacity, self._n_words), torch.int32)
        self._host_masks = self._pinned((capacity, self._n_words), torch.int32)
        self.tokens = self._empty((capacity,), torch.int32)
        self._host_tokens = self._pinned((capacity,), torch.int32)
        # Gets the tokens too, where errors are 0: it may be the input of the next pass.
        self.following = self._empty((capacity,), torch.int32) if following is None else following
        self.steps = self._empty((1,), torch.int64)
        self._graphs: dict[tuple[int, bool], Callable[[], None]] = {}
        self._wide = WideRows(
            Buffers(
                self._block, self._peaks, self._masks, self._weights, self.tokens, self.following, self.steps
            ),
            n_vocab,
        )
        self._sampled = torch.cuda.Event() if self._on_cuda else None

    @property
    def _rows(self) -> tuple[Tensor, ...]:
        """What all kernels read: the rows that are asked for, their peaks and their masks."""
        return self._block, self._peaks, self._masks

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        return self._torch.zeros(shape, dtype=dtype, device=self.device)

    def _pinned(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        return self._torch.zeros(shape, dtype=dtype, pin_memory=self._on_cuda)

    # -- one step --

    def sample(self, asks: Sequence[Ask]) -> list[int]:
        """A token of each row, or a code of `sampler.WRONG`; waits for the device."""
        tokens: list[int] = []
        for start in range(0, len(asks), self.capacity):
            some = asks[start : start + self.capacity]
            bucket = 1 << (len(some) - 1).bit_length()
            is_whole = self.write(some, min(bucket, self.capacity))
            entries = self._change(some)
            tokens += self._run(min(bucket, self.capacity), is_whole)[: len(some)]
            if entries is not None:
                self._restore(*entries)
        return tokens

    def queue(self, ask: Ask) -> None:
        """Have one row sampled without waiting; `take` waits for the token. One at a time."""
        is_whole = self.write([ask], 1)
        entries = self._change([ask])
        self._start(1, is_whole)
        if entries is not None:
            self._restore(*entries)

    def take(self) -> int:
        """The token of the row that was queued, a code of `sampler.WRONG`, or `WIDE`: sample it otherwise."""
        return self.take_all(1)[0]

    def sample_again(
        self, address: int, stride: int, params: list[SamplingParams], uniforms: list[float]
    ) -> list[int]:
        """`sample` of rows one behind the other; what is written already is not written again.

        The list of parameters must be the one of the last call only if none of them has changed.
        """
        bucket, is_whole = self._write_again(address, stride, params, uniforms)
        return self._run(bucket, is_whole)[: len(params)]

    def queue_again(
        self, address: int, stride: int, params: list[SamplingParams], uniforms: list[float]
    ) -> None:
        """`sample_again` without waiting; `take_all` waits for the tokens."""
        self._start(*self._write_again(address, stride, params, uniforms))

    def take_all(self, n: int) -> list[int]:
        """The tokens of n rows that were queued; `WIDE` or a code of `sampler.WRONG` where there is none."""
        if self._sampled is not None:
            self._sampled.synchronize()
        tokens: list[int] = self._host_tokens[:n].tolist()
        return tokens

    def _write_again(
        self, address: int, stride: int, params: list[SamplingParams], uniforms: list[float]
    ) -> tuple[int, bool]:
        """Write what has changed; the bucket, and whether rows are drawn from whole."""
        n = len(params)
        bucket = min(1 << (n - 1).bit_length(), self.capacity)
        written = self._written
        if written is None or written[0] is not params or written[1:3] != (address, stride):
            asks = [Ask(address + i * stride, each) for i, each in enumerate(params)]
            is_whole = self.write(asks, bucket)
            self._written = written = params, address, stride, is_whole
        self._uniforms[:n] = uniforms
        return bucket, written[3]

    def write(self, asks: Sequence[Ask], bucket: int) -> bool:
        """Put parameters into the host's block, masks onto the device; return whether `launch` needs `whole`.

        Rows beyond those up to `bucket` are none.
        """
        self._written = None
        base, is_whole = self._peaks.data_ptr(), False
        slots = self._upload_masks([ask.mask for ask in asks if ask.mask is not None])
        for i, ask in enumerate(asks):
            params, stream = ask.params, ask.stream
            few = 0 < params.top_k < self.n_vocab
            is_whole |= not few and (params.top_p < 1.0 or params.min_p <= 0.0)
            ROW.pack_into(
                self._bytes,
                i * ROW.size,
                (ask.address - base) // 4,
                ask.uniform,
                params.top_p,
                0 if stream is None else stream.seed,
                0 if stream is None else stream.index,
                -1 if stream is None else stream.draws,
                params.temperature,
                math.log(params.min_p) if params.min_p > 0 else -math.inf,
                min(params.top_k, MAX_TOP_K),
                -1 if ask.mask is None else next(slots),
            )
        self._host_block[len(asks) : bucket].zero_()
        return is_whole

    def _upload_masks(self, masks: list[Mask]) -> Any:
        """Send the masks to the device; return an iterator over their slots."""
        words = self._host_masks.numpy()
        for i, mask in enumerate(masks):
            words[i] = mask[: self._n_words].view(np.int32)
        if masks:
            self._masks[: len(masks)].copy_(self._host_masks[: len(masks)], non_blocking=True)
        return iter(range(len(masks)))

    def upload(self, bucket: int) -> None:
        """Send the block to the device."""
        self._block[:bucket].copy_(self._host_block[:bucket], non_blocking=True)

    def launch(self, bucket: int, *, whole: bool, following: Tensor | None = None) -> None:
        """Sample the rows of the block into `tokens`, and into int32 `following`, where errors are 0.

        Rows with a great many candidates get `WIDE`; rows that are drawn from whole need `whole`.
        """
        from stretto.backends.torch.kernels import search

        following, rows = self.following if following is None else following, self._rows
        self._launch_peaks(bucket)
        if whole:
            search.weigh[(self._n_parts, bucket)](
                *rows, self._weights, *self._sizes, PEAKS=self._peaks_power, TILE=TILE, **EXACT
            )
        self._launch_select(bucket, following, lists=False)
        if whole:
            search.draw_whole[(bucket,)](
                *rows, self._weights, self.tokens, following, self.steps, *self._sizes,
                PEAKS=self._peaks_power, num_warps=SELECT_WARPS, **EXACT,
            )  # fmt: skip

    def _launch_select(self, bucket: int, following: Tensor, lists: bool) -> None:
        from stretto.backends.torch.kernels import sample

        sample.select[(bucket,)](
            *self._rows, self._stretches, self._weights, self._values, self._ids, self._shares, self._lows,
            self.tokens, following, self.steps, *self._sizes, PEAKS=self._peaks_power, LIST=lists,
            num_warps=SELECT_WARPS, **EXACT,
        )  # fmt: skip

    def _launch_peaks(self, bucket: int) -> None:
        from stretto.backends.torch.kernels import sample

        sample.find_peaks[(self._n_parts, bucket)](*self._rows, *self._sizes, TILE=TILE, **EXACT)

    def _run(self, bucket: int, whole: bool) -> list[int]:
        """Sample the rows of the host's block and wait for the tokens."""
        self._start(bucket, whole)
        tokens = self._fetch(bucket)
        if WIDE in tokens:
            self._wide.run(bucket)
            self._host_tokens[:bucket].copy_(self.tokens[:bucket], non_blocking=True)
            tokens = self._fetch(bucket)
        return tokens

    def _start(self, bucket: int, whole: bool) -> None:
        """Queue the sampling of the host's block, and note when its tokens are there."""
        if self._sampled is None:
            self._pass(bucket, whole)
        else:
            self._replay(bucket, whole)
            self._sampled.record()

    def _fetch(self, bucket: int) -> list[int]:
        if self._on_cuda:
            self._torch.cuda.current_stream().synchronize()
        tokens: list[int] = self._host_tokens[:bucket].tolist()
        return tokens

    def _replay(self, bucket: int, whole: bool) -> None:
        """`_pass` by a graph, which is captured on first use."""
        replay = self._graphs.get((bucket, whole))
        if replay is None:
            self._pass(bucket, whole)  # compiles
            graph = self._torch.cuda.CUDAGraph()
            with capturing(graph):
                self._pass(bucket, whole)
            replay = self._graphs[bucket, whole] = graph.replay
        replay()

    def _pass(self, bucket: int, whole: bool) -> None:
        self.upload(bucket)
        self.launch(bucket, whole=whole)
        self._host_tokens[:bucket].copy_(self.tokens[:bucket], non_blocking=True)

    # -- penalties and bias --

    def _change(self, asks: Sequence[Ask]) -> tuple[Tensor, Tensor] | None:
        """Change single logits in place; returns what `_restore` puts back."""
        if all(ask.entries is None for ask in asks):
            return None
        parts = [ask.entries.words(ask.address) for ask in asks if ask.entries is not None]
        words = self._torch.from_numpy(np.concatenate(parts))
        if self._on_cuda:  # or else the copy would wait for all that is queued
            words = words.pin_memory().to(self.device, non_blocking=True)
        saved = self._empty((len(words),), self._torch.float32)
        self._launch_change(words, saved, restore=False)
        return words, saved

    def _restore(self, words: Tensor, saved: Tensor) -> None:
        self._launch_change(words, saved, restore=True)

    def _launch_change(self, words: Tensor, saved: Tensor, restore: bool) -> None:
        from stretto.backends.torch.kernels import sample

        block = 128
        sample.change[(-(-len(words) // block),)](
            words, saved, len(words), RESTORE=restore, BLOCK=block, **EXACT
        )

    # -- log-probabilities --

    def measure(self, asks: Sequence[Ask], tokens: Sequence[int]) -> list[Measured | None]:
        """Log-probabilities of tokens and of the `top_k` best of each row; None: too many for the device."""
        found: list[Measured | None] = []
        for start in range(0, len(asks), self.capacity):
            some = asks[start : start + self.capacity]
            found += self._measure(some, tokens[start : start + len(some)])
        return found

    def _measure(self, asks: Sequence[Ask], tokens: Sequence[int]) -> list[Measured | None]:
        from stretto.backends.torch.kernels import sample

        n = len(asks)
        self.write(asks, n)
        self._host_block[:n, 5] = self._torch.tensor(
            tokens, dtype=self._torch.int64
        )  # in the place of the draw
        self.upload(n)
        self._launch_peaks(n)
        sums = self._empty((n, self._n_parts + 1), self._torch.float64)
        sample.sum_exponentials[(self._n_parts, n)](
            *self._rows, sums, *self._sizes, self._n_parts, PEAKS=self._peaks_power, TILE=TILE, **EXACT
        )
        self._launch_select(n, self.following, lists=True)
        counts, values, ids = (x[:n].cpu().numpy() for x in (self.tokens, self._values, self._ids))
        everything = zip(counts.tolist(), values, ids, sums.cpu().numpy(), asks, strict=True)
        return [_measured(n, some, of, parts, ask.params.top_k) for n, some, of, parts, ask in everything]


Measured = tuple[float, list[tuple[int, float]]]  # of the token, and of the best ones with their ids


def _measured(
    count: int, values: NDArray[np.float32], ids: NDArray[np.int32], sums: NDArray[np.float64], n_top: int
) -> Measured | None:
    """Log-probabilities from what the device has found."""
    if not 0 < count <= CANDIDATES:
        return None
    values, ids = values[:count], ids[:count]
    norm = float(values.max()) + math.log(math.fsum(sums[:-1]))
    order = np.lexsort((ids, -values))[:n_top]
    return float(sums[-1]) - norm, [(int(ids[i]), float(values[i]) - norm) for i in order]
