"""Backends run models. `base` is the protocol, `registry` the list; `native` and `reference` implement it."""

from stretto.backends.base import Backend, Batch, Capabilities

__all__ = ["Backend", "Batch", "Capabilities"]
