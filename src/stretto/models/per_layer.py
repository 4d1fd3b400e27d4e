"""Embeddings for each layer beside the usual ones (Gemma 3n and 4), as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.models.feed_forward import Activation
from stretto.models.parts import Norm, Shapes


@dataclass(frozen=True)
class PerLayer:
    """For each token and layer a vector of `size` numbers, and what a layer does with it.

    The vectors of a token are scale × (table_scale × row + norm(projection_scale × projection)): its row of a
    table, and a projection of its embedding; rows of an image have row 0 of the table. A layer ends with
    x += post_norm(proj(activation(inp_gate x) × vector)).
    """

    size: int
    table_scale: float
    projection_scale: float
    norm: Norm  # of each layer's part of the projection
    post_norm: Norm
    scale: float = 0.5**0.5
    activation: Activation = "gelu"

    def tensors(self, n_vocab: int, n_embd: int, n_layer: int) -> Shapes:
        """The tensors that belong to no layer."""
        return {
            "per_layer_token_embd.weight": (n_vocab, n_layer * self.size),
            "per_layer_model_proj.weight": (n_layer * self.size, n_embd),
        } | self.norm.tensors(self.size)

    def layer_tensors(self, n_embd: int) -> Shapes:
        """The tensors of each layer."""
        shapes: Shapes = {"inp_gate.weight": (self.size, n_embd), "proj.weight": (n_embd, self.size)}
        return shapes | self.post_norm.tensors(n_embd)
