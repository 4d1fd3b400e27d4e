"""A probe: how fast an open backend decodes, and how far its logits are from another's.

The best step counts, because other load can only make one slower. Distances are of log-probabilities, as
expected by the more exact backend: engines with 8-bit activations are 0.05 to 0.08 from exact, a kernel with
coarser ones is farther (stretto docs routing).

Figures are kept in a file next to the models, so that a model is probed once. An entry belongs to a model
file, the machine, the options that change speed, and the versions of everything that was compared: whatever
changes is measured again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import Backend, Batch, Decoding, DeviceRow, Settles
from stretto.cache.cells import Cells
from stretto.cache.slots import Moves, Slots
from stretto.errors import StrettoError
from stretto.sampling.params import SamplingParams
from stretto.weights.files import atomic_write, read_records

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

# Of remembered figures. A damaged file is no error, and is replaced.
FILE = "routes.json"
MAX_ENTRIES = 256
MAX_BYTES = 1 << 22  # of a file that is read


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
    if isinstance(backend, Settles):
        backend.settle()
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


# -- remembered figures --


@dataclass(frozen=True)
class Figures:
    """The result of one candidate's probe; `problem` says why it must not be taken, "" if it may."""

    backend: str
    device: str
    tokens_per_second: float = 0.0
    distance: float = 0.0
    problem: str = ""

    @property
    def name(self) -> str:
        """As "native on cpu"."""
        return f"{self.backend} on {self.device}"


def recall(key: str, path: Path | None = None) -> list[Figures] | None:
    """The stored figures of this key; None if there are none, or the file is damaged."""
    try:
        return [_read_figures(entry) for entry in read_records(path or default_path(), MAX_BYTES)[key]]
    except (OSError, StrettoError, KeyError, OverflowError, TypeError, ValueError):
        return None


def remember(key: str, figures: list[Figures], path: Path | None = None) -> None:
    """Store figures for `recall`; the oldest entries go. Errors are ignored: it is measured again then."""
    with suppress(OSError, StrettoError):
        path = path or default_path()
        try:
            known = read_records(path, MAX_BYTES)
        except (OSError, ValueError):
            known = {}
        known.pop(key, None)
        kept = dict(list(known.items())[-(MAX_ENTRIES - 1) :])
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = [asdict(each) for each in figures]
        with atomic_write(path) as file:
            file.write(json.dumps({**kept, key: entry}, indent=1, allow_nan=False).encode() + b"\n")


def default_path() -> Path:
    """The file in the folder of the models."""
    from stretto.weights.hub import Store

    return Store.default().home / FILE


def _read_figures(entry: Any) -> Figures:
    texts = [entry[name] for name in ("backend", "device", "problem")]
    numbers = [entry[name] for name in ("tokens_per_second", "distance")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("no name")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise TypeError("no number")
        if not (math.isfinite(number) and number >= 0):
            raise ValueError("no figure")
    return Figures(texts[0], texts[1], float(numbers[0]), float(numbers[1]), texts[2])
