"""What stands beside mixer and feed-forward in a layer, as plain data.

`LayerInput`: embeddings of each token for each layer. `Streams`: a residual of several streams (AltUp).
`LowRank`: a residual through a narrow pair of matrices (Laurel). Each names the tensors it needs; those of a
layer without its prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.models.parts import Norm, Shapes


@dataclass(frozen=True)
class PerLayer:
    """Embeddings of each token for each layer, `size` numbers each, and a projection of the common one.

    The input of layer i is (e_i × √size + norm(P_i x / √n_embd)) / √2, where x is the token's common
    embedding and e_i its own one for this layer.
    """

    size: int
    norm: Norm

    def tensors(self, n_vocab: int, n_embd: int, n_layer: int) -> Shapes:
        """The tensors of the file."""
        return {
            "per_layer_token_embd.weight": (n_vocab, n_layer * self.size),
            "per_layer_model_proj.weight": (n_layer * self.size, n_embd),
        } | self.norm.tensors(self.size)


@dataclass(frozen=True)
class LayerInput:
    """The end of a layer: norm(proj(gelu(gate x) × the layer's input)) is added to x."""

    size: int
    norm: Norm

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {"inp_gate.weight": (self.size, n_embd), "proj.weight": (n_embd, self.size)}
        return shapes | self.norm.tensors(n_embd)


@dataclass(frozen=True)
class LowRank:
    """What a layer adds beside its mixer: with y = norm x, x becomes (x + mixer y + y + norm(R L y)) / √2."""

    rank: int
    norm: Norm

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of the file."""
        shapes: Shapes = {"laurel_l.weight": (self.rank, n_embd), "laurel_r.weight": (n_embd, self.rank)}
        return shapes | self.norm.tensors(n_embd)


@dataclass(frozen=True)
class Streams:
    """A residual of `n` streams (AltUp), of which a layer computes the first one only.

    Before the layer all streams are predicted as a mixture of all, after it corrected by what the layer
    changed in the first one. The weights of both come from a router that looks at the first stream.
    A layer's input is added to the others.
    """

    n: int
    norm: Norm  # of the router

    def tensors(self, n_embd: int) -> Shapes:
        """The tensors of each layer."""
        return {
            "altup_router.weight": (self.n, n_embd),
            "altup_predict_coef.weight": (self.n * self.n, self.n),
            "altup_correct_coef.weight": (self.n, self.n),
            "altup_correct_scale.weight": (n_embd,),
        } | self.norm.tensors(n_embd)

    def whole(self, n_embd: int) -> Shapes:
        """The tensors that make streams of embeddings, and one of them at the end."""
        shape = (self.n - 1, n_embd, n_embd)
        return {"altup_proj.weight": shape, "altup_unembd_proj.weight": shape}
