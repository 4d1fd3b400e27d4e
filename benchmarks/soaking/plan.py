"""How long a soak runs, and what it reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE_BYTES = 4096


class Mine(Exception):
    """Raised by hooks and callbacks here, and expected to come out."""


@dataclass(frozen=True)
class SoakPlan:
    """How long, how many at once, and how many seconds a request may take at most."""

    seconds: float
    seed: int = 0
    threads: int = 6
    tasks: int = 6
    patience: float = 120.0
    every: float = 2.0  # seconds between checks


@dataclass
class SoakReport:
    """What was done, and what is wrong; nothing should be."""

    done: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)  # (second, megabytes)
    metrics: dict[str, Any] = field(default_factory=dict)


def resident() -> float | None:
    """Megabytes of memory that this process has now, where the system says so."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * PAGE_BYTES / 1e6
