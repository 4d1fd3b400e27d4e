"""A hook in native code: called by its address, without the GIL, also within the fused loop."""

from __future__ import annotations

import ctypes
from _ctypes import CFuncPtr
from typing import Any

import numpy as np

from stretto import _native
from stretto.errors import InvalidRequest, wrong_value
from stretto.hooks.base import Row

MAX_ADDRESS = (1 << 8 * ctypes.sizeof(ctypes.c_void_p)) - 1


class NativeHook:
    """A compiled function as a hook; the only kind that `loop="fused"` runs.

        void hook(float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n, void *state);

        library = ctypes.CDLL("./mine.so")
        llm.generate(prompt, hooks=[NativeHook(library.hook)], loop="fused")

    It gets the row of logits to change in place, and all `n` tokens so far, prompt and answer, to read;
    neither may be kept. `address` is a number, such as Numba's `cfunc(…).address`, or a function of ctypes.
    `state` is handed on: None, an address, a NumPy array (its data), or an object of ctypes. Both are kept
    alive as long as the hook.

    Nothing can check an address or what the function does: one that is wrong, or writes outside the row, ends
    the process or worse, and is the caller's to answer for.
    """

    def __init__(self, address: Any, state: Any = None) -> None:
        self._held = address, state
        self.address = _function_address(address)
        self.state = _state_address(state)

    @property
    def addresses(self) -> tuple[int, int]:
        """Addresses of the function and of its state, as the native loop takes them."""
        return self.address, self.state

    def __call__(self, logits: Row, tokens: list[int]) -> None:
        """Call the function from Python with the same arguments."""
        _native.call_hook(self.address, self.state, logits, np.asarray(tokens, np.int32))

    def __repr__(self) -> str:
        return f"NativeHook({self.address:#x}, state={self.state:#x})"


def _function_address(address: Any) -> int:
    if isinstance(address, CFuncPtr):
        address = ctypes.cast(address, ctypes.c_void_p).value
    if not _is_address(address) or not address:
        raise wrong_value("address", address, "a C function's: a positive integer or a function of ctypes")
    return int(address)


def _state_address(state: Any) -> int:
    if state is None:
        return 0
    if _is_address(state):
        return int(state)
    if isinstance(state, np.ndarray):
        return int(state.ctypes.data)
    if isinstance(state, (ctypes.c_void_p, ctypes.c_char_p, ctypes._Pointer)):
        return ctypes.cast(state, ctypes.c_void_p).value or 0
    if isinstance(state, (ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._SimpleCData)):
        return ctypes.addressof(state)
    raise InvalidRequest(
        f"state must be None, an address, a NumPy array or an object of ctypes, not {type(state).__name__}",
        param="state",
    )


def _is_address(value: Any) -> bool:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and 0 <= int(value) <= MAX_ADDRESS
