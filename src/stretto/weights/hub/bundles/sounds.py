"""Models for speech."""

from __future__ import annotations

from stretto.weights.hub.bundles.bundle import Bundle

SOUNDS: tuple[Bundle, ...] = ()
