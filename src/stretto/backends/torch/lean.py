"""One row through plain layers with fewer kernels: for `exact=False`, where bits may depend on the batch.

Layers are plain if they are attention and a gated feed-forward with RMS norms before them: most models people
run. Others go the usual way. Rows are rounded to 8 bits before they are multiplied with packed weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from stretto.backends.torch import activations, cuda
from stretto.backends.torch.attention_layer import AttentionLayer
from stretto.backends.torch.decoder import Decoder, DecoderLayer
from stretto.backends.torch.device import Tensor
from stretto.backends.torch.feed_layer import DenseLayer
from stretto.backends.torch.launching import launch
from stretto.backends.torch.layouts import Packed
from stretto.backends.torch.matrix import Dense, Matrix
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.rowwise import NormWeights
from stretto.weights.formats import Format


def is_plain(decoder: Decoder) -> bool:
    """Whether all layers of a model can be run this way."""
    return (
        is_dense(decoder)
        and _is_rms(decoder.output_norm)
        and all(_is_plain_layer(layer) for layer in decoder.layers)
        and all(_is_lean(matrix, decoder.dtype) for matrix in matrices(decoder))
    )


def is_dense(decoder: Decoder) -> bool:
    """Whether all layers are attention and dense feed-forwards, and nothing beside them."""
    return (
        decoder.streams is None
        and decoder.per_layer is None
        and all(
            isinstance(layer.mixer, AttentionLayer) and isinstance(layer.ffn, DenseLayer)
            for layer in decoder.layers
        )
    )


def prepare(decoder: Decoder) -> None:
    """Check what packed weights need: `Unsupported` if kernels cannot be compiled here."""
    if any(isinstance(part, Packed) for matrix in matrices(decoder) for part in matrix.parts):
        cuda.require()


def matrices(decoder: Decoder) -> Iterator[Matrix]:
    """All matrices of a model whose layers are attention and dense feed-forwards."""
    for layer in decoder.layers:
        mixer, ffn = layer.mixer, layer.ffn
        assert isinstance(mixer, AttentionLayer)
        assert isinstance(ffn, DenseLayer)
        yield from (mixer.projection, mixer.output, ffn.inner, ffn.output)
    yield decoder.output


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
        and not mixer.mixer.clip
        and mixer.mixed_norm is None
        and isinstance(ffn, DenseLayer)
        and ffn.inner_norm is None
        and ffn.paired
        and _is_rms(made.norm)
        and _is_rms(made.ffn_norm)
    )


def _is_rms(norm: NormWeights | None) -> bool:
    return norm is not None and norm.part.kind == "rms" and norm.gain == 1


def _is_lean(matrix: Matrix, dtype: Any) -> bool:
    """Gate and up in one format; no packed weights for activations of full precision, and none of MXFP4."""
    packed = [part for part in matrix.parts if isinstance(part, Packed)]
    return (
        not matrix.halves
        and not (packed and dtype == torch.float32)
        and all(part.octets for part in packed)
        and all(part.format is not Format.MXFP4 for part in packed)
    )


def run(decoder: Decoder, x: Tensor, row: Pass, out: Tensor | None = None) -> Tensor:
    """Logits float32[1, n_vocab] of one row, whose embedding is x float32[1, n_embd]; into `out` if given."""
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
    return decoder.scaled(gemv(x, decoder.output, decoder.output_norm, None, dtype=torch.float32, out=out))


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
    if out is None:
        width = matrix.rows // 2 if activation else matrix.rows
        out = torch.empty(1, width, dtype=dtype, device=x.device)
    how: dict[str, Any] = {
        "gain": None if norm is None else norm.weight,
        "eps": 0.0 if norm is None else norm.part.eps,
        "then": cuda.GATE if activation else cuda.ADD if adds else cuda.WRITE,
        "act": activations.code(activation),
    }
    first = 0
    for part in matrix.parts:
        last = first + part.rows
        to = out[:, first // 2 : last // 2] if activation else out[:, first:last]
        some = None if bias is None else bias[first:last]
        run_part: Any = _dense_gemv if isinstance(part, Dense) else cuda.gemv
        run_part(x, part, to, bias=some, **how)
        first = last
    return out


def _dense_gemv(
    x: Tensor,
    part: Dense,
    out: Tensor,
    *,
    gain: Tensor | None,
    eps: float,
    bias: Tensor | None,
    then: int,
    act: int,
) -> None:
    """`packed_gemv.gemv` with weights that are not packed."""
    from stretto.backends.torch.kernels import dense as kernels
    from stretto.backends.torch.kernels.early import early_options

    n, k = part.weight.shape
    rows, columns, warps = tile(n, k)
    launch(
        kernels.gemv, (-(-n // rows),),
        x, x if gain is None else gain, part.weight, x if bias is None else bias, out, n, eps,
        K=k, BN=rows, BK=columns, EVEN=k % columns == 0, NORM=gain is not None, BIAS=bias is not None,
        THEN=then, ACT=act, num_warps=warps, **early_options(x.device),
    )  # fmt: skip


def tile(n: int, k: int) -> tuple[int, int, int]:
    """Rows and columns of a tile, and warps; as measured on an H200."""
    if k >= 8192:
        return 16, 1024, 8
    if k <= 1024:  # one turn
        return (2 if n < 4096 else 4, 1024, 4) if n <= 4096 else (4, 1024, 2)
    if n <= 4096:
        return 2, 2048, 4
    if n <= 8192:
        return 16, 512, 4
    return (8, 1024, 4) if n <= 65536 else (8, 512, 2)
