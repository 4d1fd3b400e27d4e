"""The speed of this machine, measured in about a second and stored in a file next to the models."""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stretto.errors import StrettoError
from stretto.hardware.limits import ROOT
from stretto.weights.files import atomic_write, read_records

FILE = "hardware.json"
REVISION = 2  # of the method: figures of another one are not comparable, and not used
RETAKE_SECONDS = 600.0  # after which figures of a busy machine are measured again
BUSY_CORES, BUSY_SHARE = 0.25, 0.1  # of other processes: in cores, and as a share of all
_SECONDS = 0.12  # for each of the six figures
_MODEL_BYTES = 100_000_000  # a small model, which a large cache may hold
_MIN_BUFFER_BYTES = 2**24  # smaller ones cannot be measured


@dataclass(frozen=True)
class Rate:
    """A figure with one thread, and with one on each usable core."""

    one: float
    all: float


@dataclass(frozen=True)
class Bandwidth:
    """GB/s of reading memory: `memory` from a buffer larger than the caches, `model` from one of 100 MB.

    `memory_nbytes` and `model_nbytes` are the actual sizes: at most a quarter of the free memory.
    """

    memory: Rate
    memory_nbytes: int
    model: Rate
    model_nbytes: int


@dataclass(frozen=True)
class IntegerPeak:
    """GMAC/s of int8 multiply-accumulates, by the fastest instruction there is for them."""

    instruction: str
    rate: Rate


@dataclass(frozen=True)
class Speed:
    """All measured speeds. `is_busy`: others used the processor meanwhile, so that it may be faster.

    `taken` is when, in seconds since 1970.
    """

    bandwidth: Bandwidth | None = None
    integer_peak: IntegerPeak | None = None
    is_busy: bool = False
    taken: float = field(default=0.0, compare=False)

    @property
    def is_due(self) -> bool:
        """Whether to measure again: the machine was busy, some time ago."""
        return self.is_busy and not 0 <= time.time() - self.taken < RETAKE_SECONDS


def measure(native: Any, threads: int, cache_bytes: int, memory_free: int | None, root: Path = ROOT) -> Speed:
    """Measure with the native core; figures that it lacks, or that need too much memory, are None.

    `cache_bytes` is the size of the last caches together.
    """
    bandwidth = peak = None
    others = _Others(root)
    nbytes = min(2**30, (memory_free or 2**30) // 4, max(2**28, 2 * cache_bytes))
    # No threads, no memory, an older native core: no reason to fail.
    with suppress(AttributeError, MemoryError, RuntimeError, ValueError):
        if nbytes >= _MIN_BUFFER_BYTES:
            memory = native.read_bandwidth(nbytes, [1, threads], _SECONDS)
            model_nbytes = min(_MODEL_BYTES, nbytes)
            model = native.read_bandwidth(model_nbytes, [1, threads], _SECONDS)
            bandwidth = Bandwidth(Rate(*memory), nbytes, Rate(*model), model_nbytes)
    with suppress(AttributeError, MemoryError, RuntimeError, ValueError):
        best = native.dot_instructions()[0]
        rates = [native.integer_peak(best, count, _SECONDS) for count in (1, threads)]
        peak = IntegerPeak(best, Rate(*rates))
    return Speed(bandwidth, peak, others.are_busy(), time.time())


class _Others:
    """The processor time of all other processes since it was made, as the system counts it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._wall, self._own, self._all = time.perf_counter(), time.process_time(), _busy_seconds(root)

    def are_busy(self) -> bool:
        """Whether they took a quarter of a core, and a tenth of all cores, or more; False if unknown."""
        wall, now = time.perf_counter() - self._wall, _busy_seconds(self._root)
        if now is None or self._all is None or wall < _SECONDS:
            return False
        cores = (now - self._all - (time.process_time() - self._own)) / wall
        return cores >= max(BUSY_CORES, BUSY_SHARE * (os.cpu_count() or 1))


def _busy_seconds(root: Path) -> float | None:
    """Seconds that all processors have worked since the system started; None where it does not say."""
    try:
        name, *ticks = (root / "proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, system, _idle, _waiting, *rest = map(int, ticks)
        return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK") if name == "cpu" else None
    except (OSError, ValueError):
        return None


def is_faster(one: Speed, other: Speed) -> bool:
    """Whether speeds are higher than others, by the bandwidth of all cores."""
    rates = [speed.bandwidth.memory.all if speed.bandwidth else 0.0 for speed in (one, other)]
    return rates[0] > rates[1]


def recall(key: str, path: Path | None = None) -> Speed | None:
    """The stored speeds of this key; None if there are none, or the file is damaged."""
    try:
        entry = read_records(path or _default())[key]
        found = Speed(_bandwidth(entry["bandwidth"]), _integer_peak(entry["integer_peak"]))
        if entry.get("is_busy") is not True:
            return found
        return replace(found, is_busy=True, taken=_figure(entry["taken"]))
    except (OSError, StrettoError, KeyError, OverflowError, TypeError, ValueError):
        return None


def remember(key: str, speed: Speed, path: Path | None = None) -> None:
    """Store speeds for `recall`, next to those of other machines; errors are ignored."""
    with suppress(OSError, StrettoError):
        path = path or _default()
        try:
            known = read_records(path)
        except (OSError, ValueError):
            known = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(json.dumps({**known, key: asdict(speed)}, indent=2).encode() + b"\n")


def _default() -> Path:
    from stretto.weights.hub import Store

    return Store.default().home / FILE


def _bandwidth(entry: Any) -> Bandwidth | None:
    if entry is None:
        return None
    return Bandwidth(
        memory=_rate(entry["memory"]),
        memory_nbytes=int(_figure(entry["memory_nbytes"])),
        model=_rate(entry["model"]),
        model_nbytes=int(_figure(entry["model_nbytes"])),
    )


def _integer_peak(entry: Any) -> IntegerPeak | None:
    if entry is None:
        return None
    if not isinstance(entry["instruction"], str):
        raise TypeError("no name")
    return IntegerPeak(entry["instruction"], _rate(entry["rate"]))


def _rate(entry: Any) -> Rate:
    return Rate(_figure(entry["one"]), _figure(entry["all"]))


def _figure(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("no number")
    if not (math.isfinite(value) and value > 0):
        raise ValueError("no speed")
    return value
