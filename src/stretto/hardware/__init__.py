"""This machine's hardware, and how much of it this process may use.

    from stretto import hardware

    hardware.usable_cores()        # what `threads=` is by default
    machine = hardware.probe()     # measures for a second, the first time
    machine.memory_free, machine.bandwidth, machine.integer_peak

Limits of containers count: two of sixty-four cores are two cores. Unknown facts are None; only a
STRETTO_KERNELS that cannot be is an error.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stretto.hardware import cpu, gpus, kernel_sets, limits, mac, speed
from stretto.hardware.cpu import Cache
from stretto.hardware.gpus import Gpu
from stretto.hardware.limits import ROOT
from stretto.hardware.speed import Bandwidth, IntegerPeak, Rate, Speed

__all__ = ["Bandwidth", "Cache", "Gpu", "Hardware", "IntegerPeak", "Rate", "probe", "usable_cores"]


@dataclass(frozen=True)
class Hardware:
    """The result of `probe`. Sizes are in bytes.

    `cores_physical` and `cores_logical` are the machine's (None: not known); `cores_usable` is what this
    process should use, `cpu_quota` the share of processor time it is granted, as in 1.5 processors.
    `memory_total` and `memory_free` are what it can have, within its limits. `instruction_sets` are those
    that both the processor and the operating system allow; `kernels` names the native kernels in use,
    `kernel_sets` all that could be. `was_busy` tells that other processes used the processor while speeds
    were measured; that is done again by a later probe.
    """

    cpu: str
    vendor: str | None
    architecture: str
    cores_physical: int | None
    cores_logical: int
    cores_usable: int
    cpu_quota: float | None
    instruction_sets: tuple[str, ...]
    kernels: str
    caches: tuple[Cache, ...]
    memory_total: int | None
    memory_free: int | None
    bandwidth: Bandwidth | None
    integer_peak: IntegerPeak | None
    gpus: tuple[Gpu, ...]
    kernel_sets: tuple[str, ...] = ()
    was_busy: bool = False


def usable_cores() -> int:
    """The default number of threads: the cores that this process may use, hyperthreads not counted.

    >>> usable_cores()
    2
    """
    if _is_mac():
        return mac.usable_cores(mac.facts()) or cpu.read().threads
    return cores_at(ROOT, limits.allowed_cpus())


def cpu_name() -> str:
    """The processor and how many of its cores are used, as figures that are stored are named."""
    processor = mac.cpu(mac.facts()) if _is_mac() else cpu.read(ROOT)
    return f"{processor.name}, {processor.architecture}, {usable_cores()} cores"


def free_memory() -> int | None:
    """Bytes that this process can have, with page cache that the system would evict; None if unknown."""
    return mac.memory(mac.facts())[1] if _is_mac() else limits.memory(ROOT)[1]


def main_memory() -> int | None:
    """Bytes of the machine's memory within this process's limits, used or not; None if unknown."""
    return mac.memory(mac.facts())[0] if _is_mac() else limits.memory(ROOT)[0]


def total_memory() -> int | None:
    """Bytes that weights can be in at most: memory within this process's limits, and that of GPUs."""
    total = main_memory()
    return None if total is None else total + sum(gpu.memory_total or 0 for gpu in gpus.find())


def probe(measure: bool = True, *, refresh: bool = False) -> Hardware:
    """Detect the machine's hardware.

    Speeds are measured once, for about a second, and stored in the folder of the models.
    With `measure=False` only stored ones are returned; `refresh=True` measures again.

    >>> probe().instruction_sets
    ('avx2', 'fma', 'f16c')
    """
    native = load_native()
    if _is_mac():
        facts = mac.facts()
        processor, memory, quota = mac.cpu(facts), mac.memory(facts), None
        usable = mac.usable_cores(facts) or processor.threads
    else:
        processor, memory, quota = cpu.read(ROOT), limits.memory(ROOT), limits.quota(ROOT)
        usable = cores_at(ROOT, limits.allowed_cpus())
    sets = tuple(native.kernel_names()) if hasattr(native, "kernel_names") else ()
    known = _speed(native, processor, usable, memory[1], measure, refresh)
    return Hardware(
        cpu=processor.name,
        vendor=processor.vendor,
        architecture=processor.architecture,
        cores_physical=processor.cores,
        cores_logical=processor.threads,
        cores_usable=usable,
        cpu_quota=quota,
        instruction_sets=tuple(native.cpu_features()) if hasattr(native, "cpu_features") else processor.flags,
        kernels=kernel_sets.select(sets) if sets else "portable",
        caches=processor.caches,
        memory_total=memory[0],
        memory_free=memory[1],
        bandwidth=known.bandwidth,
        integer_peak=known.integer_peak,
        gpus=gpus.find(),
        kernel_sets=sets,
        was_busy=known.is_busy,
    )


def cores_at(root: Path, allowed: frozenset[int] | None) -> int:
    """The cores among the allowed processors, at most as many as the CPU quota."""
    cores = cpu.cores_among(allowed, root) or len(allowed or ()) or cpu.read(root).threads
    return min(cores, limits.whole_cpus(limits.quota(root)) or cores)


def _speed(
    native: Any, processor: cpu.Cpu, usable: int, memory_free: int | None, measure: bool, refresh: bool
) -> Speed:
    """The stored speeds, or newly measured ones."""
    version = f"stretto {kernel_sets.version()}, probe {speed.REVISION}"
    key = f"{processor.name}, {processor.architecture}, {usable} cores, {version}"
    before = speed.recall(key)
    if not refresh and before and not (measure and before.is_due):
        return before
    if not (measure or refresh):
        return Speed()
    last = processor.caches[-1] if processor.caches else None
    known = speed.measure(native, usable, last.nbytes * last.count if last else 0, memory_free, ROOT)
    if known.is_busy and before and speed.is_faster(before, known):
        known = replace(before, taken=known.taken)
    if known.bandwidth and known.integer_peak:  # a failure is tried again next time
        speed.remember(key, known)
    return known


def load_native() -> Any:
    """The native core, or None; an older build may lack the probe."""
    try:
        from stretto import _native
    except ImportError:
        return None
    return _native


def _is_mac() -> bool:
    return platform.system() == "Darwin"
