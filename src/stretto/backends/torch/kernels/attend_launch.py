"""Launches of the attention kernel: which tiles it works in."""

from __future__ import annotations

from typing import Any

from stretto.backends.torch.plan import Work
from stretto.backends.torch.planes import Plane
from stretto.backends.torch.scoring import Scoring

Tensor = Any  # torch.Tensor: torch is an extra


def launch_attend(q: Tensor, keys: Plane, values: Plane, work: Work, scoring: Scoring, out: Tensor) -> None:
    """Attention into `out`."""
    raise NotImplementedError
