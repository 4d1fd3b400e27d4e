"""Ready-made hooks: each goes into `hooks=[…]` and changes or watches the logits before every token."""

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
