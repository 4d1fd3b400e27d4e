"""Models that read the text in images."""

from __future__ import annotations

from stretto.weights.hub.bundles.bundle import Bundle

READING: tuple[Bundle, ...] = ()
