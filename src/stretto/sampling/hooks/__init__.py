"""Ready-made hooks: each goes into `hooks=[…]` and changes or watches the logits before every token.

`stretto.hooks` has all of them; the engine knows these two.
"""

from stretto.sampling.hooks.native import NativeHook
from stretto.sampling.hooks.row import HookRow

__all__ = ["HookRow", "NativeHook"]
