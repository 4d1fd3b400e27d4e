"""Experts of some layers on the CPU, by the native core, where all else is on the GPU.

What they read comes to pinned buffers behind the kernels that make it, the device's driver calls the native
core by a function's address, and the sums go back: all of it is queued on the stream, so that no thread of
Python waits, and captured in the graphs of decode steps like any kernel. On a CPU the same task runs at once.

A row's experts have the same bits whatever else is in the batch; rows of padding are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from stretto import _native
from stretto.backends.base import BackendOptions
from stretto.backends.native import NativeBackend
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.passes import Pass
from stretto.errors import ModelError, Unsupported
from stretto.models.feed_forward import Experts, Routing
from stretto.models.spec import Layer, ModelSpec
from stretto.weights.gguf import GGUF
from stretto.weights.memory import SHARED, Memory, Placement, choose_placement

NO_EXPERT = -1  # of rows that are left out
NO_LAYER = Layer(None, None, None, None)


def host_spec(spec: ModelSpec, layers: Collection[int]) -> ModelSpec:
    """A model of nothing but the experts of some layers, under their own names.

    They read rows that are normalised and routed elsewhere, and give their weighted sum: norms, the router's
    kind and the shared expert are left out. (The smallest model has a vocabulary of one token.)
    """

    def alone(ffn: Experts) -> Experts:
        return replace(
            ffn,
            routing=Routing(ffn.routing.n_used),
            shared=None,
            shared_gate=False,
            shared_scale=1.0,
            output_scale=False,
            norm=None,
            post_norm=None,
            shared_norm=None,
            shared_post_norm=None,
        )

    return ModelSpec(
        architecture=spec.architecture,
        n_vocab=1,
        n_embd=spec.n_embd,
        context_length=1,
        layers=tuple(
            replace(NO_LAYER, ffn=alone(layer.ffn))
            if i in layers and isinstance(layer.ffn, Experts)
            else NO_LAYER
            for i, layer in enumerate(spec.layers)
        ),
        output_norm=None,
    )


class LayerOnHost:
    """The experts of one layer on the CPU, in place of those on the device."""

    def __init__(self, experts: HostExperts, layer: int) -> None:
        self._experts, self._layer = experts, layer

    def start(self, read: Tensor, chosen: Tensor, weights: Tensor, run: Pass) -> Callable[[], Tensor]:
        """Their weighted sum float32[n, n_embd] of rows and what was chosen, once it is asked for."""
        return self._experts.start(self._layer, read, chosen, weights, run.is_row)


@dataclass(frozen=True)
class Buffers:
    """Memory of the host for rows of one layer at a time, which all layers use in turn."""

    rows: Tensor  # float32[n, n_embd]
    out: Tensor  # float32[n, n_embd]
    chosen: Tensor  # int32[n, n_used]
    weights: Tensor  # float32[n, n_used]


class HostExperts:
    """The experts on the CPU of a model whose other weights are on `device`.

    Buffers and tasks are made for powers of two of rows, and stay: graphs have their addresses.
    """

    def __init__(
        self,
        file: GGUF,
        spec: ModelSpec,
        layers: Collection[int],
        device: torch.device,
        threads: int,
        precision: str,
        placement: Placement,
    ) -> None:
        self.layers, self.device = frozenset(layers), device
        self._backend = NativeBackend(
            file, host_spec(spec, layers), 1, threads, precision=precision, placement=placement
        )
        self._n_embd, self._n_failures = spec.n_embd, _native.expert_failures()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buffers: dict[tuple[int, int], Buffers] = {}  # by rows and experts of each
        self._tasks: dict[tuple[int, int], _native.ExpertTask] = {}  # by layer and rows

    def layer(self, index: int) -> LayerOnHost | None:
        """The experts of a layer, if they are here."""
        return LayerOnHost(self, index) if index in self.layers else None

    def settle(self) -> None:
        """Wait until all of their weights are packed."""
        self._backend.settle()

    def start(
        self, layer: int, x: Tensor, chosen: Tensor, weights: Tensor, is_row: Tensor
    ) -> Callable[[], Tensor]:
        """Queue the experts of rows; what comes back gives their weighted sum, float32[n, n_embd].

        x is [n, n_embd], normalised; chosen int32[n, n_used]; `is_row` bool[n], False for rows of padding.
        Meanwhile the device goes on with what is queued before the sum is asked for.
        """
        if self._stream is None:
            out = self._queue(layer, x, chosen, weights, is_row)
            return lambda: out
        stream, usual = self._stream, torch.cuda.current_stream(self.device)
        stream.wait_stream(usual)
        with torch.cuda.stream(stream):
            made = self._queue(layer, x, chosen, weights, is_row)

        def join() -> Tensor:
            usual.wait_stream(stream)
            return made

        return join

    def _queue(self, layer: int, x: Tensor, chosen: Tensor, weights: Tensor, is_row: Tensor) -> Tensor:
        n, used = chosen.shape
        size = 1 << max(n - 1, 0).bit_length()
        buffers = self._buffers_of(size, used)
        named = torch.full((size, used), NO_EXPERT, dtype=torch.int32, device=chosen.device)
        named[:n] = torch.where(is_row[:, None], chosen, NO_EXPERT)
        buffers.rows[:n].copy_(x.float(), non_blocking=True)
        buffers.weights[:n].copy_(weights, non_blocking=True)
        buffers.chosen.copy_(named, non_blocking=True)
        self._run(self._task_of(layer, size, buffers))
        out = torch.empty(n, self._n_embd, dtype=torch.float32, device=x.device)
        return out.copy_(buffers.out[:n], non_blocking=True)

    def _run(self, task: _native.ExpertTask) -> None:
        if self.device.type == "cuda":
            from stretto.backends.torch import cuda

            cuda.call_host(_native.expert_function, task.address, self.device)
            return
        task.run()
        self.check()

    def check(self) -> None:
        """Raise where experts could not be computed; results since then are NaN."""
        if _native.expert_failures() == self._n_failures:
            return
        self._n_failures = _native.expert_failures()
        for (layer, _), task in self._tasks.items():
            if task.take_failure():
                raise ModelError(
                    f"the experts of layer {layer} could not be computed on the CPU: memory ran out, or the "
                    "router's scores are no numbers"
                )

    def close(self) -> None:
        """Free them; the device must not need them any more."""
        self._tasks.clear()
        self._buffers.clear()
        self._backend.close()

    def _buffers_of(self, size: int, used: int) -> Buffers:
        if (size, used) not in self._buffers:
            is_cuda = self.device.type == "cuda"

            def empty(columns: int, dtype: Any) -> Tensor:
                return torch.zeros(size, columns, dtype=dtype, pin_memory=is_cuda)

            self._buffers[size, used] = Buffers(
                empty(self._n_embd, torch.float32),
                empty(self._n_embd, torch.float32),
                empty(used, torch.int32),
                empty(used, torch.float32),
            )
        return self._buffers[size, used]

    def _task_of(self, layer: int, size: int, buffers: Buffers) -> _native.ExpertTask:
        if (layer, size) not in self._tasks:
            arrays: list[np.ndarray[Any, Any]] = [
                each.numpy() for each in (buffers.rows, buffers.chosen, buffers.weights, buffers.out)
            ]
            self._tasks[layer, size] = _native.ExpertTask(self._backend.decoder, layer, *arrays)
        return self._tasks[layer, size]


def open_host_experts(
    file: GGUF, spec: ModelSpec, layers: Collection[int], device: torch.device, options: BackendOptions
) -> HostExperts:
    """The experts of some layers of an open file; raises where the CPU's memory cannot hold them."""
    if options.repack == SHARED:
        raise Unsupported(
            "repack='shared' is for models that are on the CPU as a whole; leave it out, or use device='cpu'",
            param="repack",
            value=SHARED,
        )
    weights: dict[str, int] = {}
    for i, names in spec.expert_tensors().items():
        for tensor in [file.tensors[name] for name in names if i in layers]:
            weights[tensor.format.name] = weights.get(tensor.format.name, 0) + tensor.nbytes
    placement = choose_placement(
        options.repack, Memory(weights, None, ()), "f16", 1, options.memory, path=file.path
    )
    return HostExperts(file, spec, layers, device, options.threads, options.precision, placement)
