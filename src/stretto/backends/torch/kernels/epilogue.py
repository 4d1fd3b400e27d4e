"""What follows the sums of a product: bias, activation, gate × up; for tiles with the weights' rows first."""

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """The hyperbolic tangent; exp may be infinite, the quotient is then 0."""
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
def activate(x, ACT: tl.constexpr):
    """The activation of that code (activations.CODES)."""
    if ACT == 1:
        x = x / (1 + tl.exp(-x))
    elif ACT == 2:
        x = 0.5 * x * (1 + tanh(0.7978845608028654 * tl.fma(0.044715 * x * x, x, x)))
    elif ACT == 3:
        x = tl.maximum(x, 0.0)
        x = x * x
    elif ACT == 4:
        x = 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    elif ACT == 5:
        x = tanh(x)
    return x


@triton.jit
def gate(g, u, limit, alpha, ACT: tl.constexpr):
    """activation(g) × u; code 6 is the clamped SwiGLU."""
    if ACT == 6:
        g = tl.minimum(g, limit)
        u = tl.minimum(tl.maximum(u, -limit), limit)
        y = g / (1 + tl.exp(-alpha * g)) * (u + 1)
    else:
        y = activate(g, ACT) * u
    return y


@triton.jit
def finish(
    y, out, bias, n, first, row, N, stride, is_row, limit, alpha,
    BN: tl.constexpr, BM: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Write sums y[BN, BM] of the weights' rows n into out[row]; gated ones are pairs of rows."""
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0)[:, None]
    if GATED:
        g, u = y.reshape(BN // 2, 2, BM).permute(0, 2, 1).split()
        y = gate(g, u, limit, alpha, ACT)
        half = first // 2 + tl.arange(0, BN // 2)
        inside = is_row[None, :] & (half < N // 2)[:, None]
        at = out + row.to(tl.int64)[None, :] * stride + half[:, None]
    else:
        y = activate(y, ACT)
        inside = is_row[None, :] & (n < N)[:, None]
        at = out + row.to(tl.int64)[None, :] * stride + n[:, None]
    tl.store(at, y.to(out.dtype.element_ty), mask=inside)
