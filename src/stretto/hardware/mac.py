"""The hardware of a Mac, by `sysctl` and `vm_stat`."""

from __future__ import annotations

import os
import platform
import re

from stretto.hardware.cpu import Cache, Cpu

_KEYS = (
    "machdep.cpu.brand_string",
    "machdep.cpu.vendor",
    "hw.physicalcpu",
    "hw.logicalcpu",
    "hw.memsize",
    "hw.l1dcachesize",
    "hw.l2cachesize",
    "hw.l3cachesize",
    "hw.perflevel0.physicalcpu",
    "hw.perflevel0.l1dcachesize",
    "hw.perflevel0.l2cachesize",
)


def facts() -> dict[str, str]:
    """The output of `sysctl`; keys that this Mac lacks are omitted."""
    return parse_facts(read_output("sysctl", *_KEYS))


def parse_facts(output: str) -> dict[str, str]:
    """Lines of `key: value`."""
    pairs = (line.split(":", 1) for line in output.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def cpu(facts: dict[str, str]) -> Cpu:
    """The processor; of two kinds of cores, the caches are those of the fast ones."""
    cores = _number(facts, "hw.physicalcpu")
    sizes = {
        "L1d": _number(facts, "hw.perflevel0.l1dcachesize", "hw.l1dcachesize"),
        "L2": _number(facts, "hw.perflevel0.l2cachesize", "hw.l2cachesize"),
        "L3": _number(facts, "hw.l3cachesize"),
    }
    architecture = platform.machine() or "unknown"
    name = facts.get("machdep.cpu.brand_string") or architecture
    return Cpu(
        name=name,
        vendor=facts.get("machdep.cpu.vendor") or ("Apple" if name.startswith("Apple") else None),
        architecture=architecture,
        cores=cores,
        threads=_number(facts, "hw.logicalcpu") or os.cpu_count() or 1,
        caches=tuple(
            Cache(level, nbytes, (cores or 1) if level == "L1d" else 1)
            for level, nbytes in sizes.items()
            if nbytes
        ),
        flags=(),
    )


def usable_cores(facts: dict[str, str]) -> int | None:
    """The fast cores where there are two kinds, all of them otherwise."""
    return _number(facts, "hw.perflevel0.physicalcpu", "hw.physicalcpu")


def memory(facts: dict[str, str]) -> tuple[int | None, int | None]:
    """Bytes in total, and free."""
    return _number(facts, "hw.memsize"), parse_free(read_output("vm_stat"))


def parse_free(output: str) -> int | None:
    """The free bytes by `vm_stat`: pages that are free, or can be evicted."""
    page = re.search(r"page size of (\d+) bytes", output)
    pages = re.findall(r"^Pages (?:free|inactive|speculative|purgeable): +(\d+)\.", output, re.MULTILINE)
    return int(page[1]) * sum(map(int, pages)) if page and pages else None


def _number(facts: dict[str, str], *keys: str) -> int | None:
    """The first that is a number above zero."""
    for key in keys:
        if facts.get(key, "").isdecimal() and int(facts[key]) > 0:
            return int(facts[key])
    return None


def read_output(*command: str) -> str:
    """What a program prints; nothing if it cannot be run or fails."""
    import subprocess

    try:
        done = subprocess.run(command, capture_output=True, timeout=5, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")
