"""Reads small files of the kernel. Missing or malformed values are None."""

from __future__ import annotations

from pathlib import Path

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
