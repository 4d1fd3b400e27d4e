"""Kernels of a new kind of pass, compiled several at a time before it."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from stretto.backends.torch.decoder import Decoder
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.launching import compiling, is_known_version
from stretto.backends.torch.lean import is_dense


class Ahead:
    """Walks through a pass once without computing it, so that all kernels it will launch are compiled.

    Only passes of dense models, whose integers are all made by the planner: experts are chosen by kernels,
    and what has not been computed must not be an index.
    """

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        on_gpu = device.type == "cuda" and uses_kernels(torch.empty(0, device=device))
        self._is_able = on_gpu and is_known_version() and is_dense(decoder)
        self._seen: set[Hashable] = set()

    def compile(self, kind: Hashable, run: Callable[[], Tensor]) -> None:
        """Compile what `run` launches, if this is the first pass of its kind."""
        if self._is_able and kind not in self._seen:
            self._seen.add(kind)
            with compiling():
                run()
