"""Every exception Stretto raises.

    StrettoError
    ├── ModelError          a file is unreadable, damaged or of an unsupported kind
    │   ├── PullError       a model could not be fetched (network, disk, wrong hash)
    │   ├── UnsupportedModel  a sound file that Stretto's own backends cannot run
    │   └── SnapshotError   a saved sequence cannot be written or read, or is not for this model
    ├── InvalidRequest      a parameter is wrong; the message names it and what it takes
    │   └── InvalidGrammar  a grammar or JSON schema cannot be used
    ├── ContextOverflow     a prompt is longer than the model's context
    ├── CacheFull           a batch needs more cells than are free
    ├── QueueFull           too many requests wait already
    │   └── GrammarsBusy    too many grammars of this caller wait to be compiled
    ├── Unsupported         this backend cannot do that; the message names one that can
    └── Cancelled           the request was cancelled before there was anything to return

`RouteWarning`, a warning, says that another backend runs a model than the one that would by itself.

A message says what was wrong, where, and what to do about it; programs read the same from the fields:

    try:
        llm.generate("Hello", temperature=-1)
    except stretto.InvalidRequest as error:
        error.param, error.value      # ('temperature', -1)
"""

from __future__ import annotations

from os import PathLike, fspath


class StrettoError(Exception):
    """The base of all Stretto's exceptions; catch it to catch them all.

    `param` is the parameter that is wrong and `value` what was given for it, where an error is about one.
    """

    def __init__(self, message: str = "", *, param: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.param = param
        self.value = value


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


class UnsupportedModel(ModelError):
    """A sound file of an architecture or format that Stretto's own backends lack; another may have it."""


class SnapshotError(ModelError):
    """A saved sequence cannot be written or read, is damaged, or was made by another model or cache."""


class InvalidRequest(StrettoError):
    """A parameter has a value that cannot be used; `param` names it, the message says what would do."""


def wrong_value(param: str, value: object, takes: str) -> InvalidRequest:
    """The error of a `value` that `param` does not take; `takes` follows “must be”: "a number from 0 on"."""
    return InvalidRequest(f"{param} must be {takes}, not {value!r:.100}", param=param, value=value)


def param_error(param: str, reason: str, value: object = None) -> InvalidRequest:
    """The error of a parameter: its name and the reason, with a remedy: "tools: none; give at least one"."""
    return InvalidRequest(f"{param}: {reason}", param=param, value=value)


class InvalidGrammar(InvalidRequest):
    """A grammar or JSON schema that is damaged, too large, not supported, or that no text fits."""


class ContextOverflow(StrettoError):
    """A prompt of `n_tokens` does not fit into the model's context, which takes `limit`."""

    def __init__(
        self,
        message: str,
        *,
        n_tokens: int | None = None,
        limit: int | None = None,
        param: str | None = "prompt",
    ) -> None:
        super().__init__(message, param=param)
        self.n_tokens = n_tokens
        self.limit = limit


class CacheFull(StrettoError):
    """A batch needs `n_needed` cells and only `n_free` are free; nothing was changed."""

    def __init__(self, message: str, *, n_needed: int | None = None, n_free: int | None = None) -> None:
        super().__init__(message)
        self.n_needed = n_needed
        self.n_free = n_free


class QueueFull(StrettoError):
    """`n_waiting` requests wait, as many as allowed; this one was refused."""

    def __init__(self, message: str, *, n_waiting: int | None = None) -> None:
        super().__init__(message)
        self.n_waiting = n_waiting


class ShareFull(QueueFull):
    """A caller has as much under way as it may; `param` names the limit."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class GrammarsBusy(QueueFull):
    """`n_waiting` grammars of this caller wait to be compiled, as many as allowed; try again later."""


class Unsupported(StrettoError):
    """A backend lacks a capability; the message names a backend that has it."""


class RouteWarning(UserWarning):
    """A model is run by another backend than the first choice; the message names both, and why."""


class Cancelled(StrettoError):
    """A request was cancelled while there was nothing yet to return."""
