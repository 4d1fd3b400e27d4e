"""Backends: what runs a model. `base` is the protocol; each other file is one way to honour it."""

from stretto.backends.base import Backend, Batch, Capabilities

__all__ = ["Backend", "Batch", "Capabilities"]
