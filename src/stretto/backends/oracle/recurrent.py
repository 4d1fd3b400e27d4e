"""Recurrent mixers: each row advances the state in its slot, token after token.

A slot's state of a layer is one array of numbers: the last inputs of its convolution, then the matrices of
its heads. Both are changed in place.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stretto.backends.oracle.layer import Floats, LayerWeights, Pass
from stretto.backends.oracle.maths import sigmoid, silu, softplus
from stretto.errors import InvalidRequest
from stretto.models.mixers import Convolution, DeltaNet, Mamba2

LENGTH_EPSILON = np.float32(1e-6)  # of the length that queries and keys of a delta net are divided by


def delta_net(mixer: DeltaNet, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """A matrix for each value head, which tells a value for each key; a token corrects that of its key."""
    n, heads = len(x), (mixer.n_value_head, mixer.value_size)
    qkv, z = w.matmul(x, "attn_qkv"), w.matmul(x, "attn_gate").reshape(n, *heads)
    beta, alpha = _beta_alpha(mixer, w, x)
    correction = sigmoid(beta)  # [n, value heads]
    decay = np.exp(w["ssm_a"] * softplus(alpha + w["ssm_dt.bias"]))
    out = np.empty((n, *heads), np.float32)
    for rows, history, matrices in _states(run, i, mixer.kernel, mixer.channels):
        mixed = silu(convolve(history, qkv[rows], w["ssm_conv1d.weight"]))
        q, k, v = np.split(mixed, np.cumsum([mixer.n_key_head * mixer.key_size] * 2), axis=1)
        q, k = (_by_value_head(mixer, unit(a.reshape(len(a), mixer.n_key_head, -1))) for a in (q, k))
        v = v.reshape(-1, *heads)
        memory = matrices.reshape(mixer.n_value_head, mixer.key_size, mixer.value_size)
        for t, row in enumerate(rows):
            memory *= decay[row][:, None, None]
            error = v[t] - np.einsum("hkv,hk->hv", memory, k[t])
            memory += k[t][:, :, None] * (correction[row][:, None] * error)[:, None, :]
            out[row] = np.einsum("hkv,hk->hv", memory, q[t]) * np.float32(mixer.key_size**-0.5)
    out = w.norm(mixer.norm, out) * silu(z)
    return w.matmul(out.reshape(n, -1), "ssm_out")


def short_convolution(mixer: Convolution, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """c × convolution(b × x)."""
    b, c, inner = np.split(w.matmul(x, "shortconv.in_proj"), 3, axis=1)
    out = np.empty_like(c)
    for rows, history, _ in _states(run, i, mixer.kernel, mixer.width):
        out[rows] = c[rows] * convolve(history, (b * inner)[rows], w["shortconv.conv.weight"])
    return w.matmul(out, "shortconv.out_proj")


def mamba2(mixer: Mamba2, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """A matrix for each head, to which a token adds x times its B, and from which it reads with its C."""
    n = len(x)
    gate, inputs, dt = np.split(w.matmul(x, "ssm_in"), np.cumsum([mixer.inner, mixer.channels]), axis=1)
    step = softplus(dt + w["ssm_dt.bias"])  # [n, heads]
    decay = np.exp(step * w["ssm_a"][:, 0])
    out = np.empty((n, mixer.n_head, mixer.head_size), np.float32)
    for rows, history, matrices in _states(run, i, mixer.kernel, mixer.channels):
        mixed = silu(convolve(history, inputs[rows], w["ssm_conv1d.weight"], w.get("ssm_conv1d.bias")))
        values, b, c = np.split(mixed, np.cumsum([mixer.inner, mixer.n_group * mixer.state_size]), axis=1)
        values = values.reshape(-1, mixer.n_head, mixer.head_size)
        shared = mixer.n_head // mixer.n_group  # heads that have the same B and C
        b, c = (np.repeat(a.reshape(len(a), mixer.n_group, -1), shared, axis=1) for a in (b, c))
        memory = matrices.reshape(mixer.n_head, mixer.head_size, mixer.state_size)
        for t, row in enumerate(rows):
            memory *= decay[row][:, None, None]
            memory += (step[row][:, None] * values[t])[:, :, None] * b[t][:, None, :]
            out[row] = np.einsum("hps,hs->hp", memory, c[t]) + w["ssm_d"] * values[t]
    gated = out.reshape(n, -1) * silu(gate)
    if mixer.norm is not None:
        groups = gated.reshape(n, mixer.n_group, -1)
        gated = w.norm(mixer.norm, groups).reshape(n, -1)
    return w.matmul(gated, "ssm_out")


def convolve(history: Floats, x: Floats, taps: Floats, bias: Floats | None = None) -> Floats:
    """Each channel's last inputs times its taps, the newest last; `history` becomes that of the next row.

    history [kernel − 1, channels], x [n, channels], taps [channels, kernel] → float32[n, channels]
    """
    inputs = np.concatenate((history, x))
    out = np.zeros_like(x)
    for back in range(taps.shape[1]):
        out += inputs[back : back + len(x)] * taps[:, back]
    history[:] = inputs[len(x) :]
    return out if bias is None else out + bias


def unit(x: Floats) -> Floats:
    """x divided by its length, along the last axis."""
    out: Floats = x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + LENGTH_EPSILON)
    return out


def _by_value_head(mixer: DeltaNet, x: Floats) -> Floats:
    """Keys or queries [n, key heads, size], for each value head."""
    times = mixer.n_value_head // mixer.n_key_head
    return np.tile(x, (1, times, 1)) if mixer.tiled else np.repeat(x, times, axis=1)


def _beta_alpha(mixer: DeltaNet, w: LayerWeights, x: Floats) -> tuple[Floats, Floats]:
    """The numbers that become each value head's correction and decay: [n, value heads] each."""
    if not mixer.fused:
        return w.matmul(x, "ssm_beta"), w.matmul(x, "ssm_alpha")
    both = w.matmul(x, "ssm_ba").reshape(len(x), mixer.n_key_head, 2, -1)
    return both[:, :, 0].reshape(len(x), -1), both[:, :, 1].reshape(len(x), -1)


def _states(
    run: Pass, i: int, kernel: int, channels: int
) -> Iterator[tuple[NDArray[np.intp], Floats, Floats]]:
    """For each slot of the pass: its rows in order, and layer i's state, as the history and the matrices."""
    slots = run.placement.slots
    if slots is None:
        raise InvalidRequest("the model has recurrent layers, but the batch has no state slots")
    for slot in dict.fromkeys(slots.tolist()):
        state = run.states[i][slot]
        size = (kernel - 1) * channels
        yield np.flatnonzero(slots == slot), state[:size].reshape(kernel - 1, channels), state[size:]
