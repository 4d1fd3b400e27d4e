"""The recurrent mixers of a layer: projections before the state, and the product behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from stretto.backends.torch import cuda
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.matrix import Dense, Matrix, in_float32, product
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.weights import LayerWeights
from stretto.backends.torch.work import TILE, Runs
from stretto.errors import Unsupported
from stretto.models.mixers import Convolution, DeltaNet, KimiDelta, Mamba, Mamba2, TimeMix
from stretto.models.parts import Norm

# Recurrent mixers on a device: each row advances the state in its slot, token after token.
#
# They take projections that are already multiplied, and give what goes into the last product. A slot's
# state of a layer is the last inputs of its convolution, then the matrices of its heads, both float32 and
# changed in place. The same bits come out however a text is cut into passes and whatever other rows a pass
# has.

LENGTH_EPSILON = 1e-6  # of the length that queries and keys of a delta net are divided by


Recurrent = DeltaNet | KimiDelta | Convolution | Mamba | Mamba2 | TimeMix


@dataclass(frozen=True)
class Weights:
    """The small tensors of a recurrent mixer, float32; None: it has no such tensor."""

    taps: Tensor  # [kernel, channels], the newest last
    bias: Tensor = None  # [channels]: of the convolution
    step_bias: Tensor = None  # [heads]
    a: Tensor = None  # [heads]: decays are exp(a × step)
    skip: Tensor = None  # [heads]: of Mamba-2, what is added of the head's input
    norm: Tensor = None  # [value_size], or of Mamba-2 [inner]


def read_weights(mixer: Recurrent, get: Callable[[str], Tensor | None]) -> Weights:
    """A mixer's weights from its layer's tensors: `get(name)` is one in float32 on the device, or None."""
    if isinstance(mixer, (KimiDelta, Mamba, TimeMix)):
        reason = f"layers of the kind {mixer.recurrent} on this device; device='cpu' has them"
        raise Unsupported(reason, param="mixer", value=mixer.recurrent)
    if mixer.kernel - 1 > TILE:
        raise Unsupported(
            f"a convolution over {mixer.kernel} tokens; device='cpu' has it",
            param="kernel",
            value=mixer.kernel,
        )
    if isinstance(mixer, Convolution):
        return Weights(_taps(get("shortconv.conv.weight")))
    norm = None if mixer.norm is None else get(_rms_name(mixer.norm))
    return Weights(
        _taps(get("ssm_conv1d.weight")),
        get("ssm_conv1d.bias"),
        _flat(get("ssm_dt.bias")),
        _flat(get("ssm_a")),
        _flat(get("ssm_d")),
        _flat(norm),
    )


def delta_net(
    mixer: DeltaNet,
    w: Weights,
    qkv: Tensor,  # [n, channels]
    z: Tensor,  # [n, value heads × value_size]
    gates: Tensor,  # [n, 2 × value heads]: beta and alpha side by side, or as `ssm_ba` gives them if fused
    states: Tensor,  # float32[n_slots, state_floats], changed in place
    runs: Runs,
    dtype: Any,
) -> Tensor:
    """A matrix for each value head, corrected by each token: dtype[n, value heads × value_size]."""
    if uses_kernels(qkv):
        from stretto.backends.torch.kernels import recurrent as kernels

        return kernels.delta_net(mixer, w, qkv, z, gates, states, runs, dtype)
    n, heads = len(qkv), (mixer.n_value_head, mixer.value_size)
    mixed = _by_row(torch.nn.functional.silu, _convolved(w, qkv.float(), states, runs))
    keys = mixer.n_key_head * mixer.key_size
    q, k, v = mixed.split([keys, keys, mixed.shape[1] - 2 * keys], 1)
    q, k = (_by_value_head(mixer, _by_row(_unit, a.reshape(n, mixer.n_key_head, -1))) for a in (q, k))
    v = v.reshape(n, *heads)
    beta, alpha = _beta_alpha(mixer, gates.float())
    gain = _by_row(torch.sigmoid, beta)  # [n, value heads]
    decay = _by_row(lambda row: torch.exp(w.a * _softplus(row + w.step_bias)), alpha)
    out = torch.zeros_like(v)
    for rows, state in _slots(runs, states):
        memory = state[-mixer.n_value_head * mixer.key_size * mixer.value_size :]
        memory = memory.view(mixer.n_value_head, mixer.key_size, mixer.value_size)
        for row in rows:
            memory *= decay[row][:, None, None]
            error = v[row] - (memory * k[row][:, :, None]).sum(1)
            memory += k[row][:, :, None] * (gain[row][:, None] * error)[:, None, :]
            out[row] = (memory * q[row][:, :, None]).sum(1) * mixer.key_size**-0.5
    normed = _by_row(lambda row: _rms(row, w.norm, mixer.norm.eps), out)
    return (normed.view(n, -1) * _by_row(torch.nn.functional.silu, z.float())).to(dtype)


def convolution(
    mixer: Convolution,
    w: Weights,
    projected: Tensor,  # [n, 3 × width]: b, c and x
    states: Tensor,
    runs: Runs,
    dtype: Any,
) -> Tensor:
    """c × convolution(b × x): dtype[n, width]."""
    if uses_kernels(projected):
        from stretto.backends.torch.kernels import recurrent as kernels

        return kernels.convolution(mixer, w, projected, states, runs, dtype)
    b, c, x = projected.float().split(mixer.width, 1)
    return (c * _convolved(w, b * x, states, runs)).to(dtype)


def mamba2(
    mixer: Mamba2,
    w: Weights,
    projected: Tensor,  # [n, inner + channels + heads]: the gate, inputs of the convolution, steps
    states: Tensor,
    runs: Runs,
    dtype: Any,
) -> Tensor:
    """A matrix for each head, to which a token adds x times B and which it reads with C: dtype[n, inner]."""
    if uses_kernels(projected):
        from stretto.backends.torch.kernels import recurrent as kernels

        return kernels.mamba2(mixer, w, projected, states, runs, dtype)
    n, group = len(projected), mixer.n_group * mixer.state_size
    gate, inputs, dt = projected.float().split([mixer.inner, mixer.channels, mixer.n_head], 1)
    step = _by_row(lambda row: _softplus(row + w.step_bias), dt)  # [n, heads]
    decay = _by_row(lambda row: torch.exp(row * w.a), step)
    mixed = _by_row(torch.nn.functional.silu, _convolved(w, inputs, states, runs))
    values, b, c = mixed.split([mixer.inner, group, group], 1)
    values = values.reshape(n, mixer.n_head, mixer.head_size)
    shared = mixer.n_head // mixer.n_group  # heads that have the same B and C
    b, c = (a.reshape(n, mixer.n_group, -1).repeat_interleave(shared, 1) for a in (b, c))
    out = torch.zeros_like(values)
    for rows, state in _slots(runs, states):
        memory = state[-mixer.inner * mixer.state_size :]
        memory = memory.view(mixer.n_head, mixer.head_size, mixer.state_size)
        for row in rows:
            memory *= decay[row][:, None, None]
            memory += (step[row][:, None] * values[row])[:, :, None] * b[row][:, None, :]
            out[row] = (memory * c[row][:, None, :]).sum(2) + w.skip[:, None] * values[row]
    gated = out.view(n, -1) * _by_row(torch.nn.functional.silu, gate)
    if mixer.norm is None:
        return gated.to(dtype)
    weight, eps = w.norm.view(mixer.n_group, -1), mixer.norm.eps
    normed = _by_row(lambda row: _rms(row, weight, eps), gated.view(n, mixer.n_group, -1))
    return normed.view(n, -1).to(dtype)


def _convolved(w: Weights, x: Tensor, states: Tensor, runs: Runs) -> Tensor:
    """float32[n, channels]: each channel's last inputs times its taps; the states become the next row's."""
    kernel, channels = w.taps.shape
    out = torch.zeros_like(x)
    for rows, state in _slots(runs, states):
        history = state[: (kernel - 1) * channels].view(kernel - 1, channels)
        inputs = torch.cat((history, x[rows]))
        found = torch.zeros(len(rows), channels)
        for back in range(kernel):
            found += inputs[back : back + len(rows)] * w.taps[back]
        out[rows] = found if w.bias is None else found + w.bias
        history[:] = inputs[len(rows) :]
    return out


def _slots(runs: Runs, states: Tensor) -> Iterator[tuple[list[int], Tensor]]:
    """For each run with rows: its rows in order, and the state of its slot."""
    rows, bounds = runs.rows.tolist(), runs.bounds.tolist()
    for j, slot in enumerate(runs.slots.tolist()):
        if bounds[j] < bounds[j + 1]:
            yield rows[bounds[j] : bounds[j + 1]], states[slot]


def _beta_alpha(mixer: DeltaNet, gates: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers that become each value head's correction and decay: [n, value heads] each."""
    if not mixer.fused:
        beta, alpha = gates.split(mixer.n_value_head, 1)
        return beta, alpha
    both = gates.reshape(len(gates), mixer.n_key_head, 2, -1)
    return both[:, :, 0].reshape(len(gates), -1), both[:, :, 1].reshape(len(gates), -1)


def _by_value_head(mixer: DeltaNet, x: Tensor) -> Tensor:
    """Keys or queries [n, key heads, size], for each value head."""
    times = mixer.n_value_head // mixer.n_key_head
    return x.repeat(1, times, 1) if mixer.tiled else x.repeat_interleave(times, 1)


def _by_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The function of each row alone: a CPU's last bits depend on a number's place in the whole array."""
    return torch.stack([function(row.contiguous()) for row in x]) if len(x) else x


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + LENGTH_EPSILON).sqrt()


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros((), device=x.device))


def _rms_name(norm: Norm) -> str:
    if norm.kind != "rms" or not norm.weight or norm.bias:
        raise Unsupported(f"a {norm.kind} norm in a recurrent layer", param=norm.name, value=norm.kind)
    return norm.weight_name


def _taps(tensor: Tensor | None) -> Tensor:
    return None if tensor is None else tensor.t().contiguous()


def _flat(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.reshape(-1)


class RecurrentLayer:
    """A mixer that advances the state in each row's slot."""

    def __init__(self, mixer: Recurrent, w: LayerWeights, index: int, n_embd: int) -> None:
        self.mixer, self.index, self.dtype = mixer, index, w.dtype
        shapes = mixer.tensors(n_embd)

        def small(name: str) -> Tensor | None:
            if name not in shapes:
                return None
            shape = shapes[name]
            return w.vector(name, torch.Size(shape).numel()).view(shape)

        self.weights = read_weights(mixer, small)
        self.gates: Matrix | None = None  # of a delta net: what corrections and decays are made of
        if isinstance(mixer, DeltaNet):
            heads, inner = mixer.n_value_head, mixer.n_value_head * mixer.value_size
            self.inputs = w.matrix({"attn_qkv": mixer.channels, "attn_gate": inner}, n_embd)
            names = {"ssm_ba": 2 * heads} if mixer.fused else {"ssm_beta": heads, "ssm_alpha": heads}
            self.gates = in_float32(w.matrix(names, n_embd, dtype=torch.float32))
            self.output = w.matrix({"ssm_out": n_embd}, inner)
        elif isinstance(mixer, Convolution):
            self.inputs = w.matrix({"shortconv.in_proj": 3 * mixer.width}, n_embd)
            self.output = w.matrix({"shortconv.out_proj": n_embd}, mixer.width)
        elif isinstance(mixer, Mamba2):
            self.inputs = w.matrix({"ssm_in": mixer.inner + mixer.channels + mixer.n_head}, n_embd)
            self.output = w.matrix({"ssm_out": n_embd}, mixer.inner)

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        """dtype[n, n_embd]: what the layer adds, from normalised rows."""
        mixer, states, runs = self.mixer, run.memory.states[self.index], run.runs
        assert runs is not None
        projected = product(x, self.inputs, out_dtype=torch.float32)
        if isinstance(mixer, DeltaNet) and self.gates is not None:
            qkv, z = projected[:, : mixer.channels], projected[:, mixer.channels :]
            gates = self._gates(x, self.gates)
            made = delta_net(mixer, self.weights, qkv, z, gates, states, runs, self.dtype)
        elif isinstance(mixer, Convolution):
            made = convolution(mixer, self.weights, projected, states, runs, self.dtype)
        else:
            assert isinstance(mixer, Mamba2)
            made = mamba2(mixer, self.weights, projected, states, runs, self.dtype)
        return product(made, self.output)

    def _gates(self, x: Tensor, gates: Matrix) -> Tensor:
        part = gates.parts[0]
        if isinstance(part, Dense) and cuda.routes(x, part.weight):
            return cuda.router(x, part.weight, None)
        return product(x.float(), gates)
