"""The feed-forward of a layer: a dense one, or a mixture of experts."""

from __future__ import annotations

import torch

from stretto.backends.torch.activations import activate
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.experts import assign, expert_product, mixture
from stretto.backends.torch.launching import launch
from stretto.backends.torch.matrix import product
from stretto.backends.torch.routing import route
from stretto.backends.torch.rowwise import norm, power_of_two, warps
from stretto.backends.torch.weights import LayerWeights
from stretto.models.feed_forward import Dense, Experts, FeedForward


class DenseLayer:
    """down(activation(gate x) × up x), or without a gate down(activation(up x))."""

    def __init__(self, ffn: Dense, w: LayerWeights, n_embd: int) -> None:
        self.ffn, self.dtype = ffn, w.dtype
        gate, up, down = (f"ffn_{name}{ffn.suffix}" for name in ("gate", "up", "down"))
        rows = {gate: ffn.n_ff, up: ffn.n_ff} if ffn.gated else {up: ffn.n_ff}
        self.paired = ffn.gated and ffn.cutoff is None  # gates are beside what they multiply
        self.inner = w.matrix(rows, n_embd, interleave=self.paired)
        self.bias = w.biases(rows) if ffn.bias else None
        if self.bias is not None and self.paired:
            self.bias = self.bias.view(2, -1).t().reshape(-1).contiguous()
        self.output = w.matrix({down: n_embd}, ffn.n_ff)
        self.output_bias = w.biases({down: n_embd}) if ffn.has_down_bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """dtype[n, n_embd], from normalised rows."""
        ffn = self.ffn
        if ffn.cutoff is None:
            inner = product(x, self.inner, bias=self.bias, activation=ffn.activation)
        else:
            both = product(x, self.inner, bias=self.bias, out_dtype=torch.float32)
            gate, up = both[:, : ffn.n_ff], both[:, ffn.n_ff :]
            inner = (activate(ffn.activation, cut_off(gate, ffn.cutoff)) * up).to(self.dtype)
        return product(inner, self.output, bias=self.output_bias)


class ExpertsLayer:
    """A few feed-forwards for each token, chosen by a router, and one that all tokens have."""

    def __init__(self, ffn: Experts, w: LayerWeights, n_embd: int) -> None:
        self.ffn, self.dtype = ffn, w.dtype
        n, width = ffn.n_expert, ffn.n_ff
        self.router = w.matrix({"ffn_gate_inp": n}, n_embd, dtype=torch.float32)
        self.router_bias = w.biases({"ffn_gate_inp": n})
        self.correction = w.vector("exp_probs_b.bias", n) if ffn.routing.correction else None
        names = ("ffn_gate_exps", "ffn_up_exps") if ffn.gated else ("ffn_up_exps",)
        self.inner = w.stack(names, n, width, n_embd)
        self.output = w.stack(("ffn_down_exps",), n, n_embd, width)
        self.bias = self.output_bias = None
        if ffn.bias:
            biases = [w.vector(f"{name}.bias", n * width).view(n, width) for name in names]
            self.bias = torch.stack(biases, dim=2).reshape(n, -1).contiguous()
            self.output_bias = w.vector("ffn_down_exps.bias", n * n_embd).view(n, n_embd)
        self.scale = w.vector("ffn_down_exps.scale", n) if ffn.output_scale else None
        self.router_norm = w.norm(ffn.routing.norm, n_embd)
        self.norm, self.post_norm = w.norm(ffn.norm, n_embd), w.norm(ffn.post_norm, n_embd)
        self.shared_norm = w.norm(ffn.shared_norm, n_embd)
        self.shared_post_norm = w.norm(ffn.shared_post_norm, n_embd)
        self.shared = DenseLayer(ffn.shared, w, n_embd) if ffn.shared is not None else None
        self.shared_gate = (
            w.matrix({"ffn_gate_inp_shexp": 1}, n_embd, dtype=torch.float32) if ffn.shared_gate else None
        )

    def __call__(self, x: Tensor) -> Tensor:
        """float32[n, n_embd], from normalised rows."""
        ffn, dtype = self.ffn, self.dtype
        scores = product(norm(x, self.router_norm, torch.float32), self.router, bias=self.router_bias)
        if ffn.routing.score_scale != 1.0:
            scores = scores * ffn.routing.score_scale
        chosen, weights = route(ffn.routing, scores, self.correction)
        if self.scale is not None:
            weights = weights * self.scale[chosen.long()]
        order = assign(chosen, ffn.n_expert)
        clamp = (ffn.limit, ffn.alpha) if ffn.limit else None
        inner = expert_product(
            norm(x, self.norm, dtype),
            self.inner,
            order,
            bias=self.bias,
            activation=ffn.activation,
            clamp=clamp,
        )
        out = mixture(expert_product(inner, self.output, order, bias=self.output_bias), weights)
        if self.post_norm is not None:
            out = norm(out, self.post_norm, torch.float32)
        if self.shared is None:
            return out
        shared = self.shared(norm(x, self.shared_norm, dtype))
        shared = norm(shared, self.shared_post_norm, torch.float32)
        if self.shared_gate is not None:
            shared = shared * torch.sigmoid(product(x.float(), self.shared_gate))
        return out + shared


FeedLayer = DenseLayer | ExpertsLayer


def feed_layer(ffn: FeedForward, w: LayerWeights, n_embd: int) -> FeedLayer:
    """The layer of a feed-forward."""
    return DenseLayer(ffn, w, n_embd) if isinstance(ffn, Dense) else ExpertsLayer(ffn, w, n_embd)


def cut_off(gate: Tensor, times: float) -> Tensor:
    """Gates less their mean and `times` their standard deviation; 0 where that is below 0."""
    if not uses_kernels(gate):
        deviation = gate.std(dim=1, keepdim=True, unbiased=False)
        return torch.relu(gate - gate.mean(dim=1, keepdim=True) - times * deviation)
    from stretto.backends.torch.kernels import rowwise as kernels
    from stretto.backends.torch.kernels.early import early_options

    n, width = gate.shape
    out = torch.empty(n, width, device=gate.device)
    launch(
        kernels.cut_off,
        (n,),
        gate,
        out,
        times,
        gate.stride(0),
        WIDTH=width,
        BLOCK=power_of_two(width),
        num_warps=warps(width),
        **early_options(gate.device),
    )
    return out
