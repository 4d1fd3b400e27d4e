"""Products of the torch backend: what they mean, in plain torch and by kernels under Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.backends.matrices import Rows
from stretto.backends.reference import feed_forward, layer
from stretto.models.feed_forward import Routing
from stretto.weights import formats
from stretto.weights.formats import WRITABLE, Format

torch = pytest.importorskip("torch", reason="torch is not installed")

from stretto.backends.torch import layouts, matrix  # noqa: E402
from stretto.backends.torch.device import is_interpreting  # noqa: E402
from stretto.backends.torch.feed_layer import (  # noqa: E402
    assign,
    expert_product,
    mixture,
    plain_route,
    route,
)
from stretto.backends.torch.matrix import Matrix, interleaved, product  # noqa: E402
from stretto.backends.torch.weights import Stack  # noqa: E402

pytestmark = [  # NumPy's, where the interpreter computes
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),
]
PACKED = [Format.Q8_0, Format.Q4_0, Format.Q4_1, Format.MXFP4, Format.Q4_K, Format.Q5_K, Format.Q6_K]
RNG = np.random.default_rng(7)


def floats(*shape: int):
    return RNG.standard_normal(shape).astype(np.float32)


def rows_of(fmt: Format, n: int, columns: int) -> Rows:
    """Rows of a format; random bytes with tame scales where the format cannot be written."""
    if fmt in (Format.F16, Format.BF16):
        halves = torch.from_numpy(floats(n, columns)).to({1: torch.float16, 30: torch.bfloat16}[fmt.value])
        return Rows(None, fmt, halves.view(torch.uint8).numpy())
    if fmt in WRITABLE:
        return Rows(None, fmt, formats.quantize(floats(n, columns), fmt))
    data = RNG.integers(0, 256, (n, columns // fmt.block, fmt.size), np.uint8)
    if fmt is Format.MXFP4:
        data[..., 0] = RNG.integers(120, 130, data.shape[:2])
    else:
        for at in {Format.Q6_K: (208,)}.get(fmt, (0, 2)):
            halves = RNG.uniform(0.001, 0.1, data.shape[:2]).astype(np.float16)
            data[..., at : at + 2] = halves[..., None].view(np.uint8)
    return Rows(None, fmt, data.reshape(n, -1))


def exact(rows: Rows):
    return formats.dequantize(rows.data, rows.format)


@pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("columns", [256, 1536])
def test_packing_keeps_every_number(fmt: Format, columns: int) -> None:
    rows = rows_of(fmt, 37, columns)
    packed = layouts.pack(torch.from_numpy(rows.data), fmt, columns)
    assert np.array_equal(matrix.unpack(packed).numpy(), exact(rows))


@pytest.mark.parametrize("fmt", [*PACKED, Format.BF16, Format.F16, Format.F32, Format.Q5_0])
def test_a_row_is_looked_up(fmt: Format) -> None:
    rows = rows_of(fmt, 37, 512)
    m = Matrix.load([rows], 512, "cpu", torch.float32)
    at = torch.tensor([0, 36, 9, 9, 17], dtype=torch.int32)
    assert np.array_equal(m.row(at).numpy(), exact(rows)[at.numpy()])


@pytest.mark.parametrize("columns", [32, 96])
def test_narrow_rows_are_padded(columns: int) -> None:
    rows = rows_of(Format.Q8_0, 5, columns)
    m = Matrix.load([rows], columns, "cpu", torch.float32)
    x = torch.from_numpy(floats(3, columns))
    np.testing.assert_allclose(product(x, m).numpy(), x.numpy() @ exact(rows).T, rtol=2e-5, atol=2e-5)


def test_pieces_of_several_formats_are_stacked() -> None:
    pieces = [rows_of(Format.Q4_0, 24, 256), rows_of(Format.Q4_0, 8, 256), rows_of(Format.Q8_0, 8, 256)]
    m = Matrix.load(pieces, 256, "cpu", torch.float32)
    x, bias = torch.from_numpy(floats(3, 256)), torch.from_numpy(floats(40))
    expected = x.numpy() @ np.concatenate([exact(p) for p in pieces]).T + bias.numpy()
    assert m.rows == 40
    assert m.formats == (Format.Q4_0, Format.Q8_0)
    np.testing.assert_allclose(product(x, m, bias=bias).numpy(), expected, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("other", [Format.Q8_0, Format.F32])
@pytest.mark.parametrize("activation", ["silu", "gelu", "relu2", "gelu_erf", "tanh"])
def test_gate_and_up_become_one_product(activation: str, other: Format) -> None:
    gate, up = rows_of(Format.Q8_0, 24, 64), rows_of(other, 24, 64)
    m = Matrix.load([gate, up], 64, "cpu", torch.float32, interleave=True)
    x = torch.from_numpy(floats(3, 64))
    bias = interleaved(torch.from_numpy(floats(24)), torch.from_numpy(floats(24)))
    g, u = x.numpy() @ exact(gate).T + bias[::2].numpy(), x.numpy() @ exact(up).T + bias[1::2].numpy()
    expected = layer.ACTIVATIONS[activation](g) * u
    found = product(x, m, bias=bias, activation=activation)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_other_formats_are_widened_and_named() -> None:
    m = Matrix.load([rows_of(Format.Q5_0, 8, 64)], 64, "cpu", torch.bfloat16)
    assert m.widened == {"Q5_0": 8 * 64 * 2}


@pytest.mark.parametrize("fmt", [Format.F32, Format.Q8_0, Format.MXFP4])
@pytest.mark.parametrize("clamp", [None, (7.0, 1.702)])
def test_each_row_has_its_experts(fmt: Format, clamp: tuple[float, float] | None) -> None:
    n, used, n_expert, width = 5, 2, 4, 64
    pieces = [[rows_of(fmt, 20, width), rows_of(fmt, 20, width)] for _ in range(n_expert)]
    stack = Stack.load(pieces, width, "cpu", torch.float32, interleave=True)
    x = torch.from_numpy(floats(n, width))
    chosen = torch.from_numpy(
        RNG.permuted(np.tile(np.arange(n_expert), (n, 1)), axis=1)[:, :used].astype("i4")
    )
    bias = torch.from_numpy(floats(n_expert, 40))
    found = expert_product(x, stack, assign(chosen, n_expert), bias=bias, activation="silu", clamp=clamp)
    for pair in range(n * used):
        e = int(chosen.flatten()[pair])
        g = exact(pieces[e][0]) @ x[pair // used].numpy() + bias[e, ::2].numpy()
        u = exact(pieces[e][1]) @ x[pair // used].numpy() + bias[e, 1::2].numpy()
        if clamp is None:
            expected = layer.silu(g) * u
        else:
            g, u = np.minimum(g, 7), np.clip(u, -7, 7)
            expected = g * layer.sigmoid(np.float32(1.702) * g) * (u + 1)
        np.testing.assert_allclose(found[pair].numpy(), expected, rtol=1e-4, atol=1e-3)


def test_blocks_hold_every_pair_once() -> None:
    chosen = torch.from_numpy(RNG.integers(0, 6, (9, 2)).astype(np.int32))
    experts, pairs = assign(chosen, 6).blocks(4)
    kept = pairs[pairs >= 0]
    assert sorted(kept.tolist()) == list(range(18))
    for expert, block in zip(experts.tolist(), pairs, strict=True):
        held = [int(chosen.flatten()[p]) for p in block.tolist() if p >= 0]
        assert all(e == expert for e in held)
        assert bool(held) == (expert >= 0)


def test_mixtures_are_summed_in_the_order_of_choice() -> None:
    y, weights = torch.from_numpy(floats(6, 8)), torch.from_numpy(floats(3, 2))
    expected = weights[:, :1] * y[::2] + weights[:, 1:] * y[1::2]
    assert torch.allclose(mixture(y, weights), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "routing",
    [
        Routing(3),
        Routing(3, "sigmoid", scale=2.5, n_group=4, n_group_used=2),
        Routing(3, "chosen", normalize=False),
        Routing(3, normalize=False, scale=0.5),
    ],
)
def test_experts_are_routed_as_the_reference_does(routing: Routing) -> None:
    scores, correction = floats(7, 16), floats(16)
    chosen, weights = route(routing, torch.from_numpy(scores), torch.from_numpy(correction))
    expected = feed_forward.route(routing, scores, correction)
    assert np.array_equal(chosen.numpy(), expected[0])
    np.testing.assert_allclose(weights.numpy(), expected[1], rtol=1e-5)


@pytest.mark.skipif(not is_interpreting(), reason="kernels run on a GPU, or with TRITON_INTERPRET=1")
@pytest.mark.parametrize("fmt", [*PACKED, Format.F16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("n", [1, 9, 40])
def test_kernels_multiply_what_the_weights_mean(fmt: Format, n: int) -> None:
    rows = rows_of(fmt, 40, 512)
    rows = Rows(None, fmt, rows.data)
    m = Matrix.load([rows], 512, "cpu", torch.float16)
    x = torch.from_numpy(floats(n, 512)).half()
    meant = torch.from_numpy(exact(rows)).half().double().numpy()
    expected = x.double().numpy() @ meant.T
    found = product(x, m, out_dtype=torch.float32).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.skipif(not is_interpreting(), reason="kernels run on a GPU, or with TRITON_INTERPRET=1")
@pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)
def test_widened_weights_are_the_exact_ones(fmt: Format) -> None:
    from stretto.backends.torch.kernels import packed as widen

    rows = rows_of(fmt, 37, 768)
    part = layouts.pack(torch.from_numpy(rows.data), fmt, 768)
    assert np.array_equal(widen.some(part, 0, 37, torch.float32).numpy(), exact(rows))


@pytest.mark.skipif(not is_interpreting(), reason="kernels run on a GPU, or with TRITON_INTERPRET=1")
@pytest.mark.parametrize("n", [1, 40, 1300])
def test_kernels_divide_pairs_as_plain_torch_does(n: int) -> None:
    chosen = torch.from_numpy(RNG.integers(0, 5, (n, 2)).astype(np.int32))
    chosen[chosen == 3] = 4  # no row has expert 3
    assignment = assign(chosen, 6)
    found = assignment.blocks(16)
    expected = assignment.plain_blocks(16, len(found[0]))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.skipif(not is_interpreting(), reason="kernels run on a GPU, or with TRITON_INTERPRET=1")
@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "chosen"])
def test_the_lower_one_of_equal_experts_is_chosen(kind) -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 0.0]])
    chosen, weights = route(Routing(4, kind), scores, None)
    assert chosen.tolist() == [[1, 3, 2, 4]]
    torch.testing.assert_close(weights, plain_route(Routing(4, kind), scores, None)[1])


@pytest.mark.skipif(not is_interpreting(), reason="kernels run on a GPU, or with TRITON_INTERPRET=1")
def test_many_pairs_are_sorted_by_expert() -> None:
    stack = Stack.load([[rows_of(Format.F32, 32, 64)] for _ in range(4)], 64, "cpu", torch.float32)
    x = torch.from_numpy(floats(70, 64))
    chosen = torch.from_numpy(RNG.integers(0, 4, (70, 1)).astype(np.int32))
    found = expert_product(x, stack, assign(chosen, 4))
    matrices = [stack.expert(e, torch.float32).numpy() for e in range(4)]
    expected = np.stack([matrices[int(e)] @ row for e, row in zip(chosen, x.numpy(), strict=True)])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
