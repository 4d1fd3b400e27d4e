"""Every exception Stretto raises.

    StrettoError
    ├── ModelError          a file is unreadable, damaged or of an unsupported kind
    │   ├── PullError       a model could not be fetched (network, disk, wrong hash)
    │   └── SnapshotError   a saved sequence cannot be written or read, or is not for this model
    ├── InvalidRequest      a parameter is wrong; the message names it and what it takes
    ├── ContextOverflow     a prompt is longer than the model's context
    ├── CacheFull           the cells a batch needs are not there
    ├── QueueFull           too many requests wait already
    ├── Unsupported         this backend cannot do that; the message names one that can
    ├── Cancelled           the request was cancelled before there was anything to return
    └── Timeout             the request ran out of time before there was anything to return

A message says what was wrong, where, and what to do about it.
"""

from __future__ import annotations

from os import PathLike, fspath


class StrettoError(Exception):
    """The base of all Stretto's exceptions; catch it to catch them all."""


class ModelError(StrettoError):
    """A model file cannot be read, is damaged, or is of a kind that is not supported.

    `path`, `offset` (bytes from the start of the file) and `field` say where, when that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | PathLike[str] | None = None,
        offset: int | None = None,
        field: str | None = None,
    ) -> None:
        self.path = None if path is None else fspath(path)
        self.offset = offset
        self.field = field
        where = [self.path] if self.path else []
        where += [f"at byte {offset}"] if offset is not None else []
        where += [f"in {field}"] if field else []
        super().__init__(f"{' '.join(where)}: {message}" if where else message)


class PullError(ModelError):
    """A model could not be fetched or stored: no network, a full disk, a wrong hash."""


class SnapshotError(ModelError):
    """A saved sequence cannot be written or read, is damaged, or was made by another model or cache."""


class InvalidRequest(StrettoError):
    """A parameter has a value that cannot be used; the message names both and what would do."""


class ContextOverflow(StrettoError):
    """A prompt does not fit into the model's context; the message gives both lengths."""


class CacheFull(StrettoError):
    """A batch needs more cells than are free; nothing was changed."""


class QueueFull(StrettoError):
    """As many requests wait as may wait; this one was not taken."""


class Unsupported(StrettoError):
    """A backend lacks a capability; the message names a backend that has it."""


class Cancelled(StrettoError):
    """A request was cancelled while there was nothing yet to return."""


class Timeout(StrettoError):
    """A request ran out of time while there was nothing yet to return."""
