"""The recurrent mixers of a layer: projections before the state, and the product behind it."""

from __future__ import annotations

import torch

from stretto.backends.torch import recurrent
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.matrix import product
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.weights import LayerWeights
from stretto.models.mixers import Convolution, DeltaNet, Mamba2

Recurrent = DeltaNet | Convolution | Mamba2


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

        self.weights = recurrent.weights_of(mixer, small)
        self.gates = None  # of a delta net: what corrections and decays are made of, in float32
        if isinstance(mixer, DeltaNet):
            heads, inner = mixer.n_value_head, mixer.n_value_head * mixer.value_size
            self.inputs = w.matrix({"attn_qkv": mixer.channels, "attn_gate": inner}, n_embd)
            names = {"ssm_ba": 2 * heads} if mixer.fused else {"ssm_beta": heads, "ssm_alpha": heads}
            self.gates = w.matrix(names, n_embd, dtype=torch.float32)
            self.output = w.matrix({"ssm_out": n_embd}, inner)
        elif isinstance(mixer, Convolution):
            self.inputs = w.matrix({"shortconv.in_proj": 3 * mixer.width}, n_embd)
            self.output = w.matrix({"shortconv.out_proj": n_embd}, mixer.width)
        else:
            self.inputs = w.matrix({"ssm_in": mixer.inner + mixer.channels + mixer.n_head}, n_embd)
            self.output = w.matrix({"ssm_out": n_embd}, mixer.inner)

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        """dtype[n, n_embd]: what the layer adds, from normalised rows."""
        mixer, states, runs = self.mixer, run.memory.states[self.index], run.runs
        assert runs is not None
        projected = product(x, self.inputs, out_dtype=torch.float32)
        if isinstance(mixer, DeltaNet) and self.gates is not None:
            qkv, z = projected[:, : mixer.channels], projected[:, mixer.channels :]
            gates = product(x.float(), self.gates)
            made = recurrent.delta_net(mixer, self.weights, qkv, z, gates, states, runs, self.dtype)
        elif isinstance(mixer, Convolution):
            made = recurrent.convolution(mixer, self.weights, projected, states, runs, self.dtype)
        else:
            assert isinstance(mixer, Mamba2)
            made = recurrent.mamba2(mixer, self.weights, projected, states, runs, self.dtype)
        return product(made, self.output)
