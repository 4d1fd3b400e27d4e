"""Adapters on the command line: PATH, or PATH=SCALE."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from stretto.llm import LLM


def read_scaled(text: str) -> tuple[str, float]:
    """The path of an adapter and its scale.

    >>> read_scaled("style.gguf=0.7")
    ('style.gguf', 0.7)
    """
    path, equals, number = text.rpartition("=")
    if not equals or Path(text).exists():
        return text, 1.0
    try:
        scale = float(number)
    except ValueError:
        scale = float("nan")
    if not path or not isfinite(scale):
        raise InvalidRequest(f"--adapter takes PATH or PATH=SCALE, as style.gguf=0.7, not {text!r}")
    return path, scale


def load_adapters(llm: LLM, given: Sequence[str]) -> dict[str, float]:
    """Load adapters; the names and scales that requests have to give for all of them."""
    mix: dict[str, float] = {}
    for number, text in enumerate(given, 1):
        path, scale = read_scaled(text)
        mix[llm.load_adapter(f"adapter-{number}", path).name] = scale
    return mix
