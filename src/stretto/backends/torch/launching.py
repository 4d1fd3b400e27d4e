"""Launches of Triton kernels that take a few microseconds of the host instead of fifty and more.

    launch(kernel, (n,), x, out, 0.5, WIDTH=128, num_warps=4)     # kernel[(n,)](x, out, 0.5, WIDTH=128, …)
    form = make_form(kernel, WIDTH=128, num_warps=4)                # the same, where constants are at hand
    form.launch((n,), x, out, 0.5)

Triton finds the compiled form of a kernel by all that it could be specialised for, in the general way, at
each launch. Here a cheap key finds it: constants by value, tensors by dtype and alignment, integers by what
Triton specialises them for (1, multiples of 16, 64 bits). The first launch with a key is Triton's own, which
compiles; later ones call the compiled kernel's launcher, tensors as addresses. Profilers' launch hooks are
not called. Where this Triton is none that it was made for, and in the interpreter, all launches are Triton's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import local
from typing import Any

import torch

MOST_FORMS = 4096  # where there are more, a constant changes from launch to launch
MOST_KEYS = 256  # of a form
LEAST_INT32, MOST_INT32 = -(1 << 31), (1 << 31) - 1

MOST_COMPILERS = 16  # threads; a kernel takes one for a second or two

_STATE = local()  # of a thread: whether its launches only compile

_FORMS: dict[tuple[Any, ...], Form] = {}  # by the kernel's id, names of constants and values; they hold it


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """`kernel[grid](*args, **constants)`; tensors are among `args` only."""
    form = _FORMS.get((id(kernel), *constants, *constants.values()))
    (form or make_form(kernel, **constants)).launch(grid, *args)


def make_form(kernel: Any, **constants: Any) -> Form:
    """A kernel with constants and options, to be launched with arguments."""
    key = (id(kernel), *constants, *constants.values())
    form = _FORMS.get(key) or Form(kernel, constants)
    if len(_FORMS) < MOST_FORMS:
        _FORMS[key] = form
    return form


@contextmanager
def compiling() -> Iterator[None]:
    """Let this thread's launches compile kernels, several at a time, and compute nothing.

    What they should have written is undefined. At the end all kernels are there; one that could not be
    compiled says so when it is launched.
    """
    from triton.runtime._async_compile import AsyncCompileMode

    _STATE.compiles = True
    try:
        n = min(MOST_COMPILERS, os.cpu_count() or 1)
        with ThreadPoolExecutor(n) as threads, AsyncCompileMode(threads, ignore_errors=True):
            _STATE.threads = threads
            yield
    finally:
        _STATE.compiles, _STATE.threads = False, None


def compilers() -> ThreadPoolExecutor | None:
    """The threads that compile, where launches are only to compile kernels."""
    return getattr(_STATE, "threads", None)


class Form:
    """A kernel with its constants, and its compiled forms by what arguments they are specialised for."""

    def __init__(self, kernel: Any, constants: dict[str, Any]) -> None:
        self.kernel, self.constants = kernel, constants
        self._compiled: dict[tuple[Any, ...], Launch] = {}
        self._asked: set[tuple[Any, ...]] = set()  # to be compiled ahead
        self._driver: Any = None
        if is_known(kernel):
            from triton.runtime.driver import driver

            self._driver = driver
            self._is_constant = [bool(parameter.is_constexpr) for parameter in kernel.params]

    def launch(self, grid: tuple[int, ...], *args: Any) -> None:
        """Launch the kernel."""
        only_compiles = getattr(_STATE, "compiles", False)
        if self._driver is None:
            if not only_compiles:
                self.kernel[grid](*args, **self.constants)
            return
        active = self._driver.active
        device = active.get_current_device()
        key, values = self._specialize(device, args)
        found = None if key is None else self._compiled.get(key)
        if only_compiles:
            if key is not None and key not in self._asked:
                self._asked.add(key)
                self.kernel.warmup(*args, grid=grid, **self.constants)
            return
        if found is not None:
            found.launch(grid, active.get_current_stream(device), values)
            return
        compiled = self.kernel[grid](*args, **self.constants)
        if key is not None and len(self._compiled) < MOST_KEYS and hasattr(compiled, "packed_metadata"):
            self._compiled[key] = Launch(compiled, self._tail(len(args)))

    def _tail(self, n: int) -> list[Any]:
        """Values of the parameters behind the first n."""
        behind = list(self.kernel.signature.parameters.values())[n:]
        return [self.constants.get(each.name, each.default) for each in behind]

    def _specialize(self, device: int, args: tuple[Any, ...]) -> tuple[tuple[Any, ...] | None, list[Any]]:
        """What a compiled form depends on (None: that is not known), and the arguments as it takes them."""
        key: list[Any] = [device]
        values: list[Any] = []
        for value, is_constant in zip(args, self._is_constant, strict=False):
            kind = type(value)
            if kind is torch.Tensor:
                address = value.data_ptr()
                key.append(value.dtype)
                key.append(address & 15)
                values.append(address)
                continue
            values.append(value)
            if is_constant or value is None:
                key.append(value)
            elif kind is int:
                if value == 1:
                    key.append(1)
                elif LEAST_INT32 <= value <= MOST_INT32:
                    key.append(0 if value & 15 else 16)
                else:
                    key.append(65 if value & 15 else 64)
            elif kind is float or kind is bool:
                key.append(kind)
            elif hasattr(value, "block_shape"):  # a tensor descriptor
                key.append((value.base.dtype, tuple(value.block_shape), getattr(value, "padding", None)))
            else:
                return None, []
        return tuple(key), values


class Launch:
    """A compiled kernel, and the constants behind its arguments."""

    __slots__ = ("_before", "_compiled", "_launch", "_tail")

    def __init__(self, compiled: Any, tail: list[Any]) -> None:
        self._compiled, self._tail = compiled, tail
        run = compiled.run
        self._launch = run
        self._before: tuple[Any, ...] = ()
        needs_memory = getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1)
        if not needs_memory and hasattr(run, "launch"):  # what `run` itself calls, less what is not needed
            self._launch = run.launch
            self._before = (run.launch_cooperative_grid, run.launch_pdl, None, None)

    def launch(self, grid: tuple[int, ...], stream: int, values: list[Any]) -> None:
        """Launch it with other arguments, which it is specialised for."""
        x, y, z = (*grid, 1, 1)[:3]
        compiled = self._compiled
        if x and y and z:
            self._launch(
                x, y, z, stream, compiled.function, *self._before, compiled.packed_metadata,
                None, None, None, *values, *self._tail,
            )  # fmt: skip


def is_known(kernel: Any) -> bool:
    """Whether this is a kernel that Triton compiles, of a version with the launcher that is called here."""
    from triton.runtime.jit import JITFunction

    return is_known_version() and isinstance(kernel, JITFunction) and not kernel.pre_run_hooks


def is_known_version() -> bool:
    """Whether this is the Triton whose launcher and compiler are called here."""
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2]) == (3, 6)
