"""What answers of all protocols have in common."""

from __future__ import annotations

from stretto import __version__

FINGERPRINT = f"stretto-{__version__}"
LOWEST = -9999.0  # stands for −∞, which JSON does not have


def clamp_logprob(logprob: float | None) -> float:
    """A log-probability that JSON can hold."""
    return LOWEST if logprob is None else max(LOWEST, logprob)
