"""Language models on your own machine, fast, with every token in your hands.

    import stretto

    llm = stretto.load("smollm2")
    print(llm.generate("Once upon a time", max_tokens=64).text)

Names are imported when they are first used, so that `import stretto` costs nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto import hooks, inside, parallel, tasks, tools
    from stretto.audio import Audio
    from stretto.backends.base import Batch
    from stretto.drafts import DraftModel, PromptLookup, SuffixLookup
    from stretto.engine import Edit, Limits, Result, Sequence, Step, Token
    from stretto.engine.inside import Capture, Captured, Patch
    from stretto.engine.params import Options
    from stretto.engine.types import ToolCall
    from stretto.errors import (
        CacheFull,
        Cancelled,
        ContextOverflow,
        GrammarsBusy,
        InvalidGrammar,
        InvalidRequest,
        ModelError,
        PullError,
        QueueFull,
        RouteWarning,
        ShareFull,
        SnapshotError,
        StrettoError,
        Unsupported,
        UnsupportedModel,
    )
    from stretto.hooks import NativeHook
    from stretto.llm import LLM
    from stretto.loading.load import load
    from stretto.sampling import SamplingParams, sample
    from stretto.structured import Grammar, Guide
    from stretto.vision.cache import ImageCache
    from stretto.vision.image import Image

    __version__: str

# Threads of numpy's OpenBLAS spin for 2^28 cycles, about 0.1 s, at its import and after each product, on the
# cores that compute tokens. It reads this when numpy is imported; 2^20 cycles are half a millisecond.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")

_HOMES = {
    "stretto.audio": ("Audio",),
    "stretto.backends.base": ("Batch",),
    "stretto.drafts": ("DraftModel", "PromptLookup", "SuffixLookup"),
    "stretto.engine": ("Edit", "Limits", "Result", "Sequence", "Step", "Token"),
    "stretto.engine.inside": ("Capture", "Captured", "Patch"),
    "stretto.engine.params": ("Options",),
    "stretto.engine.types": ("ToolCall",),
    "stretto.errors": (
        "CacheFull",
        "Cancelled",
        "ContextOverflow",
        "GrammarsBusy",
        "InvalidGrammar",
        "InvalidRequest",
        "ModelError",
        "PullError",
        "QueueFull",
        "RouteWarning",
        "ShareFull",
        "SnapshotError",
        "StrettoError",
        "Unsupported",
        "UnsupportedModel",
    ),
    "stretto.llm": ("LLM",),
    "stretto.loading.load": ("load",),
    "stretto.sampling": ("SamplingParams", "sample"),
    "stretto.hooks": ("NativeHook",),
    "stretto.structured": ("Grammar", "Guide"),
    "stretto.vision.image": ("Image",),
    "stretto.vision.cache": ("ImageCache",),
}
_MODULES = ("hooks", "inside", "parallel", "tasks", "tools")
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "LLM",
    "Audio",
    "Batch",
    "CacheFull",
    "Cancelled",
    "Capture",
    "Captured",
    "ContextOverflow",
    "DraftModel",
    "Edit",
    "Grammar",
    "GrammarsBusy",
    "Guide",
    "Image",
    "ImageCache",
    "InvalidGrammar",
    "InvalidRequest",
    "Limits",
    "ModelError",
    "NativeHook",
    "Options",
    "Patch",
    "PromptLookup",
    "PullError",
    "QueueFull",
    "Result",
    "RouteWarning",
    "SamplingParams",
    "Sequence",
    "ShareFull",
    "SnapshotError",
    "Step",
    "StrettoError",
    "SuffixLookup",
    "Token",
    "ToolCall",
    "Unsupported",
    "UnsupportedModel",
    "__version__",
    "hooks",
    "inside",
    "load",
    "parallel",
    "sample",
    "tasks",
    "tools",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from stretto.hardware.kernel_sets import version

        return version()
    if name in _MODULES:
        return import_module(f"stretto.{name}")
    if name not in _HOME:
        from stretto.options.names import CALLS, no_attribute

        raise no_attribute("module 'stretto'", name, CALLS)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
