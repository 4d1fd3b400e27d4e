"""The limits of a machine, and the cost of a forward pass.

A pass reads every matrix once and the K and V that its tokens attend to, and multiplies every token with
every matrix. Of experts a token has only those that its router chooses, and a pass reads as many as random
choices of all its tokens would name. It cannot take less time than the reading at the measured bandwidth, nor
than the multiplying at the measured peak of the instruction that the kernels use. Attention, multiplied in
float, does not count, nor does what is written: the limit is one that no program reaches.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from stretto import _native, hardware
from stretto.llm import LLM
from stretto.models import ModelSpec
from stretto.models.feed_forward import Experts
from stretto.weights import hub
from stretto.weights.folder import open_weights

# The limits of a GPU: how fast it reads its memory, and multiplies matrices of bfloat16.
#
# The best of many turns counts, as on a CPU. Used by `limits` for models that run on one.

READ_BYTES = 4 << 30  # far more than the caches hold
SIDE = 8192  # of the matrices that are multiplied


def read_gigabytes(torch: Any, device: Any, nbytes: int, seconds: float) -> tuple[float, int]:
    """GB/s of reading the device's memory, and the bytes of the buffer that was read."""
    free, _ = torch.cuda.mem_get_info(device)
    nbytes = min(max(nbytes, READ_BYTES), free // 4) // 8 * 8
    block = torch.zeros(nbytes // 8, dtype=torch.int64, device=device)
    return nbytes / 1e9 / best_seconds(torch, block.max, seconds), nbytes


def multiplies(torch: Any, device: Any, seconds: float) -> float:
    """GMAC/s of a product of square matrices of bfloat16 by the vendor's library."""
    x = torch.ones(SIDE, SIDE, dtype=torch.bfloat16, device=device)
    return SIDE**3 / 1e9 / best_seconds(torch, lambda: x @ x, seconds)


def best_seconds(torch: Any, work: Any, seconds: float) -> float:
    """The time of the quickest turn; the first ones raise the clock and are not counted."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begun)
    return best


# The int8 instruction of each kernel set, as the probe names it.
INSTRUCTIONS = {
    "amx": "amx-int8",
    "avx512": "avx512vnni",
    "avx2": "avx2",
    "i8mm": "i8mm",
    "neon": "dotprod",
    "portable": "portable",
}
NUMBER_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "fp8": 1}  # types of the KV cache without scales
_MIN_BUFFER_BYTES = 2**20  # of each thread; smaller ones cannot be measured
_SECONDS = 0.2


@dataclass(frozen=True)
class Cost:
    """The cost of a pass: bytes read, and multiply-accumulates a token, in layers and for its logits.

    `expert_bytes` are those of all experts, and `expert_share` is the share of them that a token uses.
    """

    weight_bytes: int
    layer_macs: int
    output_macs: int
    expert_bytes: int = 0
    expert_share: float = 0.0

    def read_bytes(self, tokens: int) -> float:
        """The bytes of weights that a pass over `tokens` tokens reads."""
        return self.weight_bytes + self.expert_bytes * (1 - (1 - self.expert_share) ** tokens)


@dataclass(frozen=True)
class Machine:
    """Measured limits, with as many threads as the model has. GB/s and GMAC/s.

    Of a GPU it has the name, no threads, and the peak of products of bfloat16.
    """

    cpu: str
    threads: int  # 0: a GPU
    kernels: str
    bandwidth: float
    bandwidth_nbytes: int  # of the buffer that was read
    instruction: str
    integer_peak: float

    def best(self, other: Machine) -> Machine:
        """The higher figure of each: other load can only make them lower."""
        bandwidth = max(self.bandwidth, other.bandwidth)
        return replace(self, bandwidth=bandwidth, integer_peak=max(self.integer_peak, other.integer_peak))


@dataclass(frozen=True)
class Limit:
    """Upper limit of tokens a second, and what sets it."""

    tokens_per_second: float
    bound: Literal["memory", "compute"]


def file_cost(model: str | os.PathLike[str], llm: LLM) -> Cost:
    """The cost of a model's passes, from the sizes of its matrices in the file.

    >>> file_cost("smollm2", llm).layer_macs
    106168320
    """
    spec = llm.spec
    output = "token_embd.weight" if spec.tied else "output.weight"
    shares = _expert_shares(spec)
    matrices = {name: shape for name, shape in spec.tensors().items() if len(shape) in (2, 3)}
    if not spec.tied:
        del matrices["token_embd.weight"]  # only a row of it is read
    with open_weights(hub.resolve(model)) as file:
        nbytes = {name: file.tensors[name].nbytes for name in matrices}
        quantised = {name for name in matrices if file.tensors[name].format.block > 1}
    # In high precision an activation is two integers; floats are multiplied once in any.
    passes = 2 if llm.precision == "high" else 1
    macs = {
        name: int(prod(shape) * shares.get(name, 1)) * (passes if name in quantised else 1)
        for name, shape in matrices.items()
    }
    expert_bytes = sum(nbytes[name] for name in shares)
    used_bytes = sum(nbytes[name] * share for name, share in shares.items())
    return Cost(
        sum(nbytes.values()) - expert_bytes,
        sum(macs.values()) - macs[output],
        macs[output],
        expert_bytes,
        used_bytes / expert_bytes if expert_bytes else 0.0,
    )


def _expert_shares(spec: ModelSpec) -> dict[str, float]:
    """The share of each tensor of experts that one token uses."""
    shares: dict[str, float] = {}
    for i, layer in enumerate(spec.layers):
        if isinstance(layer.ffn, Experts):
            share = layer.ffn.routing.n_used / layer.ffn.n_expert
            names = [name for name, shape in layer.tensors(spec.n_embd).items() if len(shape) == 3]
            shares |= {f"blk.{i}.{name}": share for name in names}
    return shares


def cache_bytes(llm: LLM, kv: str, depth: int) -> int:
    """The bytes of K and V that a token reads with `depth` tokens before it."""
    total = 0
    for heads, size, window in llm.spec.kv_reads:
        head = NUMBER_BYTES[kv] * size if kv in NUMBER_BYTES else -(-size // 32) * 34
        total += heads * head * min(depth, window or depth)
    return total


def measure_machine(llm: LLM, threads: int | None, nbytes: int, seconds: float = _SECONDS) -> Machine | None:
    """Measure for a model of `nbytes`; None if it does not run on our kernels, whose limits these are."""
    if llm.backend.name == "torch" and llm.route is not None and llm.route.device == "cuda":
        import torch  # it is there: the model runs on it

        return measure_gpu(torch, nbytes, seconds)
    if llm.backend.name != "native":
        return None
    machine = hardware.probe(measure=False)
    # Only this backend has a choice of kernels, and the environment may have made it.
    kernels = str(getattr(llm.backend, "kernels", machine.kernels))
    instruction = INSTRUCTIONS.get(kernels, "")
    if instruction not in _native.dot_instructions():
        instruction = _native.dot_instructions()[-1]
    n = threads or machine.cores_usable
    size = max(n * _MIN_BUFFER_BYTES, min(nbytes, (machine.memory_free or nbytes) // 4))
    (bandwidth,) = _native.read_bandwidth(size, [n], seconds)
    peak = _native.integer_peak(instruction, n, seconds)
    return Machine(machine.cpu, n, kernels, bandwidth, size, instruction, peak)


def measure_gpu(torch: Any, nbytes: int, seconds: float = _SECONDS) -> Machine:
    """The limits of the GPU that this process uses."""
    bandwidth, size = read_gigabytes(torch, "cuda", nbytes, seconds)
    peak = multiplies(torch, "cuda", seconds)
    return Machine(torch.cuda.get_device_name(), 0, "triton", bandwidth, size, "bf16", peak)


def limit(cost: Cost, machine: Machine, *, tokens: int, wanted: int, seen_bytes: int) -> Limit:
    """The limit of passes over `tokens` tokens, `wanted` of them with logits, over `seen_bytes` of K/V."""
    reading = (cost.read_bytes(tokens) + seen_bytes) / (1e9 * machine.bandwidth)
    macs = tokens * cost.layer_macs + wanted * cost.output_macs
    multiplying = macs / (1e9 * machine.integer_peak)
    bound: Literal["memory", "compute"] = "memory" if reading >= multiplying else "compute"
    return Limit(tokens / max(reading, multiplying), bound)
