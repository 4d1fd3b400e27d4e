"""The specification of a model, as plain data: backends build their decoders from a `ModelSpec` only.

A decoder layer is

    x += [post_norm] attention([norm] x)
    x += [post_norm] ffn([norm] x)          ffn(x) = down(activation(gate x) * up x)

and a spec says how many, how large, and which of the optional pieces an architecture has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rope:
    """Rotary positions of a layer. Pair i is rotated by position × frequencies[i], both parts × magnitude.

    `pairs` says which numbers of a head form pair i: "adjacent" (2i, 2i+1) or "halves" (i, i + d/2),
    where d = 2 × len(frequencies); numbers of the head from d on are not rotated.
    """

    frequencies: tuple[float, ...]
    pairs: Literal["adjacent", "halves"]
    magnitude: float = 1.0

    def angles(self, positions: NDArray[np.integer]) -> NDArray[np.float64]:
        """float64[n, d/2]: the angle of each pair at each position."""
        angles: NDArray[np.float64] = positions[:, None] * np.asarray(self.frequencies)
        return angles


@dataclass(frozen=True)
class Layer:
    """One decoder layer. `window`: a token attends to the last `window` positions only, itself included."""

    rope: Rope
    window: int | None = None


@dataclass(frozen=True)
class ModelSpec:
    """The shape and the parts of a decoder.

    >>> llm.spec.n_layer, llm.spec.n_embd
    (30, 576)
    """

    architecture: str
    n_vocab: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv_head: int
    head_size: int
    context_length: int
    layers: tuple[Layer, ...]
    norm_eps: float
    attention_scale: float
    activation: Literal["silu", "gelu"] = "silu"
    embedding_scale: float = 1.0
    attention_cap: float = 0.0  # scores become cap × tanh(score / cap); 0: as they are
    logit_cap: float = 0.0  # the same for logits
    qkv_bias: bool = False  # the q, k and v projections have biases
    qk_norm: bool = False  # q and k are normalised per head before rope
    post_norm: bool = False  # attention and ffn outputs are normalised before they are added
    tied: bool = True  # the output matrix is the embedding matrix

    @property
    def n_layer(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def recurrent(self) -> str:
        """The kind of its recurrent layers, such as "gated delta net"; empty if it has none."""
        return ""

    @property
    def state_floats(self) -> int:
        """How many numbers a state slot holds, in all recurrent layers."""
        return 0

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of all tensors the model needs, by the names of the file."""
        q, kv = self.n_head * self.head_size, self.n_kv_head * self.head_size
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.n_vocab, self.n_embd),
            "output_norm.weight": (self.n_embd,),
        }
        if not self.tied:
            shapes["output.weight"] = (self.n_vocab, self.n_embd)
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (self.n_embd,),
            "attn_q.weight": (q, self.n_embd),
            "attn_k.weight": (kv, self.n_embd),
            "attn_v.weight": (kv, self.n_embd),
            "attn_output.weight": (self.n_embd, q),
            "ffn_norm.weight": (self.n_embd,),
            "ffn_gate.weight": (self.n_ff, self.n_embd),
            "ffn_up.weight": (self.n_ff, self.n_embd),
            "ffn_down.weight": (self.n_embd, self.n_ff),
        }
        if self.qkv_bias:
            layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
        if self.qk_norm:
            layer |= {"attn_q_norm.weight": (self.head_size,), "attn_k_norm.weight": (self.head_size,)}
        if self.post_norm:
            layer |= {
                "post_attention_norm.weight": (self.n_embd,),
                "post_ffw_norm.weight": (self.n_embd,),
            }
        for i in range(self.n_layer):
            shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        return shapes
