"""The limits of this process: processors, CPU time, and memory.

A container sees the whole machine in /proc; its limits are in its control groups. Of these there are two
versions, and a group's limits hold for all groups inside it, so every level up to the mount counts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Reads small files of the kernel. Missing or malformed values are None.

ROOT = Path("/")


def text(path: Path) -> str | None:
    """The stripped text of a file, or None."""
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None


def numbers(path: Path, count: int) -> tuple[int, ...] | None:
    """The numbers, whole and not negative, that are all a file holds, or None."""
    words = (text(path) or "").split()
    return tuple(map(int, words)) if len(words) == count and all(map(_is_number, words)) else None


def number(path: Path) -> int | None:
    """The one number in a file, or None."""
    values = numbers(path, 1)
    return values[0] if values else None


def table(path: Path) -> dict[str, int]:
    """Lines of a word and a number, as in meminfo and memory.stat; a unit of kB is applied.

    >>> table(Path("/proc/meminfo"))["MemTotal"]
    25274974208
    """
    values = {}
    for line in (text(path) or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and _is_number(words[1]):
            values[words[0]] = int(words[1]) * (1024 if words[2:] == ["kB"] else 1)
    return values


def blocks(path: Path) -> list[dict[str, str]]:
    """Blocks of `key : value` lines with empty lines between them, as in cpuinfo."""
    records = []
    for block in (text(path) or "").split("\n\n"):
        pairs = [line.split(":", 1) for line in block.splitlines() if ":" in line]
        records.append({key.strip(): value.strip() for key, value in pairs})
    return [block for block in records if block]


def cpu_list(written: str | None) -> frozenset[int]:
    """The processors in a list like `0-3,8`; none if it is not one.

    >>> sorted(cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    cpus: set[int] = set()
    for part in (written or "").split(","):
        ends = part.strip().split("-")
        if len(ends) > 2 or not all(map(_is_number, ends)) or int(ends[-1]) > 2**16:
            return frozenset()
        cpus.update(range(int(ends[0]), int(ends[-1]) + 1))
    return frozenset(cpus)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 20


def allowed_cpus() -> frozenset[int] | None:
    """The processors this thread may run on; None where the system does not say."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    try:
        return frozenset(affinity(0)) if affinity else None
    except OSError:
        return None


def quota(root: Path = ROOT) -> float | None:
    """The CPU quota of the control groups, in processors, as 1.5; None without a limit.

    >>> quota()
    2.0
    """
    granted = []
    for group in _groups(root, "cpu"):
        if group.version == 2:  # "200000 100000", or "max 100000"
            time, period = numbers(group.path / "cpu.max", 2) or (0, 0)
        else:
            time = number(group.path / "cpu.cfs_quota_us") or 0  # -1 is no limit
            period = number(group.path / "cpu.cfs_period_us") or 0
        if time and period:
            granted.append(time / period)
    return min(granted, default=None)


def whole_cpus(share: float | None) -> int | None:
    """The number of threads that can use up a CPU quota."""
    return None if share is None else max(1, math.ceil(share))


def memory(root: Path = ROOT) -> tuple[int | None, int | None]:
    """Bytes in total and free, for this process: of the machine, or of its control groups if that is less.

    Page cache that the system would evict counts as free.
    """
    machine = table(root / "proc/meminfo")
    free = machine.get("MemAvailable")
    if free is None and "MemFree" in machine:
        free = sum(machine.get(key, 0) for key in ("MemFree", "Buffers", "Cached"))
    totals, rooms = [machine.get("MemTotal")], [free]
    for group in _groups(root, "memory"):
        names = _MEMORY[group.version]
        limit = number(group.path / names.limit)  # "max" is no number
        if limit is None:
            continue
        totals.append(limit)
        used = number(group.path / names.usage)
        if used is not None:
            droppable = table(group.path / "memory.stat").get(names.droppable, 0)
            rooms.append(max(0, limit - max(0, used - droppable)))
    return _least(totals), _least(rooms)


def _least(values: list[int | None]) -> int | None:
    """The smallest that is known. Version 1 writes a huge number where there is no limit."""
    known = [value for value in values if value is not None and value < 2**60]
    return min(known, default=None)


@dataclass(frozen=True)
class _Names:
    limit: str
    usage: str
    droppable: str


_MEMORY = {
    1: _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Names("memory.max", "memory.current", "inactive_file"),
}


@dataclass(frozen=True)
class _Group:
    version: int
    path: Path


def _groups(root: Path, controller: str) -> Iterator[_Group]:
    """The control groups that this process is in, from the innermost to the mount."""
    own = _own(root)
    for version, inside, mount in _mounts(root, controller):
        place = own.get(controller if version == 1 else "")
        top = root / mount.lstrip("/")
        steps: tuple[str, ...] = ()
        # The mount may itself be a group, and then the process's path starts with it.
        if place and ".." not in place and PurePosixPath(place).is_relative_to(inside):
            steps = PurePosixPath(place).relative_to(inside).parts
        for depth in range(len(steps), -1, -1):
            yield _Group(version, top.joinpath(*steps[:depth]))


def _own(root: Path) -> dict[str, str]:
    """The process's group by controller; that of version 2 has no name."""
    groups = {}
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, *rest = line.split(":", 2)
        if len(rest) == 2:
            groups.update(dict.fromkeys(rest[0].split(","), rest[1]))
    return groups


def _mounts(root: Path, controller: str) -> Iterator[tuple[int, str, str]]:
    """(version, the group that is mounted, where) of the hierarchies that may limit `controller`."""
    lines = text(root / "proc/self/mountinfo")
    if lines is None:  # try the usual places
        yield 2, "/", "/sys/fs/cgroup"
        yield 1, "/", f"/sys/fs/cgroup/{controller}"
        return
    for line in lines.splitlines():
        left, _, right = line.partition(" - ")
        ours, theirs = left.split(), right.split()
        if len(ours) < 5 or not theirs:
            continue
        if theirs[0] == "cgroup2":
            yield 2, ours[3], ours[4]
        elif theirs[0] == "cgroup" and controller in theirs[-1].split(","):
            yield 1, ours[3], ours[4]
