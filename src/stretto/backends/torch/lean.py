"""One row through plain layers with fewer kernels: for `exact=False`, where bits may depend on the batch.

Layers are plain if they are attention and a gated feed-forward with RMS norms before them, in weights that
are not packed: most models people run in bfloat16. Others go the usual way.
"""

from __future__ import annotations

from typing import Any

import torch

from stretto.backends.torch import activations
from stretto.backends.torch.attention_layer import AttentionLayer
from stretto.backends.torch.decoder import Decoder, DecoderLayer
from stretto.backends.torch.device import Tensor, is_interpreting
from stretto.backends.torch.feed_layer import DenseLayer
from stretto.backends.torch.launching import launch
from stretto.backends.torch.matrix import Dense, Matrix
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.rowwise import NormWeights


def is_plain(decoder: Decoder) -> bool:
    """Whether all layers of a model can be run this way."""
    return (
        decoder.streams is None
        and decoder.per_layer is None
        and _is_rms(decoder.output_norm)
        and _is_dense(decoder.output)
        and all(_is_plain_layer(layer) for layer in decoder.layers)
    )


def _is_plain_layer(made: DecoderLayer) -> bool:
    layer, mixer, ffn = made.layer, made.mixer, made.ffn
    extra = (
        layer.parallel, made.post_norm, made.post_ffn_norm, made.sum_norm, made.ffn_sum_norm,
        made.low_rank, made.input, made.streams, layer.output_scale,
    )  # fmt: skip
    return (
        not any(extra)
        and layer.residual_scale == 1.0
        and isinstance(mixer, AttentionLayer)
        and not mixer.mixer.gate
        and isinstance(ffn, DenseLayer)
        and ffn.paired
        and _is_rms(made.norm)
        and _is_rms(made.ffn_norm)
        and all(map(_is_dense, (mixer.projection, mixer.output, ffn.inner, ffn.output)))
    )


def _is_rms(norm: NormWeights | None) -> bool:
    return norm is not None and norm.part.kind == "rms" and norm.gain == 1


def _is_dense(matrix: Matrix) -> bool:
    return len(matrix.parts) == 1 and isinstance(matrix.parts[0], Dense)


def run(decoder: Decoder, x: Tensor, row: Pass) -> Tensor:
    """Logits float32[1, n_vocab] of one row, whose embedding is x float32[1, n_embd]."""
    for made in decoder.layers:
        mixer, ffn = made.mixer, made.ffn
        assert isinstance(mixer, AttentionLayer)
        assert isinstance(ffn, DenseLayer)
        projected = gemv(x, mixer.projection, made.norm, mixer.bias, dtype=torch.float32)
        gemv(mixer.attend(projected, row), mixer.output, None, mixer.output_bias, out=x, adds=True)
        inner = gemv(
            x, ffn.inner, made.ffn_norm, ffn.bias, activation=ffn.ffn.activation, dtype=decoder.dtype
        )
        gemv(inner, ffn.output, None, ffn.output_bias, out=x, adds=True)
    return decoder.scaled(gemv(x, decoder.output, decoder.output_norm, None, dtype=torch.float32))


def gemv(
    x: Tensor,
    matrix: Matrix,
    norm: NormWeights | None,
    bias: Tensor | None,
    *,
    activation: str = "",
    dtype: Any = None,
    out: Tensor | None = None,
    adds: bool = False,
) -> Tensor:
    """One row times a matrix: into a new tensor, or added to `out`."""
    from stretto.backends.torch.kernels import lean as kernels

    part = matrix.parts[0]
    assert isinstance(part, Dense)
    n, k = part.weight.shape
    if out is None:
        out = torch.empty(1, n // 2 if activation else n, dtype=dtype, device=x.device)
    rows, columns, warps = tile(n, k)
    early = not is_interpreting()
    launch(
        kernels.gemv, (-(-n // rows),),
        x, x if norm is None else norm.weight, part.weight, x if bias is None else bias, out, n,
        0.0 if norm is None else norm.part.eps,
        K=k, BN=rows, BK=columns, EVEN=k % columns == 0, NORM=norm is not None, BIAS=bias is not None,
        THEN=kernels.GATE if activation else kernels.ADD if adds else kernels.WRITE,
        ACT=activations.code(activation), EARLY=early, num_warps=warps,
        **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return out


def tile(n: int, k: int) -> tuple[int, int, int]:
    """Rows and columns of a tile, and warps; as measured on an H200."""
    if k >= 8192:
        return 16, 1024, 8
    if n <= 4096:
        return (2, 2048, 4) if k >= 2048 else (4, 512, 2)
    if n <= 8192:
        return 16, 512, 4
    return (8, 1024, 4) if n <= 65536 else (8, 512, 2)
