"""Hooks that are ready to use in `hooks=[…]` of `generate`, `stream` and `chat` (stretto docs control).

from stretto.hooks import Ban, Watcher

watcher = Watcher()
llm.generate("Once upon a time", hooks=[Ban([11]), watcher])
"""

from stretto.hooks.base import HookRow
from stretto.hooks.native import NativeHook
from stretto.hooks.ready import (
    Ban,
    Bias,
    Candidate,
    Force,
    Guidance,
    NoRepeat,
    Only,
    Watched,
    WatchedRequest,
    Watcher,
)

__all__ = [
    "Ban",
    "Bias",
    "Candidate",
    "Force",
    "Guidance",
    "HookRow",
    "NativeHook",
    "NoRepeat",
    "Only",
    "Watched",
    "WatchedRequest",
    "Watcher",
]
