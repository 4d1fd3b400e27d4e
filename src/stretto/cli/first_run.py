"""What the first answer of the default model says, once: that the model is tiny, and which one fits here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stretto.cli.options import DEFAULT_MODEL
from stretto.cli.output import size

if TYPE_CHECKING:
    from pathlib import Path

    from stretto.weights.hub.catalogue import Entry

MARKER = "first-run"
EFFICIENCY = 0.7  # of the bandwidth: what decoding reaches of it


def first_run_note(model: str) -> None:
    """Say it on the first run in a terminal, and leave a marker; nothing is said in pipes."""
    from stretto.cli.generation import note
    from stretto.weights.hub import Store

    if model != DEFAULT_MODEL or not (sys.stdout.isatty() and sys.stderr.isatty()):
        return
    marker = Store.default().home / MARKER
    if not _is_first(marker):
        return
    note(sentence(*_best()))


def sentence(entry: Entry | None, nbytes: int | None, bandwidth: float | None) -> str:
    """The line; `bandwidth` is in bytes/s.

    >>> sentence(None, None, None)[:40]
    'smollm2 is tiny and says silly things; t'
    """
    begin = f"{DEFAULT_MODEL} is tiny and says silly things"
    if entry is None:
        return (
            f"{begin}; the best model for this machine is unknown while the Hub cannot be reached "
            "(stretto models --catalogue)"
        )
    fetch = "size unknown" if nbytes is None else f"a download of {size(nbytes)}"
    speed = ""
    if nbytes and bandwidth and not entry.is_mixture:
        speed = f", about {EFFICIENCY * bandwidth / nbytes:.0f} tokens/s"
    return f'{begin}; the best that fits here: stretto run {entry.name} "…" ({fetch}{speed})'


def _best() -> tuple[Entry | None, int | None, float | None]:
    """The best model that fits this machine, its size and the bandwidth, where they are known."""
    from stretto import hardware
    from stretto.weights.hub import catalogue

    machine = hardware.probe()
    bandwidth = machine.bandwidth.memory.all * 1e9 if machine.bandwidth else None
    entry = catalogue.best_fit(machine.memory_free, EFFICIENCY * bandwidth if bandwidth else None)
    if entry is None:
        return None, None, bandwidth
    sizes = entry.sizes() or ()
    return entry, next((one.nbytes for one in sizes if one.is_chosen), None), bandwidth


def _is_first(marker: Path) -> bool:
    """Whether this is the first run, from now on no other; never where the store cannot be written to."""
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        with marker.open("x"):
            return True
    except OSError:
        return False
