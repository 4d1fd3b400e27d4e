"""Hooks that are ready to use in `hooks=[…]` of `generate`, `stream` and `chat` (stretto docs control).

from stretto.hooks import Ban, Watcher

watcher = Watcher()
llm.generate("Once upon a time", hooks=[Ban([11]), watcher])
"""

from stretto.sampling.hooks.force import Force
from stretto.sampling.hooks.guidance import Guidance
from stretto.sampling.hooks.native import NativeHook
from stretto.sampling.hooks.row import HookRow
from stretto.sampling.hooks.tokens import Ban, Bias, NoRepeat, Only
from stretto.sampling.hooks.watcher import Candidate, Watched, WatchedRequest, Watcher

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
