"""The feed-forward of a layer: a dense one, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from stretto.backends.torch import activations, cuda, matrix
from stretto.backends.torch.activations import activate, xielu
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.host_experts import LayerOnHost
from stretto.backends.torch.launching import launch
from stretto.backends.torch.matrix import product
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.rowwise import norm, power_of_two, warps
from stretto.backends.torch.weights import LayerWeights, Stack
from stretto.errors import InvalidRequest, Unsupported
from stretto.models.feed_forward import Dense, Experts, FeedForward, Routing

__all__ = ["Assignment", "Stack", "assign", "expert_product", "mixture", "route"]


# The choice of experts on the device: scores of the router → experts and weights, no host in between.
#
# `route` is a kernel where kernels run. Elsewhere it is plain torch, with sums written out one by one, so
# that a row's weights have one order of sums.


def route(routing: Routing, scores: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """The experts of each row int32[n, used], best first, and their weights float32[n, used]."""
    if uses_kernels(scores) and routing.weights != "one by one":
        from stretto.backends.torch.kernels import experts

        return experts.route(routing, scores, correction)
    return plain_route(routing, scores, correction)


def plain_route(routing: Routing, scores: Tensor, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """`route` in plain torch."""
    scores = scores.float()
    if routing.weights == "one by one":
        return _one_by_one(routing, scores)
    if routing.weights == "softmax":
        probabilities = _softmax(scores)
    elif routing.weights == "sigmoid":
        probabilities = torch.sigmoid(scores)
    else:
        probabilities = scores
    order = probabilities if correction is None else probabilities + correction
    if routing.n_group > 1:
        order = _of_best_groups(routing, order)
    chosen = torch.sort(order, dim=1, descending=True, stable=True).indices[:, : routing.n_used]
    weights = probabilities.gather(1, chosen)
    if routing.weights == "chosen":
        weights = _softmax(weights)
    if routing.normalize:
        weights = weights / in_order(weights)
    return chosen.int(), weights * routing.scale


def _one_by_one(routing: Routing, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Each expert's share in a softmax of those that are left, and not much worse than it."""
    left, chosen, weights = scores.clone(), [], []
    for _ in range(routing.n_used):
        most, best = left.max(dim=1, keepdim=True)
        worse = (most - scores) / torch.maximum(scores.abs(), most) > 2 * routing.jitter
        shares = torch.exp(left - most).masked_fill(worse, 0.0)
        chosen.append(best)
        weights.append(1 / in_order(shares))
        left = left.scatter(1, best, -torch.inf)
    return torch.cat(chosen, 1).int(), torch.cat(weights, 1)


def in_order(x: Tensor) -> Tensor:
    """The sum along the last axis, which is kept: in halves, each pair added once, whatever the rows."""
    n = 1 << max(x.shape[-1] - 1, 0).bit_length()
    x = torch.nn.functional.pad(x, (0, n - x.shape[-1]))
    while n > 1:
        n //= 2
        x = x[..., :n] + x[..., n:]
    return x


def _softmax(x: Tensor) -> Tensor:
    x = torch.exp(x - x.amax(-1, keepdim=True))
    return x / in_order(x)


def _of_best_groups(routing: Routing, order: Tensor) -> Tensor:
    """Scores with −inf for all experts outside the best groups of each row."""
    groups = order.unflatten(1, (routing.n_group, -1))
    best = in_order(torch.topk(groups, routing.group_best, dim=2).values)[..., 0]
    kept = torch.sort(best, dim=1, descending=True, stable=True).indices[:, : routing.n_group_used]
    mask = torch.zeros_like(best, dtype=torch.bool).scatter(1, kept, True)
    return torch.where(mask[..., None], groups, -torch.inf).flatten(1)


# Experts on the device: the matrices of all of them in one stack, and the products of chosen ones.
#
# assignment = assign(chosen, n_expert) # int32[n, used] → who multiplies what inner = expert_product(x,
# gate_up, assignment, activation="silu") # [n × used, n_ff] y = expert_product(inner, down, assignment) #
# [n × used, n_embd] out = mixture(y, weights) # [n, n_embd]


@dataclass(frozen=True)
class Assignment:
    """The experts of each row: chosen int32[n, used]. Pair row × used + i is a row with its choice i."""

    chosen: Tensor
    n_expert: int
    _blocks: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def used(self) -> int:
        """Experts of each row."""
        return int(self.chosen.shape[1])

    @cached_property
    def order(self) -> tuple[Tensor, Tensor]:
        """Pairs sorted by expert int64[pairs], and where each expert's begin int64[n_expert + 1]."""
        experts, order = torch.sort(self.chosen.flatten().long(), stable=True)
        bounds = torch.arange(self.n_expert + 1, device=order.device)
        return order, torch.searchsorted(experts, bounds)

    def blocks(self, size: int) -> tuple[Tensor, Tensor]:
        """Blocks of at most `size` pairs of one expert: experts int32[blocks], pairs int32[blocks, size].

        The number of blocks is the most there can be; blocks and places without a pair have −1.
        """
        if size not in self._blocks:
            pairs = self.chosen.numel()
            most = min(pairs, -(-pairs // size) + self.n_expert)
            self._blocks[size] = self._divide(size, most)
        return self._blocks[size]

    def _divide(self, size: int, most: int) -> tuple[Tensor, Tensor]:
        if uses_kernels(self.chosen):
            from stretto.backends.torch.kernels import experts as choose

            return choose.blocks(self.chosen, self.n_expert, size, most)
        return self.plain_blocks(size, most)

    def plain_blocks(self, size: int, most: int) -> tuple[Tensor, Tensor]:
        """`blocks` in plain torch."""
        pairs = self.chosen.numel()
        order, starts = self.order
        ends = torch.cumsum((starts[1:] - starts[:-1] + size - 1) // size, 0)  # of integers: exact
        block = torch.arange(most, device=order.device)
        expert = torch.searchsorted(ends, block, right=True).clamp(max=self.n_expert - 1)
        begun = torch.where(expert > 0, ends[expert - 1], 0)
        at = starts[expert] + (block - begun) * size
        places = at[:, None] + torch.arange(size, device=order.device)
        inside = (places < starts[expert + 1][:, None]) & (block < ends[-1])[:, None]
        found = torch.where(inside, order[places.clamp(max=pairs - 1)], -1)
        return torch.where(inside[:, 0], expert, -1).int(), found.int()


def assign(chosen: Tensor, n_expert: int) -> Assignment:
    """Who multiplies what, from the experts of each row int32[n, used]."""
    return Assignment(chosen, n_expert)


def expert_product(
    x: Tensor,
    stack: Stack,
    assignment: Assignment,
    *,
    bias: Tensor | None = None,
    activation: str = "",
    clamp: tuple[float, float] | None = None,
    out_dtype: Any = None,
) -> Tensor:
    """Each row times its experts' matrices: [n × used, rows], or half as many of interleaved ones.

    x is [n, columns], or [n × used, columns] with a row for each pair. `bias` is float32[n_expert, rows];
    clamp = (limit, alpha) makes the gate a clamped SwiGLU.
    """
    pairs, gated = assignment.chosen.numel(), stack.interleaved and bool(activation)
    if len(x) not in (len(assignment.chosen), pairs):
        raise InvalidRequest(f"x must have {len(assignment.chosen)} or {pairs} rows, not {len(x)}", param="x")
    width = stack.rows // 2 if gated else stack.rows
    out = torch.empty(pairs, width, dtype=out_dtype or x.dtype, device=x.device)
    if uses_kernels(x):
        from stretto.backends.torch.kernels import experts as grouped

        run: Any = grouped.product
        run(x, stack, assignment, out, bias, activations.code(activation), clamp)
        return out
    each = 1 if len(x) == pairs else assignment.used
    experts = assignment.chosen.flatten().tolist()
    for e in sorted(set(experts)):
        at = [pair for pair, expert in enumerate(experts) if expert == e]
        y = x[[pair // each for pair in at]].float() @ stack.expert(e, x.dtype).T
        if bias is not None:
            y = y + bias[e]
        if gated:
            out[at] = activations.gate(activation, y[:, ::2], y[:, 1::2], clamp).to(out.dtype)
        else:
            out[at] = activations.activate(activation, y).to(out.dtype)
    return out


def mixture(y: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of the experts' outputs y[n × used, n_embd], in the order of choice: float32."""
    if uses_kernels(y):
        from stretto.backends.torch.kernels import experts as grouped

        mix: Any = grouped.mixture
        return mix(y, weights)
    n, used = weights.shape
    y = y.reshape(n, used, -1).float()
    out = weights[:, :1] * y[:, 0]
    for i in range(1, used):
        out = out + weights[:, i : i + 1] * y[:, i]
    return out


class DenseLayer:
    """down(activation(gate x) × up x), or without a gate down(activation(up x))."""

    def __init__(self, ffn: Dense, w: LayerWeights, n_embd: int) -> None:
        if ffn.shift:
            reason = f"layers of the kind {ffn.recurrent} on this device; device='cpu' has them"
            raise Unsupported(reason, param="ffn", value=ffn.recurrent)
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
        self.inner_norm = w.norm(ffn.inner_norm, ffn.n_ff)

    def __call__(self, x: Tensor) -> Tensor:
        """dtype[n, n_embd], from normalised rows."""
        ffn = self.ffn
        if ffn.xielu:
            inner = xielu(product(x, self.inner, bias=self.bias, out_dtype=torch.float32), *ffn.xielu)
            inner = inner.to(self.dtype)
        elif ffn.cutoff is None:
            inner = product(x, self.inner, bias=self.bias, activation=ffn.activation)
        else:
            both = product(x, self.inner, bias=self.bias, out_dtype=torch.float32)
            gate, up = both[:, : ffn.n_ff], both[:, ffn.n_ff :]
            inner = (activate(ffn.activation, cut_off(gate, ffn.cutoff)) * up).to(self.dtype)
        if self.inner_norm is not None:
            inner = norm(inner, self.inner_norm, self.dtype)
        return product(inner, self.output, bias=self.output_bias)


class DeviceExperts:
    """The experts of a layer on the device."""

    def __init__(self, ffn: Experts, w: LayerWeights, n_embd: int) -> None:
        self.ffn, self.dtype = ffn, w.dtype
        n, width = ffn.n_expert, ffn.n_ff
        names = ("ffn_gate_exps", "ffn_up_exps") if ffn.gated else ("ffn_up_exps",)
        self.inner = w.stack(names, n, width, n_embd)
        self.output = w.stack(("ffn_down_exps",), n, n_embd, width)
        self.bias = self.output_bias = None
        if ffn.bias:
            biases = [w.vector(f"{name}.bias", n * width).view(n, width) for name in names]
            self.bias = torch.stack(biases, dim=2).reshape(n, -1).contiguous()
            self.output_bias = w.vector("ffn_down_exps.bias", n * n_embd).view(n, n_embd)

    def start(self, read: Tensor, chosen: Tensor, weights: Tensor, run: Pass) -> Callable[[], Tensor]:
        """Their weighted sum float32[n, n_embd] of rows and what was chosen for them."""
        ffn = self.ffn
        order = assign(chosen, ffn.n_expert)
        clamp = (ffn.limit, ffn.alpha) if ffn.limit else None
        if ffn.weighs_inputs:
            read = (read.float()[:, None, :] * weights[:, :, None]).to(self.dtype).flatten(0, 1)
            weights = torch.ones_like(weights)
        inner = expert_product(
            read, self.inner, order, bias=self.bias, activation=ffn.activation, clamp=clamp
        )
        out = mixture(expert_product(inner, self.output, order, bias=self.output_bias), weights)
        return lambda: out


class ExpertsLayer:
    """A few feed-forwards for each token, chosen by a router, and one that all tokens have."""

    def __init__(
        self, ffn: Experts, w: LayerWeights, n_embd: int, on_host: LayerOnHost | None = None
    ) -> None:
        self.ffn, self.dtype = ffn, w.dtype
        n = ffn.n_expert
        self.router = w.matrix({"ffn_gate_inp": n}, n_embd, dtype=torch.float32)
        self.router_bias = w.biases({"ffn_gate_inp": n})
        self.correction = w.vector("exp_probs_b.bias", n) if ffn.routing.correction else None
        self.experts = on_host or DeviceExperts(ffn, w, n_embd)
        self.scale = w.vector("ffn_down_exps.scale", n) if ffn.output_scale else None
        self.router_norm = w.norm(ffn.routing.norm, n_embd)
        self.norm, self.post_norm = w.norm(ffn.norm, n_embd), w.norm(ffn.post_norm, n_embd)
        self.shared_norm = w.norm(ffn.shared_norm, n_embd)
        self.shared_post_norm = w.norm(ffn.shared_post_norm, n_embd)
        self.shared = DenseLayer(ffn.shared, w, n_embd) if ffn.shared is not None else None
        self.shared_gate = (
            w.matrix({"ffn_gate_inp_shexp": 1}, n_embd, dtype=torch.float32) if ffn.shared_gate else None
        )

    def __call__(self, x: Tensor, run: Pass, scores: Tensor | None = None) -> Tensor:
        """float32[n, n_embd], from normalised rows; `scores` of an early router."""
        ffn, dtype = self.ffn, self.dtype
        scores = self.scores(x) if scores is None else scores
        if ffn.routing.score_scale != 1.0:
            scores = scores * ffn.routing.score_scale
        chosen, weights = route(ffn.routing, scores, self.correction)
        if self.scale is not None:
            weights = weights * self.scale[chosen.long()]
        read = norm(x, self.norm, dtype)
        finish = self.experts.start(read, chosen, weights, run)
        shared = None if self.shared is None else self._shared(x)
        out = finish()
        if self.post_norm is not None:
            out = norm(out, self.post_norm, torch.float32)
        return out if shared is None else out + shared

    def _shared(self, x: Tensor) -> Tensor:
        assert self.shared is not None
        ffn = self.ffn
        shared = self.shared(norm(x, self.shared_norm, self.dtype))
        shared = norm(shared, self.shared_post_norm, torch.float32)
        if self.shared_gate is not None:
            shared = shared * torch.sigmoid(product(x.float(), self.shared_gate))
        if ffn.shared_scale != 1.0:
            shared = shared.float() * ffn.shared_scale
        return shared

    def scores(self, x: Tensor) -> Tensor:
        """float32[n, n_expert]: how much the router wants each expert, from normalised rows."""
        part = self.router.parts[0]
        if isinstance(part, matrix.Dense) and cuda.routes(x, part.weight):
            rows = x if self.router_norm is None else norm(x, self.router_norm, torch.float32)
            return cuda.router(rows, part.weight, self.router_bias)
        return product(norm(x, self.router_norm, torch.float32), self.router, bias=self.router_bias)


FeedLayer = DenseLayer | ExpertsLayer


def feed_layer(
    ffn: FeedForward, w: LayerWeights, n_embd: int, on_host: LayerOnHost | None = None
) -> FeedLayer:
    """The layer of a feed-forward; `on_host` are its experts where a CPU computes them."""
    return DenseLayer(ffn, w, n_embd) if isinstance(ffn, Dense) else ExpertsLayer(ffn, w, n_embd, on_host)


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
        kernels.cut_off, (n,), gate, out, times, gate.stride(0),
        WIDTH=width, BLOCK=power_of_two(width), num_warps=warps(width), **early_options(gate.device),
    )  # fmt: skip
    return out
