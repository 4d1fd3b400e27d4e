"""A probe: how fast an open backend decodes, and how far its logits are from another's.

The best step counts, because other load can only make one slower. Distances are of log-probabilities, as
expected by the more exact backend: engines with 8-bit activations are 0.05 to 0.08 from exact, a kernel with
coarser ones is farther (stretto docs routing).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Backend, Batch, Decoding, DeviceRow
from stretto.cache.cells import Cells
from stretto.cache.slots import Moves, Slots
from stretto.sampling.params import SamplingParams

Floats = NDArray[np.float32]

TEXT = (
    "The quick brown fox jumps over the lazy dog. In the year 1969, two men walked on the Moon, and the "
    "whole world was watching them."
)
MAX_STEPS = 64
WARM_STEPS = 1  # of decoding, before the clock starts
DEVICE_WARM_STEPS = 3  # a GPU compiles kernels in its first steps, and then records them
TINY = np.float32(1e-20)
GREEDY = SamplingParams(temperature=0.0)
EXACTNESS = {"exact": 2, "high": 1, "standard": 0}


@dataclass(frozen=True)
class Sample:
    """What a probe of a backend found: decode speed, and logits of every token of the text."""

    tokens_per_second: float
    logits: Floats  # float32[n, n_vocab]
    exactness: int = 0  # the most exact candidate is what others are compared with


Probe = Callable[[Backend, Sequence[int], float], Sample]


def measure(backend: Backend, tokens: Sequence[int], seconds: float) -> Sample:
    """Run a text, then decode for at most so many seconds, with cells of the probe's own.

    The text and the first steps are not timed. Rows that are on a device are sampled there, as in use. It
    must be called before the backend is used: cells that others hold would be overwritten.
    """
    if backend.spec.is_encoder:
        return _measure_encoder(backend, tokens, seconds)
    slots = Slots(backend.n_slots, 0, backend.spec.recurrent) if backend.n_slots else None
    cells = Cells(backend.n_cells, slots)
    limit = min(backend.n_cells, backend.spec.context_length)
    text = list(tokens)[: max(1, limit - 2)]
    batch = Batch()
    for position, token in enumerate(text):
        batch.add(token, position, (0,), logits=True)
    batch.place(cells)
    rows = _forward(backend, batch)
    on_device = not isinstance(rows, np.ndarray)
    logits = rows if isinstance(rows, np.ndarray) else np.stack([row.numpy() for row in rows])
    best, token = 0.0, int(logits[-1].argmax())
    warm, room = DEVICE_WARM_STEPS if on_device else WARM_STEPS, limit - len(text)
    end = 0.0
    for number in range(min(MAX_STEPS, room)):
        begun = time.perf_counter()
        if number == min(warm, room - 1):
            end = begun + seconds
        if best and begun >= end:
            break
        token = _best(_forward(backend, Decoding(cells, [token], [0]))[0])
        if end:
            best = max(best, 1 / (time.perf_counter() - begun))
    return Sample(best, logits, EXACTNESS.get(backend.precision, 0))


def _measure_encoder(backend: Backend, tokens: Sequence[int], seconds: float) -> Sample:
    """Run a text again and again; hidden states stand for logits, scaled to a root mean square of 1."""
    text = list(tokens)[: min(backend.n_cells, backend.spec.context_length)]
    best, end = 0.0, 0.0
    for number in range(MAX_STEPS):
        batch = Batch()
        for position, token in enumerate(text):
            batch.add(token, position, (0,), logits=True)
        batch.place(Cells(backend.n_cells))
        begun = time.perf_counter()
        if number == WARM_STEPS:
            end = begun + seconds
        if best and begun >= end:
            break
        hidden = backend.hidden(batch)
        if end:
            best = max(best, len(text) / (time.perf_counter() - begun))
    size = np.sqrt((hidden**2).mean(axis=1, keepdims=True))
    return Sample(best, hidden / np.maximum(size, TINY), EXACTNESS.get(backend.precision, 0))


def distance(exact: Floats, other: Floats) -> float:
    """The expected distance of a token's log-probability, on average over the rows; infinite for NaN.

    >>> distance(logits, logits)
    0.0
    """
    if exact.shape != other.shape or not np.isfinite(other).all():
        return float("inf")
    right = _log_softmax(exact)
    return float((np.exp(right) * np.abs(right - _log_softmax(other))).sum(axis=1).mean())


def _forward(backend: Backend, batch: Batch) -> Floats | Sequence[DeviceRow]:
    _apply(backend, batch.moves)
    return backend.forward(batch)


def _best(row: Floats | DeviceRow) -> int:
    """The most probable token, found where the row is."""
    if isinstance(row, np.ndarray):
        return int(row.argmax())
    return row.sample(GREEDY, [], 0, 0.0, None)


def _apply(backend: Backend, moves: Moves) -> None:
    if moves.cleared:
        backend.clear_slots(np.array(moves.cleared, np.int32))
    if moves.targets:
        backend.copy_slots(np.array(moves.sources, np.int32), np.array(moves.targets, np.int32))


def _log_softmax(rows: Floats) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result
