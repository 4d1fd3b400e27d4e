"""The protocol between engine and backends: a flat batch goes in, logits come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stretto._native import Mixture
from stretto.backends.batch import Adapts, Batch, Decoding, LoRA, Mix, Tap
from stretto.errors import Unsupported
from stretto.hooks import NativeHook
from stretto.models.parts import POOLINGS, Head, Pooling
from stretto.models.sites import Site
from stretto.models.spec import ModelSpec
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import RandomStream
from stretto.weights.gguf import GGUF
from stretto.weights.tensor import Tensor

__all__ = [
    "POOLINGS",
    "Adapts",
    "Backend",
    "Batch",
    "Capabilities",
    "Decoding",
    "DeviceRow",
    "Draw",
    "DrawsRows",
    "Follow",
    "FusedRun",
    "Head",
    "LoRA",
    "Mask",
    "Mix",
    "Mixes",
    "NoSlots",
    "Pooling",
    "Prepares",
    "Projects",
    "SamplesRows",
    "Settles",
    "Tap",
    "Updates",
]


Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.uint32]

# Gets a sampled token and the token budget after it; returns the forced tokens that follow, and whether
# the text continues after them.
Follow = Callable[[int, int], tuple[list[int], bool]]


class DeviceRow(Protocol):
    """A row of logits that stays on the backend's device until its numbers are read.

    A backend may return these instead of NumPy rows, and sample where they are.
    """

    def numpy(self) -> Floats:
        """float32[n_vocab] on the host, writable; later calls of `sample` use that copy."""
        ...

    def fetch(self, others: Sequence[DeviceRow]) -> None:
        """Move this row and others to the host, in one copy if they lie together; `numpy` has them then."""
        ...

    def sample(
        self, params: SamplingParams, tokens: Sequence[int], n_prompt: int, uniform: float, mask: Mask | None
    ) -> int:
        """The token that the host's sampler would sample from the same logits."""
        ...

    def measure(self, token: int, n_top: int, mask: Mask | None) -> tuple[float, list[tuple[int, float]]]:
        """The log-probability of a token, and those of the `n_top` best ones with their ids.

        With a mask they are of the distribution over the tokens it allows.
        """
        ...

    def copy(self) -> DeviceRow:
        """Another row with the same numbers; they need not be copied until one of the two is changed."""
        ...


# Rows of logits: NumPy arrays, or rows that stay on a device until something on the host looks at them.

Row = NDArray[np.float32]  # float32[n_vocab]
Rows = NDArray[np.float32] | Sequence[DeviceRow]  # float32[n, n_vocab], or rows that are on a device


def host_row(row: Row | DeviceRow) -> Row:
    """A row as NumPy sees it."""
    return row if isinstance(row, np.ndarray) else row.numpy()


def host_rows(rows: Rows, n_vocab: int = 0) -> NDArray[np.float32]:
    """float32[n, n_vocab] on the host; `n_vocab` counts where there are no rows on a device to tell it."""
    if isinstance(rows, np.ndarray):
        return rows
    fetch_rows(rows)
    return np.stack([row.numpy() for row in rows]) if rows else np.empty((0, n_vocab), np.float32)


def fetch_rows(rows: Iterable[Row | DeviceRow | None]) -> None:
    """Move rows that are on a device to the host together: all will be looked at there."""
    there = [row for row in rows if row is not None and not isinstance(row, np.ndarray)]
    if len(there) > 1:
        there[0].fetch(there[1:])


class Draw(NamedTuple):
    """A call of `DeviceRow.sample` that is about to come, and one of `measure` after it."""

    row: DeviceRow
    params: SamplingParams
    tokens: Sequence[int]
    n_prompt: int
    uniform: float
    mask: Mask | None
    n_top: int | None = None  # the best tokens whose log-probabilities are wanted; None: not even the token's

    def is_for(
        self,
        params: SamplingParams,
        tokens: Sequence[int],
        n_prompt: int,
        uniform: float,
        mask: Mask | None,
    ) -> bool:
        """Whether a call has these arguments: then the token is the same."""
        if params is not self.params or uniform != self.uniform or mask is not self.mask:
            return False
        return not params.penalizes or (len(tokens), n_prompt) == (len(self.tokens), self.n_prompt)


@runtime_checkable
class Updates(Protocol):
    """The part of a backend whose weights can be replaced while it is open."""

    def update(self, file: GGUF, is_new: Callable[[Tensor], bool]) -> str:
        """Take the new tensors of a file, in the formats that it has; return a fingerprint of them.

        The file is of the same spec. An exception may leave a part of the weights replaced.
        """
        ...


@dataclass(frozen=True)
class Capabilities:
    """Optional features of a backend, beyond computing logits."""

    fork: bool = True  # cells may belong to several sequences
    merge: bool = True  # several cells at one position of one sequence
    shift: bool = True  # keys can be rotated to another position
    embeddings: bool = True  # batches may hold vectors instead of tokens
    hidden: bool = True  # final hidden states
    attention: bool = False  # attention weights (Batch.probe, Batch.watch)
    sites: bool = False  # rows at sites within layers are shown and changed (Batch.taps)
    fused: bool = False  # several tokens without going back to the engine (`loop`)
    ahead: bool = False  # that is faster, so that a lone request does it unless it says otherwise

    def require(self, name: str, backend: str) -> None:
        """Raise `Unsupported` unless the backend has the capability."""
        if name not in {field.name for field in fields(self)}:
            raise ValueError(f"no capability is called {name!r}")
        if not getattr(self, name):
            able = "native" if name == "fused" else "reference"
            raise Unsupported(f"the {backend} backend cannot do {name!r}; backend={able!r} can")


@dataclass
class FusedRun:
    """The input of the fused loop: up to len(cells) tokens of one sequence, starting from `logits`."""

    logits: Floats | DeviceRow  # float32[n_vocab], of the last token; on the device if it makes such rows
    cells: Ints  # reserved for the new tokens
    position: int  # of the first of them
    view: Ints  # starts with the sequence's cells, those of `cells` last
    n_view: int  # number of valid entries of `view`
    table: Ints  # the position of every cell
    params: SamplingParams
    tokens: list[int]  # so far
    n_prompt: int
    random: RandomStream
    ends: list[int]  # tokens that end it
    hooks: tuple[NativeHook, ...] = ()  # called before each token
    mask: Mask | None = None  # uint32[n_vocab / 32]: the allowed tokens, a bit each; None: all
    follow: Follow | None = None  # called after each token; changes `mask` in place
    interrupt: NDArray[np.uint8] | None = None  # uint8[1]; not 0: the loop ends after the current token
    slot: int = -1  # with recurrent layers: the slot whose state its tokens advance, in place
    sequence: int = -1  # whose view it is, for backends that keep views
    edits: int = 0  # the number of the view's last edit (cache/views.py); 0: not known
    mix: Mix | None = None  # the adapters that its tokens are computed with
    n_run: int = 0  # output: how many of its tokens have K and V in their cells, and are in the state
    sampling: float = 0.0  # output: seconds of sampling


class Backend(Protocol):
    """Runs one model with a fixed number of cells. Not thread-safe: one thread calls it at a time."""

    name: str
    spec: ModelSpec
    capabilities: Capabilities
    precision: str  # of products: "standard" (activations in 8 bits), "high" (in 16), "exact" (float32)
    n_cells: int
    cell_bytes: int  # K and V of one cell, of all layers
    cell_layout: str  # their format: data can be written only where this text is the same
    n_slots: int  # states of recurrent layers; 0: the model has no such layers
    slot_bytes: int  # the state of one slot, of all recurrent layers
    slot_layout: str  # its format, as `cell_layout`

    @property
    def active_threads(self) -> int:
        """Number of threads in use; may change from batch to batch."""
        ...

    def forward(self, batch: Batch) -> Floats | Sequence[DeviceRow]:
        """Compute all tokens of a placed batch, write their K and V into their cells.

        Returns float32[n_wanted, n_vocab], or a list of n_wanted `DeviceRow`s. They belong to the caller: the
        backend never writes to them or reuses their memory while they are referenced.
        """
        ...

    def hidden(self, batch: Batch) -> Floats:
        """As `forward`, but the final hidden states, after the last norm: float32[n_wanted, n_embd]."""
        ...

    def loop(self, run: FusedRun) -> tuple[list[int], Floats | DeviceRow]:
        """Sample and run tokens until one ends it or the cells are used up; return them and the next logits.

        With the capability "fused" only. Draws the same numbers from `run.random` as the Python loop.
        """
        ...

    def copy_cells(self, source: Ints, target: Ints) -> None:
        """Copy K and V of cells `source` to cells `target`, in order."""
        ...

    def rotate_cells(self, cells: Ints, delta: int) -> None:
        """Re-apply RoPE to the keys of `cells`, `delta` positions further."""
        ...

    def read_cells(self, cells: Ints) -> Bytes:
        """A copy of K and V of `cells`, of all layers: uint8[n, cell_bytes]."""
        ...

    def write_cells(self, cells: Ints, data: Bytes) -> None:
        """Write K and V of `cells` from `data`, in the format of `read_cells`."""
        ...

    def copy_slots(self, source: Ints, target: Ints) -> None:
        """Copy the states of slots `source` to slots `target`, in order; no slot is in both."""
        ...

    def clear_slots(self, slots: Ints) -> None:
        """Set the states of `slots` to that of no tokens."""
        ...

    def read_slots(self, slots: Ints) -> Bytes:
        """A copy of the states of `slots`: uint8[n, slot_bytes]."""
        ...

    def write_slots(self, slots: Ints, data: Bytes) -> None:
        """Write the states of `slots` from `data`, in the format of `read_slots`."""
        ...

    def close(self) -> None:
        """Free everything; the backend is not used again."""
        ...


@runtime_checkable
class Projects(Protocol):
    """The part of a backend that applies the matrices of a model's heads (models/parts.py)."""

    def project(self, name: str, rows: Floats) -> Floats:
        """float32[n, rows of the matrix] of pooled hidden states float32[n, its columns].

        Each row's result has the same bits whatever the others are.
        """
        ...


class NextHead(Protocol):
    """A layer that drafts from a model's hidden states: the model's own (MTP), or a head for it (EAGLE-3)."""

    sites: tuple[Site, ...]  # where it reads the states of the model's tokens
    skips_unknown: bool  # it makes no cell of a token before which no state is known; else of zeros
    ids: NDArray[np.int64] | None  # the model's token for each of its logits; None: they are the same

    def open(self, n_cells: int) -> None:
        """Have room for so many tokens; it is opened once."""
        ...

    def fuse(self, states: Floats) -> Floats:
        """float32[n, n_embd]: what it keeps of the states at its sites, which stand one behind the other."""
        ...

    def join(self, tokens: Sequence[int], states: Floats) -> Floats:
        """What the layer reads for each token, of the fused state of the one before it, or of its own."""
        ...

    def forward(self, batch: Batch) -> tuple[Floats, Floats]:
        """Logits of the wanted rows, and of all rows the states that tokens behind them are joined with."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


@runtime_checkable
class HasNextHead(Protocol):
    """The part of a backend that runs a model's layer for drafts beside the decoder."""

    next_head: NextHead | None  # of the model, if it has one


@runtime_checkable
class OpensHeads(Protocol):
    """The part of a backend that runs heads for drafts from files of their own."""

    open_head: Callable[[Path], NextHead] | None  # None where the model was not opened from a file


@runtime_checkable
class Mixes(Protocol):
    """The part of a backend that sums up rows of logits with its own threads."""

    def mixture(self, rows: Floats, order: list[int]) -> Mixture:
        """The distributions of rows in this order; no pass may run meanwhile."""
        ...


@runtime_checkable
class DrawsRows(Protocol):
    """The part of a backend that samples rows in main memory with the threads of its passes."""

    def draw_rows(
        self, rows: list[Floats], params: SamplingParams, uniforms: list[float]
    ) -> list[tuple[int, float]]:
        """Of each row a token, without penalties, bias and mask, and its log-probability.

        The token may be a code of `sampling.sampler.WRONG`. No pass may run meanwhile.
        """
        ...


@runtime_checkable
class Prepares(Protocol):
    """The part of a backend that samples rows of different requests together."""

    def prepare(self, draws: Sequence[Draw]) -> None:
        """Sample rows that will be asked for; `DeviceRow.sample` and `measure` then answer at once.

        Never raises for what is wrong with one draw: its row's `sample` does.
        """
        ...


@runtime_checkable
class Settles(Protocol):
    """The part of a backend that runs before its weights are where they are to stay."""

    def settle(self) -> None:
        """Wait until they are: from then on passes take as long as they always will."""
        ...


@runtime_checkable
class SamplesRows(Protocol):
    """The part of a backend that samples all rows of a pass at once, with nothing but their parameters."""

    @property
    def samples_rows(self) -> bool:
        """Whether it can, on its device."""
        ...

    def sample_rows(
        self, rows: Sequence[DeviceRow] | Floats, params: list[SamplingParams], uniforms: list[float]
    ) -> list[int]:
        """A token of each row without penalties, bias and mask, or a code of `sampling.sampler.WRONG`.

        While `params` is the same list as in the last call, its parameters are.
        """
        ...


@runtime_checkable
class GoesAhead(SamplesRows, Protocol):
    """The part of a backend that queues a pass behind the sampling of its tokens, before they are known."""

    @property
    def most_queued(self) -> int:
        """How many rows can be sampled so."""
        ...

    def queue_rows(
        self, rows: Sequence[DeviceRow] | Floats, params: list[SamplingParams], uniforms: list[float]
    ) -> None:
        """`sample_rows` without waiting; `take_rows` waits."""
        ...

    def forward_queued(self, batch: Decoding, which: list[int] | None) -> Sequence[DeviceRow] | Floats:
        """The logits of a batch whose tokens are those that are being sampled: of rows `which`, or of all."""
        ...

    def take_rows(self, n: int) -> list[int]:
        """The tokens of the n rows that were queued; below 0 where `sample_rows` has to be asked."""
        ...


class NoSlots:
    """The part of a backend without recurrent layers that is about their states."""

    n_slots = 0
    slot_bytes = 0
    slot_layout = ""

    def copy_slots(self, source: Ints, target: Ints) -> None:
        """There are no slots to copy."""

    def clear_slots(self, slots: Ints) -> None:
        """There are no slots to clear."""

    def read_slots(self, slots: Ints) -> Bytes:
        """uint8[n, 0]."""
        return np.empty((len(slots), 0), np.uint8)

    def write_slots(self, slots: Ints, data: Bytes) -> None:
        """There are no slots to write."""


# The options that a backend opens a model with.

# Devices with ONNX Runtime's execution providers, and the packages that have these.
PROVIDERS: Mapping[str, tuple[str, str]] = {
    "cpu": ("CPUExecutionProvider", "onnxruntime"),
    "cuda": ("CUDAExecutionProvider", "onnxruntime-gpu"),
    "tensorrt": ("TensorrtExecutionProvider", "onnxruntime-gpu, with TensorRT's own libraries"),
    "tensorrt-rtx": ("NvTensorRTRTXExecutionProvider", "onnxruntime-trt-rtx"),
    "migraphx": ("MIGraphXExecutionProvider", "onnxruntime-migraphx"),
    "openvino": ("OpenVINOExecutionProvider", "onnxruntime-openvino"),
    "coreml": ("CoreMLExecutionProvider", "onnxruntime on macOS"),
    "directml": ("DmlExecutionProvider", "onnxruntime-directml on Windows"),
    "qnn": ("QNNExecutionProvider", "onnxruntime-qnn"),
    "webgpu": ("WebGpuExecutionProvider", "onnxruntime-webgpu"),
    "cann": ("CANNExecutionProvider", "onnxruntime-cann"),
    "vitisai": ("VitisAIExecutionProvider", "onnxruntime-vitisai"),
    "dnnl": ("DnnlExecutionProvider", "an onnxruntime built with --use_dnnl"),
    "xnnpack": ("XnnpackExecutionProvider", "an onnxruntime built with --use_xnnpack"),
}
AUTOMATIC = ("cuda", "cpu")  # of them that "auto" tries, in order; the others round differently or are rare


@dataclass(frozen=True)
class BackendOptions:
    """The checked options of `stretto.load`; a factory raises `Unsupported` for those it lacks."""

    device: str  # one of those that the backend serves
    cells: int
    threads: int
    kv: str = "f16"
    precision: str = "standard"
    repack: bool | str = "auto"  # whether weights are packed in memory; "auto": if there is enough of it
    sequences: int = 80  # of a model with recurrent layers, that have a state at the same time
    checkpoint_bytes: int = 512 << 20  # of states beside those
    exact: bool = True  # same bits whatever the batch; False: the fastest kernels of a GPU
    memory: int | None = field(default=None, compare=False)  # bytes that are free, where that is known
    auto_cells: bool = False  # a GPU has as many cells as fit, and others `cells`
    beside: int = 0  # bytes that an image encoder will take on the same GPU
    experts: str | int | tuple[str, ...] | None = None  # which of them a CPU computes beside a GPU
    gpu_memory: int | None = None  # bytes that a GPU may give at most
    cpu_speed: float = field(default=0.0, compare=False)  # bytes a second that the CPU reads, if known

    @property
    def places(self) -> bool:
        """Whether the caller said something about where a model is to be."""
        return self.experts is not None or self.gpu_memory is not None

    def n_slots(self, slot_bytes: int) -> int:
        """How many slots a model with recurrent layers gets, whose states take so many bytes each.

        >>> BackendOptions("cpu", 8192, 2).n_slots(19 << 20)
        106
        """
        return self.sequences + self.checkpoint_bytes // slot_bytes if slot_bytes else 0
