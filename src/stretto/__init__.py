"""Language models on your own machine, fast, with every token in your hands."""

from importlib.metadata import version

from stretto.errors import (
    CacheFull,
    Cancelled,
    ContextOverflow,
    InvalidRequest,
    ModelError,
    PullError,
    StrettoError,
    Timeout,
    Unsupported,
)

__version__ = version("stretto")

__all__ = [
    "CacheFull",
    "Cancelled",
    "ContextOverflow",
    "InvalidRequest",
    "ModelError",
    "PullError",
    "StrettoError",
    "Timeout",
    "Unsupported",
    "__version__",
]
