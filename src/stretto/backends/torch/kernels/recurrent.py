"""Launches of the kernels of recurrent mixers.

Tiles and warps depend on a mixer's sizes alone, never on the rows of a pass, so one compiled kernel computes
prompts and single steps. Where a multiplication and an addition are fused must not be left to the compiler:
it may fuse otherwise for another row of a tile, so these kernels are compiled without fusion (`EXACT`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from stretto.backends.torch.device import is_interpreting
from stretto.backends.torch.kernels.convolve import mix, short
from stretto.backends.torch.kernels.early import early_options
from stretto.backends.torch.kernels.scan import gate, scan
from stretto.backends.torch.launching import launch
from stretto.backends.torch.runs import TILE
from stretto.models.mixers import Convolution, DeltaNet, Mamba2

CHANNELS = 128  # that a program convolves
LENGTH_EPSILON = 1e-6
MATRIX_NUMBERS = 2048  # of a head, that a program of `scan` has in registers at most
GATED_NUMBERS = 1024  # of a row, that a program normalises; one group at least


EXACT: dict[str, bool] = {} if is_interpreting() else {"enable_fp_fusion": False}


@dataclass(frozen=True)
class Heads:
    """Recurrent heads, whichever their mixer is; offsets are those of the convolution's channels."""

    n: int
    n_key: int
    key_size: int
    value_size: int
    write_at: int  # keys
    read_at: int  # queries
    values_at: int
    strides: tuple[int, int]  # of a head's matrix: from key to key, from value to value
    is_delta: bool
    is_tiled: bool = False
    is_fused: bool = False
    value_block: int = 8  # value columns of a program of `scan`
    warps: int = 1  # of that program
    ahead: int = 3  # rows in flight
    is_spread: bool = False  # columns over threads

    @property
    def inner(self) -> int:
        """Numbers that all heads give."""
        return self.n * self.value_size


def delta_heads(mixer: DeltaNet) -> Heads:
    """The heads of a delta net."""
    keys = mixer.n_key_head * mixer.key_size
    return Heads(
        mixer.n_value_head, mixer.n_key_head, mixer.key_size, mixer.value_size, keys, 0, 2 * keys,
        (mixer.value_size, 1), True, mixer.tiled, mixer.fused,
    )  # fmt: skip


def mamba_heads(mixer: Mamba2) -> Heads:
    """The heads of Mamba-2: B are the keys, C the queries."""
    write = mixer.inner
    return Heads(
        mixer.n_head, mixer.n_group, mixer.state_size, mixer.head_size, write,
        write + mixer.n_group * mixer.state_size, 0, (1, mixer.state_size), False,
    )  # fmt: skip


def delta_net(
    mixer: DeltaNet, w: Any, qkv: Any, z: Any, gates: Any, states: Any, runs: Any, dtype: Any
) -> Any:
    """As `stretto.backends.torch.recurrent.delta_net` says."""
    heads = delta_heads(mixer)
    read = advance(heads, w, qkv, gates, states, runs)
    return gated(read, z, w.norm, mixer.norm.eps, heads.n, False, True, runs, dtype)


def mamba2(mixer: Mamba2, w: Any, projected: Any, states: Any, runs: Any, dtype: Any) -> Any:
    """As `stretto.backends.torch.recurrent.mamba2` says."""
    z, inputs, steps = projected.split([mixer.inner, mixer.channels, mixer.n_head], 1)
    read = advance(mamba_heads(mixer), w, inputs, steps, states, runs)
    eps = 0.0 if mixer.norm is None else mixer.norm.eps
    return gated(read, z, w.norm, eps, mixer.n_group, True, False, runs, dtype)


def convolution(mixer: Convolution, w: Any, projected: Any, states: Any, runs: Any, dtype: Any) -> Any:
    """As `stretto.backends.torch.recurrent.convolution` says."""
    out = torch.empty((len(projected), mixer.width), dtype=dtype, device=projected.device)
    if not len(out):
        return out
    grid = (runs.n_tiles, triton.cdiv(mixer.width, CHANNELS))
    launch(
        short, grid,
        projected, out, runs.rows, runs.bounds, runs.slots, runs.tiles, states, w.taps, runs.count,
        projected.stride(0), states.stride(0), mixer.width, mixer.kernel, _kept(w), TILE, CHANNELS,
        num_warps=4, **EXACT, **early_options(states.device),
    )  # fmt: skip
    return out


def advance(heads: Heads, w: Any, inputs: Any, gates: Any, states: Any, runs: Any) -> Any:
    """float32[n, inner], in the order of runs: what each row reads of its heads, whose states it advances."""
    n, (kernel, channels) = len(inputs), w.taps.shape
    mixed, numbers, out = (
        torch.empty(shape, dtype=torch.float32, device=inputs.device)
        for shape in ((n, channels), (n, heads.n, 4), (n, heads.inner))
    )
    if not n:
        return out
    state_floats = states.stride(0)
    at = (heads.write_at, heads.read_at, heads.values_at)
    keys = triton.next_power_of_2(heads.key_size)
    launch(
        mix, (runs.n_tiles, heads.n_key + triton.cdiv(heads.inner, CHANNELS)),
        inputs, gates, mixed, numbers, runs.rows, runs.bounds, runs.slots, runs.tiles, states, w.taps,
        w.taps if w.bias is None else w.bias, w.a, w.step_bias, runs.count, inputs.stride(0), gates.stride(0),
        state_floats, channels, kernel, _kept(w), w.bias is not None, heads.n, heads.n_key, heads.key_size,
        heads.inner, *at, heads.is_delta, heads.is_tiled, heads.is_fused, LENGTH_EPSILON,
        heads.key_size**-0.5, keys, CHANNELS, triton.next_power_of_2(heads.n // heads.n_key), TILE,
        num_warps=4 if keys <= 128 else 8, **EXACT, **early_options(states.device),
    )  # fmt: skip
    # Not launched early: the kernel behind it would come so early that it slows a prompt's scan 3.5 times.
    block = min(heads.value_block, triton.next_power_of_2(heads.value_size), max(1, MATRIX_NUMBERS // keys))
    launch(
        scan, (triton.cdiv(heads.value_size, block), heads.n, runs.count),
        mixed, numbers, out, runs.bounds, runs.slots, states, w.a if w.skip is None else w.skip, 1,
        state_floats, (kernel - 1) * channels, channels, heads.n, heads.n_key, heads.key_size,
        heads.value_size, *at, *heads.strides, heads.is_delta, heads.is_tiled, keys, block, heads.ahead,
        heads.is_spread, num_warps=heads.warps,
    )  # fmt: skip
    return out


def gated(
    x: Any, z: Any, weight: Any, eps: float, groups: int, first: bool, shared: bool, runs: Any, dtype: Any
) -> Any:
    """dtype[n, inner]: what heads gave, normalised by groups and gated, in the order of rows."""
    n, inner = x.shape
    out = torch.empty((n, inner), dtype=dtype, device=x.device)
    if not n:
        return out
    size = inner // groups
    block = triton.next_power_of_2(size)
    together = min(triton.next_power_of_2(groups), max(1, GATED_NUMBERS // block))
    launch(
        gate, (n, triton.cdiv(groups, together)),
        x, z, out, x if weight is None else weight, runs.rows, runs.bounds, runs.count, z.stride(0), eps,
        groups, size, first, weight is not None, shared, together, block, num_warps=4 if block <= 2048 else 8,
        **EXACT, **early_options(x.device),
    )  # fmt: skip
    return out


def _kept(w: Any) -> int:
    return int(triton.next_power_of_2(max(1, w.taps.shape[0] - 1)))
