"""Errors of the device as Stretto's own: memory that runs out is survived, a kernel that fails is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from stretto.backends.torch.memory import free_again, is_out_of_memory, ran_out
from stretto.errors import CacheFull, ModelError

FATAL = ("CUDA error", "Triton Error [CUDA]", "CUBLAS_STATUS", "device-side assert")


class Faults:
    """Tells a backend's user what happened on the device; `recover` drops what a failed pass left there."""

    def __init__(self, device: torch.device, recover: Callable[[], None]) -> None:
        self._device, self._recover = device, recover
        self._fatal = ""

    def check(self) -> None:
        """Raise if the device has failed: nothing can be computed in this process any more."""
        if self._fatal:
            raise ModelError(f"the device failed before ({self._fatal}); start the process again")

    def explain(self, error: BaseException, what: str) -> None:
        """Raise `CacheFull` if memory ran out while `what`, and `ModelError` if the device failed."""
        if is_out_of_memory(error):
            message = ran_out(what, self._device, error)
            free_again(error, self._recover)
            raise CacheFull(f"{message}; this pass was undone, and others can run") from None
        if is_fatal(error) and not self._fatal:
            self._fatal = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"the device failed while {what}: {self._fatal}; this process cannot use CUDA again: start "
                "it again (CUDA_LAUNCH_BLOCKING=1 in the environment shows which kernel it was)"
            ) from error

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """`explain` what is raised within."""
        try:
            yield
        except Exception as error:
            self.explain(error, what)
            raise


def is_fatal(error: BaseException) -> bool:
    """Whether a kernel failed: CUDA refuses all further work of the process then."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in FATAL)
