"""The torch backend: a decoder on a GPU, driven with one flat batch a step.

Logits stay on the device as rows that are sampled there (rows.py) until somebody looks at them. On a CPU it
runs in plain torch: slow, for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from stretto.backends.base import Batch, Capabilities, Decoding, DeviceRow, Draw, FusedRun
from stretto.backends.placement import DevicePlan
from stretto.backends.torch.cells import DeviceCells
from stretto.backends.torch.decoder import Decoder
from stretto.backends.torch.device import Tensor, open_device, uses_kernels
from stretto.backends.torch.host_experts import HostExperts
from stretto.backends.torch.loop import Loop
from stretto.backends.torch.memory import free_again, is_out_of_memory, is_wide, ran_out
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.planner import WorkPlanner, find_bucket, list_kinds
from stretto.backends.torch.rows import RowSampler, TorchRows
from stretto.backends.torch.steps import Steps
from stretto.backends.torch.upload import release
from stretto.backends.torch.weights import Weights
from stretto.errors import CacheFull, InvalidRequest, ModelError
from stretto.models.spec import ModelSpec
from stretto.sampling.params import SamplingParams
from stretto.weights.gguf import GGUF

# Errors of the device as Stretto's own: memory that runs out is survived, a kernel that fails is not.

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


Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]


class TorchBackend:
    """Runs a model on a GPU, and with a placement some of its experts on the CPU.

    `experts` are those; they are closed with the backend.
    """

    name = "torch"
    active_threads = 1
    pass_tokens = 2048  # of prompts, that keep a GPU busy

    def __init__(
        self,
        file: GGUF,
        spec: ModelSpec,
        n_cells: int,
        device: str = "cuda",
        kv: str = "f16",
        precision: str = "standard",
        n_slots: int = 1,
        exact: bool = True,
        placement: DevicePlan | None = None,
        experts: HostExperts | None = None,
    ) -> None:
        spec = spec.unstretched()
        self.placement, self._experts = placement, experts
        self.spec, self.n_cells, self.precision, self.exact = spec, n_cells, precision, exact
        self.device = open_device(device)
        self.capabilities = Capabilities(attention=True, fused=True, ahead=self.device.type == "cuda")
        self.n_slots = n_slots if spec.recurrent else 0
        dtype = torch.float32 if is_wide(file, precision, device) else torch.bfloat16
        octets = precision == "standard"
        weights = Weights(file, spec, self.device, dtype, n_positions=n_cells, octets=octets)
        self.memory = DeviceCells(spec, n_cells, self.n_slots, kv, self.device)
        self.decoder: Decoder | None = Decoder(weights, self.memory, self._experts)
        self.weight_bytes = weights.nbytes
        release()
        weights.warn_of_widened()
        self.planner = WorkPlanner(
            self.device,
            n_cells,
            spec.n_vocab,
            list_kinds(spec),
            context_length=min(spec.context_length, n_cells),
            n_slots=self.n_slots,
            windowed_images=spec.windowed_images,
        )
        self.sampler = RowSampler(self.device, spec.n_vocab)
        self.steps = Steps(self.decoder, self.sampler, self.device, exact)
        self._faults = Faults(self.device, self._recover)
        self._loop = Loop(
            self.planner, self.steps, self.sampler, self.device, self.forward, has_states=self.n_slots > 0
        )
        self.cell_bytes, self.slot_bytes = self.memory.cell_bytes, self.memory.slot_bytes
        # Numbers lie as in the native backend, so that saved sequences can be exchanged.
        kind = f"native {kv}" if precision == "standard" else f"native {kv}, {precision} precision"
        self.cell_layout = f"{kind}, {spec.kv_layout}"
        self.slot_layout = f"torch f32, {spec.state_layout}"  # states lie in another order there

    def forward(self, batch: Batch) -> TorchRows:
        """The logits of n_wanted rows, on the device."""
        return self._forward(batch)

    def _forward(self, batch: Batch, tokens: Tensor | None = None) -> TorchRows:
        """`forward`; of `tokens` int32[n], if they are known on the device alone."""
        decoder, n = self._open, len(batch)
        try:
            if isinstance(batch, Decoding) and (bucket := find_bucket(n)) is not None:
                work = self.planner.decode(batch, bucket)
                if work is not None:
                    if tokens is not None:
                        work.tokens[:n].copy_(tokens)
                    return self.steps.run(work, n)
            return self.sampler.rows(decoder.logits(self._run(batch, tokens)))
        except BaseException as error:
            self._undo(batch, error)
            raise

    def prepare(self, draws: Sequence[Draw]) -> None:
        """Sample rows that will be asked for, all together."""
        try:
            self.sampler.prepare(draws)
        except Exception as error:
            self._faults.explain(error, f"sampling {len(draws):,} tokens")
            raise

    @property
    def samples_rows(self) -> bool:
        """Whether rows are sampled on the device."""
        return uses_kernels(self.planner.views.cells)

    def sample_rows(
        self, rows: Sequence[DeviceRow] | Floats, params: list[SamplingParams], uniforms: list[float]
    ) -> list[int]:
        """A token of each row of a pass, or a code of `sampler.WRONG`."""
        assert isinstance(rows, TorchRows)
        return self.sampler.sample(rows, params, uniforms)

    @property
    def most_queued(self) -> int:
        """How many rows can be sampled without waiting."""
        return self.sampler.buffers.capacity

    def queue_rows(
        self, rows: Sequence[DeviceRow] | Floats, params: list[SamplingParams], uniforms: list[float]
    ) -> None:
        """Have all rows of a pass sampled, without waiting."""
        assert isinstance(rows, TorchRows)
        self.sampler.queue(rows, params, uniforms)

    def forward_queued(self, batch: Decoding, which: list[int] | None) -> TorchRows:
        """The logits of a step whose tokens are being sampled."""
        tokens = self.sampler.buffers.following
        return self._forward(
            batch, tokens[: len(batch)] if which is None else tokens[self._tensor(np.array(which))]
        )

    def take_rows(self, n: int) -> list[int]:
        """The tokens of the rows that were queued; below 0 where they have to be sampled in another way."""
        return self.sampler.buffers.take_all(n)

    def hidden(self, batch: Batch) -> Floats:
        """float32[n_wanted, n_embd]."""
        try:
            return _host(self._run(batch))
        except BaseException as error:
            self._undo(batch, error)
            raise

    def project(self, name: str, rows: Floats) -> Floats:
        """float32[n, rows of the matrix]: what a projection makes of pooled hidden states."""
        with self._faults.during(f"projecting {len(rows):,} rows"):
            return _host(self._open.project(name, self._tensor(np.asarray(rows, np.float32))))

    def _undo(self, batch: Batch, error: BaseException) -> None:
        """Forget a pass that failed, and raise what its error means."""
        self.planner.forget()
        self._faults.explain(error, f"running {len(batch):,} tokens")

    def _recover(self) -> None:
        """Drop what can be made again, and whatever a failed pass has left."""
        self.planner.forget()
        self.steps.clear()

    def _run(self, batch: Batch, tokens: Tensor | None = None) -> Tensor:
        """Final hidden states of the wanted rows."""
        run, decoder = self._pass(batch), self._open
        if tokens is not None:
            run.tokens[: len(batch)].copy_(tokens)
        n = len(batch.wanted)
        if n and run.probes is None and not run.watched:
            size = len(batch).bit_length()  # tiles of products depend on it
            self.steps.ahead.compile((size, n > 1), lambda: decoder.logits(decoder.run(run)[:n]))
        hidden = decoder.run(run)
        if run.probes is not None:
            batch.received = _host(torch.stack(run.received).mean(dim=0))
        if run.watched:
            batch.attention = [self._watched(run, i, batch) for i in range(len(run.watched))]
        wanted = batch.wanted
        return hidden if len(wanted) == len(batch) else hidden[self._tensor(wanted).long()]

    def _pass(self, batch: Batch) -> Pass:
        placement = batch.placement
        if placement is None:
            raise InvalidRequest("the batch has no cells yet; call batch.place(cells) first")
        vectors = None
        if batch.vectors:
            rows = self._tensor(np.array(list(batch.vectors), np.int64))
            vectors = rows, self._tensor(np.stack(list(batch.vectors.values())))
        if self.spec.recurrent and placement.slots is None:
            raise InvalidRequest("the model has recurrent layers, but the batch has no state slots")
        return Pass(
            self.planner.place(batch, placement),
            self.memory,
            self.spec.has_grid_positions,
            vectors,
            self._tensor(batch.types) if batch.has_types else None,
            self._tensor(batch.probes) if len(batch.probes) else None,
            list(batch.watched),
        )

    def _watched(self, run: Pass, i: int, batch: Batch) -> Floats:
        """float32[layers that attend, n_head, length of the view]: a watched row's attention."""
        assert batch.placement is not None
        length = int(batch.placement.lengths[run.watched[i]])
        found = np.zeros((len(run.weights), self.spec.n_head, length), np.float32)
        for layer, rows in enumerate(run.weights):
            heads, n = rows[i].shape
            found[layer, :heads, :n] = _host(rows[i])
        return found

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def loop(self, run: FusedRun) -> tuple[list[int], Floats | DeviceRow]:
        """Several tokens of one sequence; the host accepts each while the device computes it."""
        try:
            return self._loop.run(run)
        except BaseException:
            self.planner.forget()
            raise

    # -- cells and states --

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy K and V of cells `source` to cells `target`."""
        with self._faults.during("copying cells"):
            self._memory.copy(source, target)

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Re-apply RoPE to the keys of `cells`, `delta` positions further."""
        with self._faults.during("moving cells"):
            self._memory.rotate(cells, delta)

    def read_cells(self, cells: Ints) -> Bytes:
        """uint8[n, cell_bytes], in the order [n][layer][K, V][head]."""
        with self._faults.during("saving cells"):
            return self._memory.read(cells)

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """Write K and V of `cells`, in the format of `read_cells`."""
        with self._faults.during("restoring cells"):
            self._memory.write(cells, data)

    def copy_slots(self, source: Ints, target: Ints) -> None:
        """Copy the states of slots `source` to slots `target`."""
        with self._faults.during("copying states"):
            self._memory.copy_slots(source, target)

    def clear_slots(self, slots: Ints) -> None:
        """Set the states of `slots` to that of no tokens."""
        self._memory.clear_slots(slots)

    def read_slots(self, slots: Ints) -> Bytes:
        """uint8[n, slot_bytes], layer by layer."""
        with self._faults.during("saving states"):
            return self._memory.read_slots(slots)

    def write_slots(self, slots: Ints, data: Bytes) -> None:
        """Write the states of `slots`, in the format of `read_slots`."""
        with self._faults.during("restoring states"):
            self._memory.write_slots(slots, data)

    def close(self) -> None:
        """Free weights and cache."""
        if self._experts is not None:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # no queued pass needs them
            self._experts.close()
        self.decoder = None
        del self.memory, self.planner, self.steps, self._loop
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def _open(self) -> Decoder:
        if self.decoder is None:
            raise InvalidRequest("the model is closed; load it again")
        self._faults.check()
        if self._experts is not None:
            self._experts.check()
        return self.decoder

    @property
    def _memory(self) -> DeviceCells:
        return self._open.memory


def _host(tensor: Tensor) -> Floats:
    found: Floats = tensor.float().cpu().numpy()
    return found
