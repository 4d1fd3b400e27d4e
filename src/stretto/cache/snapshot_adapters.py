"""The adapters that a saved sequence was computed with, as text of its head."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from stretto.errors import SnapshotError

KEY = "adapters"
MAX_ADAPTERS = 16
FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class SavedAdapter:
    """One adapter of a sequence."""

    name: str
    scale: float
    fingerprint: str


def adapters_text(adapters: tuple[SavedAdapter, ...]) -> str:
    """The adapters as text."""
    return json.dumps([[one.name, one.scale, one.fingerprint] for one in adapters])


def adapters_from(text: str, path: Path) -> tuple[SavedAdapter, ...]:
    """The adapters that a text names; `SnapshotError` if it is none of ours."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_ADAPTERS or not all(map(_is_one, found)):
        raise SnapshotError(f"{text[:80]!r} names no adapters", path=path, field=KEY)
    return tuple(SavedAdapter(name, float(scale), fingerprint) for name, scale, fingerprint in found)


def _is_one(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    name, scale, fingerprint = entry
    return (
        isinstance(name, str)
        and len(name) <= 64
        and isinstance(scale, (int, float))
        and isfinite(scale)
        and isinstance(fingerprint, str)
        and FINGERPRINT.fullmatch(fingerprint) is not None
    )
