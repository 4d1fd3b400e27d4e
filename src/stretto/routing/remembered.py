"""Measured figures of routes, in a file next to the models, so that a model is probed once.

An entry belongs to a model file, the machine, the options that change speed, and the versions of everything
that was compared: whatever changes is measured again. A damaged file is no error, and is replaced.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stretto.errors import StrettoError
from stretto.weights.files import atomic_write, read_records

FILE = "routes.json"
MAX_ENTRIES = 256
MAX_BYTES = 1 << 22  # of a file that is read


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
        return [_figures(entry) for entry in read_records(path or default_path(), MAX_BYTES)[key]]
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


def _figures(entry: Any) -> Figures:
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
