"""Models for images: classes, objects, faces, page layout, foreground."""

from __future__ import annotations

from stretto.weights.hub.bundles.bundle import Bundle

IMAGES: tuple[Bundle, ...] = ()
