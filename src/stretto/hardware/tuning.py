"""Settings of the system that cost speed: huge pages, the frequency governor, other processes."""

from __future__ import annotations

import os
from pathlib import Path

from stretto.hardware.files import ROOT, text

_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
_GOVERNOR = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


def huge_pages(root: Path = ROOT) -> str | None:
    """The mode of transparent huge pages, "always", "madvise" or "never"; None if the system has none.

    >>> huge_pages()
    'madvise'
    """
    written = text(root / _HUGE_PAGES) or ""
    chosen = [word for word in written.split() if word.startswith("[") and word.endswith("]")]
    return chosen[0][1:-1] if len(chosen) == 1 else None


def governor(root: Path = ROOT) -> str | None:
    """What sets the processor's frequency, such as "performance" or "powersave"; None if that is unknown."""
    return text(root / _GOVERNOR) or None


def busy_processors() -> float | None:
    """How many processors were busy in the last minute, by all processes; None if that is unknown."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
