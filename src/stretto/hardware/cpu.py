"""The processor as Linux describes it: its name, cores, caches and instruction sets."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from stretto.hardware import limits
from stretto.hardware.limits import ROOT

CPUS = "sys/devices/system/cpu"

# The kernel's names -> ours, in our order. It omits those that it does not support itself.
_FLAGS = {
    **{name: name for name in ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq")},
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx_vnni": "avxvnni",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "asimd": "neon",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "asimdhp": "fp16",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}

# ARM processors report numbers instead of names: the maker of the design, and the design.
_MAKERS = {0x41: "ARM", 0x42: "Broadcom", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA"}
_MAKERS |= {0x50: "Applied Micro", 0x51: "Qualcomm", 0x53: "Samsung", 0x61: "Apple", 0xC0: "Ampere"}
_DESIGNS = {
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse N1",
    (0x41, 0xD40): "Neoverse V1",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD49): "Neoverse N2",
    (0x41, 0xD4F): "Neoverse V2",
    (0x41, 0xD84): "Neoverse V3",
    (0x41, 0xD8E): "Neoverse N3",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}


@dataclass(frozen=True)
class Cache:
    """A cache: `nbytes` is the size of one, and there are `count` of them."""

    name: str  # L1d, L2, L3
    nbytes: int
    count: int


@dataclass(frozen=True)
class Cpu:
    """The processor; None or empty where a fact is not known."""

    name: str
    vendor: str | None
    architecture: str
    cores: int | None
    threads: int  # logical processors: two a core with hyperthreading
    caches: tuple[Cache, ...]
    flags: tuple[str, ...]


def read(root: Path = ROOT) -> Cpu:
    """Read it from /proc and /sys."""
    blocks = limits.blocks(root / "proc/cpuinfo")
    # Some kernels put facts about the whole machine into a block of its own, at the end.
    first: dict[str, str] = {}
    for block in reversed(blocks):
        first |= block
    processors = limits.cpu_list(limits.text(root / CPUS / "online")) or frozenset(_processors(blocks))
    vendor, name = _vendor_and_name(first)
    architecture = platform.machine() or "unknown"
    flags = f"{first.get('flags', '')} {first.get('Features', '')}".split()
    return Cpu(
        name=name or architecture,
        vendor=vendor,
        architecture=architecture,
        cores=cores_among(None, root),
        threads=len(processors) or os.cpu_count() or 1,
        caches=caches(root),
        flags=tuple(ours for theirs, ours in _FLAGS.items() if theirs in flags),
    )


def cores_among(cpus: Set[int] | None, root: Path = ROOT) -> int | None:
    """Number of cores of the processors `cpus`, of all if None: hyperthreads of one core count once.

    None where the system does not say which belong together.
    """
    groups = {}
    for path in (root / CPUS).glob("cpu[0-9]*"):
        siblings = limits.text(path / "topology/core_cpus_list")
        siblings = siblings or limits.text(path / "topology/thread_siblings_list")
        if siblings and path.name[3:].isdigit():
            groups[int(path.name[3:])] = siblings
    if not groups:
        processors = _processors(limits.blocks(root / "proc/cpuinfo"))
        groups = {
            number: f"{block.get('physical id')} {block['core id']}"
            for number, block in processors.items()
            if "core id" in block
        }
    wanted = groups.keys() if cpus is None else cpus
    if not wanted or not wanted <= groups.keys():
        return None
    return len({groups[number] for number in wanted})


def caches(root: Path = ROOT) -> tuple[Cache, ...]:
    """The caches for data. Those that several processors share are counted once."""
    sizes: dict[str, tuple[int, set[str]]] = {}
    for path in sorted((root / CPUS).glob("cpu[0-9]*/cache/index[0-9]*")):
        level, kind = limits.number(path / "level"), limits.text(path / "type")
        size = re.fullmatch(r"(\d{1,12})([KMG]?)", limits.text(path / "size") or "", re.ASCII)
        if not level or not size or kind not in ("Data", "Unified"):
            continue
        nbytes = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
        name = "L1d" if level == 1 else f"L{level}"
        shared = limits.text(path / "shared_cpu_list") or path.parts[-3]
        largest, owners = sizes.get(name, (0, set()))
        sizes[name] = max(largest, nbytes), owners | {shared}
    return tuple(
        Cache(name, nbytes, len(owners)) for name, (nbytes, owners) in sorted(sizes.items()) if nbytes
    )


def _processors(blocks: list[dict[str, str]]) -> dict[int, dict[str, str]]:
    named = [block for block in blocks if block.get("processor", "").isdecimal()]
    return {int(block["processor"]): block for block in named}


def _vendor_and_name(block: dict[str, str]) -> tuple[str | None, str | None]:
    name = block.get("model name") or block.get("cpu model") or block.get("uarch") or block.get("cpu")
    vendor = block.get("vendor_id") or block.get("mvendorid")
    try:
        maker, design = int(block["CPU implementer"], 16), int(block["CPU part"], 16)
    except (KeyError, ValueError):
        return vendor, name
    maker_name = _MAKERS.get(maker, f"maker {maker:#x}")
    return maker_name, name or _DESIGNS.get((maker, design), f"{maker_name} part {design:#x}")
