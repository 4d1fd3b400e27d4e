"""A few rows through plain layers whose weights are bfloat16: one launch between two attentions.

    if (rows := chain.make(decoder, device)) is not None and rows.takes(n):
        logits = rows.run(run)

Layers are plain as lean.py says. Rows get the bits that all other products give them, so this is for
`exact=True`; norms of longer passes are `cuda.add_rms` then, whose order of sums is that of this kernel
(kernels/chain.cu).
"""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_long, c_void_p
from dataclasses import dataclass
from typing import Any

import torch

from stretto.backends.torch import activations, lean
from stretto.backends.torch.attention_layer import AttentionLayer
from stretto.backends.torch.cuda import TYPES, address, is_available, load
from stretto.backends.torch.decoder import Decoder
from stretto.backends.torch.device import Tensor, multiprocessors
from stretto.backends.torch.feed_layer import DenseLayer
from stretto.backends.torch.matrix import Dense, Matrix
from stretto.backends.torch.octets import shared_limit
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.rowwise import NormWeights, power_of_two

MOST_ROWS = 8
CAPABILITY = 9, 0  # for which it is known that these products have the bits of all others
WARPS = 8
STAGES = range(4, 8)  # copies of a warp that are under way, and one; more of them slow attention down (H200)
MOST_BYTES = 100 << 20  # of a layer: where weights take longer than meetings, kernels of their own are faster
OWN_BYTES = 2 << 10  # of shared memory, for what the kernel declares
LEGS = 4


class _Memory(Structure):
    _fields_ = (
        ("mixed", c_void_p), ("x", c_void_p), ("inner", c_void_p), ("out", c_void_p), ("stride", c_long),
        ("counters", c_void_p),
    )  # fmt: skip


class _Legs(Structure):
    _fields_ = (
        ("weights", c_void_p * LEGS), ("biases", c_void_p * LEGS), ("gains", c_void_p * 2),
        ("eps", c_float * 2),
    )  # fmt: skip


@dataclass(frozen=True)
class Leg:
    """A product of the chain."""

    matrix: Matrix
    bias: Tensor | None
    norm: NormWeights | None = None

    @property
    def weight(self) -> Tensor:
        """As it is on the device."""
        part = self.matrix.parts[0]
        assert isinstance(part, Dense)
        return part.weight


@dataclass(frozen=True)
class Link:
    """What one launch computes: all legs behind a layer's attention, or the last one alone."""

    legs: tuple[Leg, ...]
    out: torch.dtype  # of the last one
    act: int = 1  # activations.CODES

    def shape(self, n: int, device: Any) -> tuple[dict[str, int], int]:
        """Constants of the kernel for n rows, and bytes of shared memory: 0 if a block has not as much."""
        whole = len(self.legs) == LEGS
        columns = [leg.matrix.columns for leg in self.legs]
        width = columns[-1]
        attended, inner = (columns[0], columns[2]) if whole else (width, width)
        chunk = 128 if all(each % 128 == 0 for each in columns) else 64
        rows = power_of_two(n)
        stage, x_bytes = WARPS * 8 * (2 * chunk + 16), 2 * rows * (max(columns) + 8)
        stages = min(STAGES[-1], (shared_limit(device) - OWN_BYTES - x_bytes) // stage)
        constants = {
            "E": width, "A": attended, "F": inner, "Q": self.legs[-1].matrix.rows, "ROWS": rows,
            "FROM": LEGS - len(self.legs), "OUT": TYPES[self.out], "ACT": self.act, "CHUNK": chunk,
            "STAGES": stages,
        }  # fmt: skip
        return constants, stages * stage + x_bytes if stages >= STAGES[0] else 0

    def run(self, x: Tensor, mixed: Tensor, counters: Tensor, out: Tensor | None = None) -> Tensor:
        """What the last leg gives; all legs together add to x float32[n, n_embd], in place."""
        constants, shared = self.shape(len(x), x.device)
        n, legs = len(x), self.legs
        if out is None:
            out = torch.empty(n, legs[-1].matrix.rows, dtype=self.out, device=x.device)
        inner = torch.empty(n, constants["F"], dtype=torch.bfloat16, device=x.device)
        memory = _Memory(
            address(mixed), address(x), address(inner), address(out), out.stride(0), address(counters)
        )
        taken = _Legs()
        for i, leg in enumerate(legs, LEGS - len(legs)):
            taken.weights[i], taken.biases[i] = address(leg.weight), address(leg.bias)
            if leg.norm is not None:
                taken.gains[i // 2], taken.eps[i // 2] = address(leg.norm.weight), leg.norm.part.eps
        kernel = load("chain.cu", "chain", constants, x.device)
        kernel.launch(multiprocessors(x.device), 32 * WARPS, shared, (memory, taken, c_int(n)))
        return out


class Chain:
    """The launches of a decoder."""

    def __init__(self, decoder: Decoder, device: torch.device) -> None:
        self._decoder, self._device = decoder, device
        layers = decoder.layers
        self._links = [Link((_before(layers[0]),), decoder.dtype)]
        for i, made in enumerate(layers):
            mixer, ffn = made.mixer, made.ffn
            assert isinstance(mixer, AttentionLayer)
            assert isinstance(ffn, DenseLayer)
            legs = (
                Leg(mixer.output, mixer.output_bias),
                Leg(ffn.inner, ffn.bias, made.ffn_norm),
                Leg(ffn.output, ffn.output_bias),
            )
            is_last = i + 1 == len(layers)
            last = Leg(decoder.output, None, decoder.output_norm) if is_last else _before(layers[i + 1])
            out = torch.float32 if is_last else decoder.dtype
            self._links.append(Link((*legs, last), out, activations.code(ffn.ffn.activation)))
        decoder.norms_alone = True
        self._counters = make_counters(device)

    def takes(self, n: int) -> bool:
        """Whether a step of n rows can be computed this way."""
        return n <= MOST_ROWS and all(link.shape(n, self._device)[1] for link in self._links)

    def run(self, run: Pass, out: Tensor | None = None) -> Tensor:
        """Logits float32[n, n_vocab]; into `out` if given."""
        decoder = self._decoder
        x = decoder.embed(run)
        made = self._links[0].run(x, x, self._counters)
        for layer, link in zip(decoder.layers, self._links[1:], strict=True):
            assert isinstance(layer.mixer, AttentionLayer)
            mixed = layer.mixer.attend(made, run)
            made = link.run(x, mixed, self._counters, out if link is self._links[-1] else None)
        return decoder.scaled(made)


def make_counters(device: Any) -> Tensor:
    """Counters of blocks that meet, 0 between launches but for one that the next launch begins with."""
    return torch.zeros(LEGS, dtype=torch.int32, device=device)


def _before(layer: Any) -> Leg:
    return Leg(layer.mixer.projection, layer.mixer.bias, layer.norm)


def make(decoder: Decoder, device: torch.device) -> Chain | None:
    """The chain of a decoder, if all of its layers can be in one."""
    is_able = (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) == CAPABILITY
        and is_available()
        and decoder.dtype == torch.bfloat16
        and lean.is_plain(decoder)
        and all(layer.ffn.ffn.activation == "silu" for layer in decoder.layers)  # type: ignore[union-attr]
        and all(map(_is_linked, lean.matrices(decoder)))
        and sum(each.nbytes for each in lean.matrices(decoder)) <= MOST_BYTES * (len(decoder.layers) + 1)
    )
    return Chain(decoder, device) if is_able else None


def _is_linked(matrix: Matrix) -> bool:
    """Whether the kernel can multiply a matrix."""
    part = matrix.parts[0]
    return (
        len(matrix.parts) == 1
        and isinstance(part, Dense)
        and part.weight.dtype == torch.bfloat16
        and part.weight.data_ptr() % 16 == 0
        and matrix.columns % 64 == 0
        and matrix.rows % 8 == 0
    )
