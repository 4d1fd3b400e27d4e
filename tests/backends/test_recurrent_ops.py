"""The recurrent layers of the native core alone, for every kernel set, against the reference backend.

The same bits (`==`) come out however the rows are cut into calls, and channels and heads into shares.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from stretto import _native
from stretto.backends.reference import mixers
from stretto.backends.reference.layer import LayerWeights
from stretto.models.mixers import Convolution, DeltaNet, Mamba2, TimeMix
from stretto.models.parts import Norm

ops = _native.ops
N = 45  # rows: more than pass over a state's tile together
TOLERANCE = 2e-5
NOTHING = np.zeros(0, np.float32)
CHUNKS = [45], [1] * 45, [7, 32, 6], [40, 5]
LANES = 16

every_set = pytest.mark.parametrize("kernels", _native.kernel_names())


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


def reference(mix, mixer, tensors, x, state, **others):
    """Rows and state that a mixer of the reference backend gives for projections that cut x into parts."""
    states = [state.copy()[None]]
    run = SimpleNamespace(
        placement=SimpleNamespace(slots=np.zeros(len(x), np.int32)), states=states, **others
    )
    out = mix(mixer, LayerWeights(tensors, 0, {}, prefix=""), 0, x, run)
    return out, states[0][0]


def cut(widths):
    """Projections that take parts of such widths from a row."""
    whole, at, found = np.eye(sum(widths.values()), dtype=np.float32), 0, {}
    for name, width in widths.items():
        found[f"{name}.weight"] = whole[at : at + width]
        at += width
    return found


def as_tiles(matrices):
    """A state [heads, rows, values] as the kernels have it: [heads][tiles][rows][16], then their scales."""
    heads, rows, values = matrices.shape
    padded = np.zeros((heads, rows, -(-values // LANES) * LANES), np.float32)
    padded[..., :values] = matrices
    tiles = padded.reshape(heads, rows, -1, LANES).swapaxes(1, 2).ravel()
    return np.concatenate((tiles, np.ones(heads, np.float32)))


def scaled(state, heads):
    """The tiles of a state times their scales."""
    return (state[:-heads].reshape(heads, -1) * state[-heads:, None]).ravel()


def run_in(chunks, run, *rows):
    """The rows of an operator that gets some at a time, and the state at the end."""
    state, found, at = None, [], 0
    for size in chunks:
        out, state = run(*(np.ascontiguousarray(r[at : at + size]) for r in rows), state)
        found.append(out)
        at += size
    return np.concatenate(found), state


def check_bits(run, *rows):
    """That chunks and shares change nothing; returns rows and state."""
    first = run_in(CHUNKS[0], lambda *given: run(1, *given), *rows)
    for chunks, parts in zip(CHUNKS[1:], (1, 2, 5), strict=True):
        found = run_in(chunks, lambda *given, p=parts: run(p, *given), *rows)
        assert np.array_equal(found[0], first[0])
        assert np.array_equal(found[1], first[1])
    return first


def close(found, expected):
    return np.abs(found - expected).max() < TOLERANCE * max(1.0, np.abs(expected).max())


@every_set
@pytest.mark.parametrize(("kernel", "channels", "has_bias"), [(4, 70, True), (3, 16, False), (2, 300, True)])
def test_a_convolution(kernels, kernel, channels, has_bias):
    x, taps, before = (
        normal(N, channels),
        normal(kernel, channels, seed=1),
        normal(kernel - 1, channels, seed=2),
    )
    bias = normal(channels, seed=3) if has_bias else NOTHING

    def run(parts, rows, state):
        return ops.convolve(rows, taps, bias, before.ravel() if state is None else state, parts, kernels)

    found, state = check_bits(run, x)
    history = before.copy()
    expected = mixers.silu(mixers.convolve(history, x, taps.T, bias if has_bias else None))
    assert close(found, expected)
    assert np.array_equal(state.reshape(history.shape), history)


@every_set
@pytest.mark.parametrize(("kernel", "width"), [(3, 48), (4, 600)])
def test_a_short_convolution(kernels, kernel, width):
    bcx, taps, before = normal(N, 3 * width), normal(kernel, width, seed=1), normal(kernel - 1, width, seed=2)

    def run(parts, rows, state):
        return ops.convolve_gated(rows, taps, before.ravel() if state is None else state, parts, kernels)

    found, state = check_bits(run, bcx)
    tensors = cut({"shortconv.in_proj": 3 * width}) | {
        "shortconv.conv.weight": np.ascontiguousarray(taps.T),
        "shortconv.out_proj.weight": np.eye(width, dtype=np.float32),
    }
    mixer = Convolution(width, kernel)
    expected, after = reference(mixers.short_convolution, mixer, tensors, bcx, before.ravel())
    assert close(found, expected)
    assert np.array_equal(state, after)


@every_set
@pytest.mark.parametrize(
    ("n_key", "n_value", "key_size", "value_size", "tiled", "fused"),
    [
        (2, 6, 8, 8, True, False),
        (2, 6, 8, 8, False, True),
        (1, 1, 16, 40, False, False),
        (3, 3, 21, 19, True, False),
        (2, 4, 128, 128, True, False),
    ],
)
def test_a_delta_net(kernels, n_key, n_value, key_size, value_size, tiled, fused):
    mixer = DeltaNet(n_key, n_value, key_size, value_size, 4, Norm("ssm_norm", 1e-5), tiled, fused)
    inner = n_value * value_size
    qkv, gate = normal(N, mixer.channels, scale=2.0), normal(N, inner, seed=1)
    beta, alpha = normal(N, n_value, seed=2), normal(N, n_value, seed=3)
    a, dt = -np.exp(normal(n_value, seed=4) - 2), normal(n_value, seed=5)
    norm, before = 1 + normal(value_size, seed=6, scale=0.2), normal(n_value, key_size, value_size, seed=7)
    if fused:  # key head by key head: beta of its value heads, then alpha
        shape = N, n_key, n_value // n_key
        beta = np.stack((beta.reshape(shape), alpha.reshape(shape)), axis=2).reshape(N, -1)
        alpha = np.zeros((N, 0), np.float32)

    # The reference has the convolution too; here it sees its newest input only.
    convolved = mixers.silu(qkv)

    def run(parts, *given):
        *rows, state = given
        state = as_tiles(before) if state is None else state
        return ops.delta_net(*rows, a, dt, norm, 1e-5, n_key, tiled, state, parts, kernels)

    found, state = check_bits(run, convolved, gate, beta, alpha)
    names = {"ssm_ba": 2 * n_value} if fused else {"ssm_beta": n_value, "ssm_alpha": n_value}
    tensors = cut({"attn_qkv": mixer.channels, "attn_gate": inner} | names) | {
        "ssm_conv1d.weight": np.eye(1, 4, 3, dtype=np.float32).repeat(mixer.channels, axis=0),
        "ssm_a": a,
        "ssm_dt.bias": dt,
        "ssm_norm.weight": norm,
        "ssm_out.weight": np.eye(inner, dtype=np.float32),
    }
    x = np.concatenate((qkv, gate, beta, alpha), axis=1)
    start = np.concatenate((np.zeros(3 * mixer.channels, np.float32), before.ravel()))
    expected, after = reference(mixers.delta_net, mixer, tensors, x, start)
    assert close(found, expected)
    assert close(
        scaled(state, n_value), as_tiles(after[3 * mixer.channels :].reshape(before.shape))[:-n_value]
    )


@every_set
@pytest.mark.parametrize(
    ("n_head", "head_size", "n_group", "state_size", "has_norm"),
    [(8, 8, 2, 10, True), (3, 20, 1, 17, False), (4, 64, 1, 128, True), (6, 16, 3, 32, False)],
)
def test_a_mamba2_layer(kernels, n_head, head_size, n_group, state_size, has_norm):
    norm = Norm("ssm_norm", 1e-5) if has_norm else None
    mixer = Mamba2(n_head, head_size, n_group, state_size, 4, norm, conv_bias=False)
    inner, channels = mixer.inner, mixer.channels
    gate, xbc, dt = normal(N, inner), normal(N, channels, seed=1), normal(N, n_head, seed=2)
    a, d, bias = -np.exp(normal(n_head, seed=3) - 2), normal(n_head, seed=4), normal(n_head, seed=5)
    weight, before = 1 + normal(inner, seed=6, scale=0.2), normal(n_head, head_size, state_size, seed=7)

    def run(parts, projected, state):
        state = as_tiles(before.swapaxes(1, 2)) if state is None else state
        given = weight if has_norm else NOTHING
        return ops.mamba2(
            projected, a, d, bias, given, 1e-5, head_size, n_group, state_size, state, parts, kernels
        )

    found, state = check_bits(run, np.concatenate((gate, mixers.silu(xbc), dt), axis=1))
    tensors = cut({"ssm_in": inner + channels + n_head}) | {
        "ssm_conv1d.weight": np.eye(1, 4, 3, dtype=np.float32).repeat(channels, axis=0),
        "ssm_a": a[:, None],
        "ssm_d": d[:, None],
        "ssm_dt.bias": bias,
        "ssm_norm.weight": weight.reshape(n_group, -1),
        "ssm_out.weight": np.eye(inner, dtype=np.float32),
    }
    x = np.concatenate((gate, xbc, dt), axis=1)
    start = np.concatenate((np.zeros(3 * channels, np.float32), before.ravel()))
    expected, after = reference(mixers.mamba2, mixer, tensors, x, start)
    assert close(found, expected)
    expected = as_tiles(after[3 * channels :].reshape(before.shape).swapaxes(1, 2))[:-n_head]
    assert close(scaled(state, n_head), expected)


@every_set
@pytest.mark.parametrize(
    ("n_head", "head_size", "is_first", "has_gate", "has_norm"),
    [
        (4, 8, False, True, True),
        (3, 20, True, False, False),
        (2, 64, False, False, True),
        (5, 16, True, True, True),
    ],
)
def test_time_mixing(kernels, n_head, head_size, is_first, has_gate, has_norm):
    rank, width = 12, n_head * head_size
    norm = Norm("time_mix_ln", 1e-4, "layer", bias=True) if has_norm else None
    mixer = TimeMix(n_head, head_size, rank, rank, 0 if is_first else rank, rank if has_gate else 0, norm)
    w = {
        name: normal(*shape, seed=seed, scale=1.0 if len(shape) == 1 else shape[-1] ** -0.5)
        for seed, (name, shape) in enumerate(mixer.tensors(width).items())
    }
    x, last, before = normal(N, width), normal(width, seed=50), normal(n_head, head_size, head_size, seed=51)
    first = None if is_first else normal(N, width, seed=52)
    shares = dict(zip(mixer.mixtures, w["time_mix_lerp_fused.weight"], strict=True))
    rows_before = np.concatenate((last[None], x[:-1]))

    def product(name):
        return (x + (rows_before - x) * shares[name[0]]) @ w[f"time_mix_{name}.weight"].T

    def widened(name, inner=np.asarray):
        return inner(product(f"{name}1")) @ w[f"time_mix_{name}2.weight"].T

    given = [product(name) for name in ("receptance", "key", "value")]
    given += [widened("w", np.tanh), widened("a")]
    given += [] if first is None else [widened("v"), first]
    given += [widened("g", mixers.sigmoid)] if has_gate else []
    zero = np.zeros(width, np.float32)
    vectors = [w.get(f"time_mix_{name}.weight", zero) for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k")]
    vectors += [w[f"time_mix_ln.{kind}"] for kind in ("weight", "bias")] if has_norm else []

    def run(parts, rows, state):
        state = as_tiles(before)[:-n_head] if state is None else state
        return ops.time_mix(rows, np.stack(vectors), 1e-4, head_size, state, parts, kernels)

    found, state = check_bits(run, np.concatenate(given, axis=1))
    w["time_mix_output.weight"] = np.eye(width, dtype=np.float32)
    start = np.concatenate((last, before.ravel()))
    expected, after = reference(mixers.time_mix, mixer, w, x, start, first_values=first)
    assert close(found, expected)
    assert close(state, as_tiles(after[width:].reshape(before.shape))[:-n_head])
    assert np.array_equal(after[:width], x[-1])


@every_set
def test_keys_of_time_mixing_may_be_zero(kernels):
    """Nothing is found at a key without a length, and no number becomes infinite or NaN."""
    given, vectors, before = normal(4, 80), normal(6, 16, seed=1), normal(1, 16, 16, seed=2)
    given[:, 16:32] = 0
    found, state = ops.time_mix(given, vectors, 0.0, 16, as_tiles(before)[:-1], 1, kernels)
    decays = np.exp(mixers.DECAY * mixers.sigmoid(given[:, 48:64] + vectors[0])).astype(np.float32)
    steps = before[0] * np.cumprod(decays, axis=0)[:, :, None]
    assert close(state, as_tiles(steps[-1:])[:-1])
    assert close(found, np.einsum("tkv,tk->tv", steps, given[:, :16]))


def test_decays_that_reach_zero_empty_the_state():
    """A head whose step is huge forgets all: no number becomes infinite or NaN."""
    qkv, gate = normal(4, 48), normal(4, 16)
    beta, alpha = normal(4, 1, seed=1), np.full((4, 1), 1e4, np.float32)
    one = np.ones(1, np.float32)
    out, state = ops.delta_net(
        qkv, gate, beta, alpha, -one, one, np.ones(16, np.float32), 1e-6, 1, True, normal(257, scale=1e3)
    )
    assert np.isfinite(out).all()
    assert np.abs(state).max() < 10


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="state"):
        ops.convolve(normal(2, 8), normal(4, 8), NOTHING, normal(8))
    with pytest.raises(ValueError, match="qkv"):
        ops.delta_net(*[normal(2, 8)] * 4, *[normal(8)] * 3, 1e-6, 8, True, normal(8))
    with pytest.raises(ValueError, match="projected"):
        ops.mamba2(normal(2, 9), *[normal(2)] * 3, NOTHING, 1e-6, 8, 2, 4, normal(8))
    with pytest.raises(ValueError, match="given"):
        ops.time_mix(normal(2, 64), normal(6, 16), 1e-6, 8, normal(256))
    with pytest.raises(ValueError, match="vectors"):
        ops.time_mix(normal(2, 80), normal(7, 16), 1e-6, 8, normal(256))
