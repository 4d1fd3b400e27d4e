"""The feed-forwards of a layer, as plain data: they work on each token alone.

Each names the tensors it needs, without the prefix of its layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stretto.models.parts import Norm, Shapes, Slice

# gelu: the tanh form; gelu_erf: the exact one; xielu has numbers of its own.
Activation = Literal["silu", "gelu", "relu2", "gelu_erf", "relu", "xielu"]


@dataclass(frozen=True)
class Dense:
    """down(activation(gate x) × up x), or without a gate down(activation(up x)).

    `suffix` is part of the tensors' names: "_shexp" for an expert that every token has. With `cutoff` most
    gates are 0: from each row's gates its mean and `cutoff` times its standard deviation are subtracted, and
    what is not above 0 then is 0. `xielu`: alpha_p, alpha_n, beta and eps of that activation, which is
    alpha_p x² + beta x above 0, and alpha_n (e^min(x, eps) − 1 − x) + beta x below.
    """

    n_ff: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    fused: bool = False  # gate and up are one tensor of the file, ffn_up
    suffix: str = ""
    cutoff: float | None = None
    down_bias: bool | None = None  # of the last matrix; None: as `bias`, that of the others
    xielu: tuple[float, ...] = ()
    inner_norm: Norm | None = None  # of what the last matrix reads
    # RWKV's channel mixing: rows of so many numbers, each of which is mixed with the one before it; 0: not.
    shift: int = 0

    @property
    def recurrent(self) -> str:
        """The kind of a feed-forward that keeps a state, the row before; or ""."""
        return "RWKV channel mixing" if self.shift else ""

    @property
    def has_down_bias(self) -> bool:
        """Whether the last matrix has a bias."""
        return self.bias if self.down_bias is None else self.down_bias

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        if self.shift:
            key, value = (self.n_ff, n_embd), (n_embd, self.n_ff)
            found: Shapes = {"channel_mix_key.weight": key, "channel_mix_value.weight": value}
            return found | {"channel_mix_lerp_k.weight": (n_embd,)}
        s = self.suffix
        rows = {f"ffn_up{s}": self.n_ff * (2 if self.fused else 1), f"ffn_down{s}": n_embd}
        if self.gated and not self.fused:
            rows[f"ffn_gate{s}"] = self.n_ff
        shapes: Shapes = {
            f"{name}.weight": (n, self.n_ff if "down" in name else n_embd) for name, n in rows.items()
        }
        for name, n in rows.items():
            if self.has_down_bias if "down" in name else self.bias:
                shapes[f"{name}.bias"] = (n,)
        return shapes | (self.inner_norm.tensors(self.n_ff) if self.inner_norm is not None else {})

    def slices(self) -> dict[str, Slice]:
        """Gate and up within a fused tensor; the matrices of channel mixing by the usual names."""
        found: dict[str, Slice] = {}
        if self.shift:
            found["ffn_up.weight"] = Slice("channel_mix_key.weight", 0, self.n_ff)
            found["ffn_down.weight"] = Slice("channel_mix_value.weight", 0, self.shift)
        for kind in ("weight", *(("bias",) if self.bias else ())) if self.fused else ():
            up = f"ffn_up{self.suffix}.{kind}"
            found[f"ffn_gate{self.suffix}.{kind}"] = Slice(up, 0, self.n_ff)
            found[up] = Slice(up, self.n_ff, self.n_ff)
        return found


@dataclass(frozen=True)
class Routing:
    """The choice of experts for a token, from the router's scores.

    `weights` is how scores become weights: a "softmax" or "sigmoid" of all, "chosen": a softmax of the
    chosen ones, or "one by one": the best of those that are left has its share in a softmax of all that are
    not worse by more than 2 × `jitter` of the larger of both (SparseMixer). With `correction` a bias is added
    for the choice only. With groups, only experts of the `n_group_used` best groups (by the sum of each
    group's `group_best` best) can be chosen. Chosen weights
    are divided by their sum if `normalize`, and multiplied by `scale`.
    """

    n_used: int
    weights: Literal["softmax", "sigmoid", "chosen", "one by one"] = "softmax"
    normalize: bool = True
    scale: float = 1.0
    correction: bool = False
    bias: bool = False  # of the router
    n_group: int = 1
    n_group_used: int = 1
    group_best: int = 2
    norm: Norm | None = None  # of what the router reads
    score_scale: float = 1.0  # scores are multiplied by it first
    jitter: float = 0.0
    early: bool = False  # the router reads the row as the layer gets it, before its mixer
    bare: bool = False  # the name of the correction's tensor is without ".bias"


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: for each token a few feed-forwards, chosen by a router, and one that all tokens
    have.

    `limit` is that of the clamped SwiGLU: gate ≤ limit, −limit ≤ up ≤ limit, gate × sigmoid(alpha × gate) ×
    (up + 1). Norms are those of models that have them for the experts and for the shared one apart.
    """

    n_expert: int
    n_ff: int
    routing: Routing
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False  # of the experts' matrices
    limit: float = 0.0  # 0: a plain gate
    alpha: float = 1.702
    shared: Dense | None = None
    shared_gate: bool = False  # the shared expert is multiplied by the sigmoid of one more score
    shared_scale: float = 1.0  # and by this
    output_scale: bool = False  # each expert's output is multiplied by a number of its own
    fused: bool = False  # gate and up are one tensor of the file, ffn_gate_up_exps
    apart: bool = False  # each expert has tensors of its own, ffn_up.0 and so on, as in files of 2023
    norm: Norm | None = None  # of what the experts read
    post_norm: Norm | None = None  # of the sum of their outputs
    shared_norm: Norm | None = None
    shared_post_norm: Norm | None = None
    weighs_inputs: bool = False  # weights are of what experts read, not of what they give

    def expert_tensors(self, n_embd: int) -> Shapes:
        """The tensors of single experts, which a CPU may have where all else is on a GPU."""
        n, f = self.n_expert, self.n_ff
        shapes: Shapes = {}
        matrices = {"down": (n_embd, f)} | (
            {"gate_up": (2 * f, n_embd)} if self.fused else {"up": (f, n_embd)}
        )
        if self.gated and not self.fused:
            matrices["gate"] = (f, n_embd)
        for name, shape in matrices.items():
            if self.apart:
                shapes |= {f"ffn_{name}.{e}.weight": shape for e in range(n)}
            else:
                shapes[f"ffn_{name}_exps.weight"] = (n, *shape)
        if self.bias:
            shapes |= {"ffn_up_exps.bias": (n, f), "ffn_down_exps.bias": (n, n_embd)}
            if self.gated:
                shapes["ffn_gate_exps.bias"] = (n, f)
        return shapes

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        n = self.n_expert
        shapes: Shapes = {"ffn_gate_inp.weight": (n, n_embd), **self.expert_tensors(n_embd)}
        if self.routing.bias:
            shapes["ffn_gate_inp.bias"] = (n,)
        if self.routing.correction:
            shapes["exp_probs_b" if self.routing.bare else "exp_probs_b.bias"] = (n,)
        if self.output_scale:
            shapes["ffn_down_exps.scale"] = (n,)
        norms = self.routing.norm, self.norm, self.post_norm, self.shared_norm, self.shared_post_norm
        for norm in norms:
            if norm is not None:
                shapes |= norm.tensors(n_embd)
        if self.shared is not None:
            shapes |= self.shared.tensors(n_embd)
        if self.shared_gate:
            shapes["ffn_gate_inp_shexp.weight"] = (n_embd,)
        return shapes

    def slices(self) -> dict[str, Slice]:
        """Gate and up within a fused tensor, and those of the shared expert."""
        found = self.shared.slices() if self.shared is not None else {}
        if self.routing.correction and self.routing.bare:
            found["exp_probs_b.bias"] = Slice("exp_probs_b", 0, self.n_expert)
        if self.fused:
            both = "ffn_gate_up_exps.weight"
            found["ffn_gate_exps.weight"] = Slice(both, 0, self.n_ff, experts=True)
            found["ffn_up_exps.weight"] = Slice(both, self.n_ff, self.n_ff, experts=True)
        return found


FeedForward = Dense | Experts
