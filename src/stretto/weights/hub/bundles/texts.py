"""Models for texts and bytes."""

from __future__ import annotations

from stretto.weights.hub.bundles.bundle import Bundle

TEXTS: tuple[Bundle, ...] = ()
