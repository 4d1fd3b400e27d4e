"""Device memory: what weights and cells take, how many cells fit, and errors that say so in numbers.

    need = Need.of(file, spec, kv="f16")
    cells = choose_cells("auto", need, free_bytes(device))

Weights, states and working memory come first, and cells get what is left. Nothing here imports torch until a
device is asked for its free memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from traceback import clear_frames

from stretto.errors import CacheFull, InvalidRequest, ModelError
from stretto.hardware.gpus import cuda_devices
from stretto.models.spec import ModelSpec
from stretto.weights.formats import Format
from stretto.weights.gguf import GGUF, Tensor

# Multiplied as they are in the file; others are widened to 16 bits.
PACKED = frozenset(
    Format[name] for name in ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "BF16", "F16")
)
FLOATS = frozenset({Format.F32, Format.F16, Format.BF16})
NUMBER_BYTES = {"f16": 2.0, "bf16": 2.0, "f32": 4.0, "fp8": 1.0, "q8": 1.0 + 2 / 32}
SMALLER = {"Q8_0": 8.5, "Q6_K": 6.5625, "Q5_K": 5.5, "Q4_K": 4.5}  # formats to suggest: bits of a number

VIEW_BYTES = 4 * 8  # of a cell in the pool of views, which holds four times as many as there are cells
GRAPH_BYTES = 512 << 20  # of captured decode steps, and of the libraries' own context
PASS_TOKENS = 4096  # of a prompt in one pass
PASS_ROWS = 256  # of a decode step
MIN_CELLS = 2048  # with fewer a model is of no use
CONTEXTS = 64  # that "auto" has room for; more would only keep memory from others
MAX_CELLS = 1 << 24
AUTO_SHARE = 0.9  # of what is left, so that torch's allocator has room for fragments


def is_wide(file: GGUF, precision: str, device: str) -> bool:
    """Whether activations are float32: with high precision, where a GPU multiplies no packed weights."""
    packed = PACKED - FLOATS
    return precision == "high" and not (
        device != "cpu" and any(tensor.format in packed for tensor in file.tensors.values())
    )


@dataclass(frozen=True)
class Need:
    """Bytes on the device: of weights, a cell, all states of recurrent layers, and working memory."""

    weights: int
    cell: int
    states: int
    work: int
    numbers: int = 0  # of all weights
    context_length: int = 8192
    path: Path | None = None
    experts: int = 0  # of the weights, that a CPU could compute

    @classmethod
    def of(
        cls, file: GGUF, spec: ModelSpec, *, kv: str = "f16", wide: bool = False, n_slots: int = 0
    ) -> Need:
        """What a model takes, from the head of its file; `wide`: activations and float weights in float32."""
        names = spec.tensors()
        tensors = [file.tensors[name] for name in names if name in file.tensors]
        matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]
        number = 4 if wide else 2

        weights = sum(device_bytes(tensor, wide) for tensor in tensors)
        layers = [prod(tensor.shape) for tensor in matrices if tensor.name.startswith("blk.")]
        return cls(
            weights=weights,
            cell=VIEW_BYTES + int(spec.kv_floats * NUMBER_BYTES[kv]),
            states=4 * spec.state_floats * n_slots,
            work=work_bytes(spec, number, max(layers, default=0)),
            numbers=sum(prod(tensor.shape) for tensor in tensors),
            context_length=spec.context_length,
            path=file.path,
            experts=sum(
                device_bytes(file.tensors[name], wide)
                for several in spec.expert_tensors().values()
                for name in several
                if name in file.tensors
            ),
        )

    @property
    def fixed(self) -> int:
        """All but the cells."""
        return self.weights + self.states + self.work

    def fitting(self, free: int) -> int:
        """How many cells fit beside the rest."""
        return max(0, free - self.fixed) // max(1, self.cell)


def device_bytes(tensor: Tensor, wide: bool = False) -> int:
    """What a tensor of a file takes on the device; `wide` as of `Need.of`."""
    fmt, count = tensor.format, prod(tensor.shape)
    if len(tensor.shape) == 1:
        return 4 * count
    is_packed = fmt in PACKED and fmt not in FLOATS
    return count // fmt.block * fmt.size if is_packed else (4 if wide else 2) * count


def work_bytes(spec: ModelSpec, number: int, largest: int) -> int:
    """Working memory: graphs, a prompt's activations, logits, and the largest matrix widened."""
    inner = 2 * spec.n_ff + 4 * spec.n_embd + 3 * spec.n_head * spec.head_size
    activations = PASS_TOKENS * (inner * number + 8 * spec.n_embd)
    logits = 3 * 4 * PASS_ROWS * spec.n_vocab
    return GRAPH_BYTES + activations + logits + number * largest


def choose_cells(cells: int | str, need: Need, free: int) -> int:
    """The number of cells: as given, if they fit; "auto": what is free, up to so many whole contexts.

    Raises `ModelError` if weights leave no room for a cache, and `CacheFull` if that many cells do not fit.
    """
    fit = need.fitting(free)
    least = MIN_CELLS if cells == "auto" else 1
    if fit < min(least, need.context_length):
        raise ModelError(_too_large(need, free), path=need.path)
    if not isinstance(cells, str):
        if cells > fit:
            raise CacheFull(
                f"{cells:,} cells take {size(cells * need.cell)} on the device; {fit:,} fit into the "
                f"{size(free)} that are free, beside {size(need.weights)} of weights and "
                f"{size(need.states + need.work)} to work with; ask for fewer, for cells='auto', or for "
                "kv='fp8' or 'q8', which take half as much",
                n_needed=cells,
                n_free=fit,
            )
        return cells
    wanted = max(MIN_CELLS, CONTEXTS * need.context_length)
    roomy = int(AUTO_SHARE * (free - need.fixed)) // max(1, need.cell)
    return min(wanted, max(roomy, min(fit, MIN_CELLS)), MAX_CELLS)


def _too_large(need: Need, free: int) -> str:
    message = (
        f"its weights take {size(need.weights)} on the device beside {size(need.states + need.work)} to "
        f"work with, and {size(free)} are free"
    )
    room = free - need.states - need.work - MIN_CELLS * need.cell
    if need.experts and need.weights - need.experts <= room:
        return (
            f"{message}; experts='auto' leaves as many of its {size(need.experts)} of experts to the CPU "
            "as do not fit; device='cpu' works too"
        )
    for name, bits in SMALLER.items():
        nbytes = int(need.numbers * bits / 8)
        if 0 < nbytes <= room and nbytes < need.weights:
            return f"{message}; in {name} they would take {size(nbytes)} and fit; device='cpu' works too"
    return f"{message}; at most {size(max(0, room))} of weights would fit; device='cpu' runs them from memory"


def find_room(device: str, beside: int = 0, most: int | None = None) -> int:
    """The bytes that a model about to be opened on a device can have: what is free, and at most `most`.

    `beside` are bytes that something else, an image encoder, will take there.
    """
    total = cuda_devices()[0].memory_total if device != "cpu" and cuda_devices() else None
    if most is not None and total is not None and most > total:
        raise InvalidRequest(
            f"gpu_memory is {size(most)}, and this GPU has {size(total)}",
            param="gpu_memory",
            value=most,
        )
    free = free_bytes(device) - beside
    return free if most is None else min(free, most)


def free_bytes(device: object) -> int:
    """The bytes that a model can have: free on the device, or held by torch and unused."""
    import torch

    if torch.device(device).type != "cuda":
        return 1 << 62
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + held)


def has_room(device: object, nbytes: int) -> bool:
    """Whether so much is free for CUDA itself, once torch has given back what it holds and does not use."""
    import torch

    if torch.cuda.mem_get_info(device)[0] < nbytes <= free_bytes(device):
        torch.cuda.empty_cache()
    return bool(torch.cuda.mem_get_info(device)[0] >= nbytes)


@contextmanager
def device_memory(what: str, device: object) -> Iterator[None]:
    """Raise `ModelError` with the numbers where torch runs out of device memory; `what` names the work."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = ran_out(what, device, error)
        free_again(error)
        raise ModelError(message) from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device had no memory left, for torch or for a library that it calls."""
    import torch

    if isinstance(error, torch.OutOfMemoryError):
        return True
    words = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "[CUDA]: out of memory")
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)


def free_again(error: BaseException, recover: Callable[[], None] = lambda: None) -> None:
    """Free what a failed pass or load had made: the error's own frames hold it until then."""
    import torch

    clear_frames(error.__traceback__)
    recover()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def ran_out(what: str, device: object, error: BaseException) -> str:
    """The message: what was needed and what there is."""
    import torch

    message = f"the device's memory ran out while {what}"
    if asked := re.search(r"Tried to allocate ([\d.]+ \w+)", str(error)):
        message += f", which needs {asked[1]} more"
    if torch.cuda.is_available() and torch.device(device).type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        mine = torch.cuda.memory_allocated(device)
        message += f": {size(mine)} of {size(total)} are this process's, {size(free)} are free"
    return (
        f"{message}; load the model with fewer cells, with kv='fp8' or 'q8', or in a smaller format, or set "
        "a smaller Limits(max_tokens_per_step=…)"
    )


def size(nbytes: int) -> str:
    """As "1.4 GB", in powers of ten."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 10**8 else f"{nbytes / 1e6:,.1f} MB"
