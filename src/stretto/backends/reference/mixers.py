"""Attention: each row attends to the cells that its mask allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from stretto.backends.reference.layer import (
    Floats,
    LayerWeights,
    Mask,
    Pass,
    cap,
    layer_norm,
    rotate,
    sigmoid,
    silu,
    softplus,
)
from stretto.errors import InvalidRequest
from stretto.models.feed_forward import Dense
from stretto.models.mixers import (
    Attention,
    Convolution,
    DeltaNet,
    Indexer,
    KimiDelta,
    Latent,
    Mamba,
    Mamba2,
    TimeMix,
)
from stretto.models.parts import Norm
from stretto.models.sites import Kind


def mix_attention(mixer: Attention, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """Attention of normalised rows x to their cells; K and V of the rows are written first."""
    n = len(x)
    if mixer.joined:
        x = np.concatenate([run.beside_rows(n, mixer.joined), x], axis=1)
    q = _clipped(mixer, w.matmul(x, "attn_q")).reshape(n, mixer.n_head, -1)
    gate = q[..., mixer.head_size :]
    q = _turned(q[..., : mixer.head_size], mixer.q_norm, mixer, w, run)
    if mixer.temperature is not None:
        t = mixer.temperature
        steps = np.floor((run.positions + t.offset) / t.length)
        q = q * (1 + t.slope * np.log1p(steps)).astype(np.float32)[:, None, None]
    if mixer.shared is None:
        cells = run.placement.cells
        k = _clipped(mixer, w.matmul(x, "attn_k")).reshape(n, mixer.n_kv_head, -1)
        v = k
        if not mixer.values_are_keys:
            v = _clipped(mixer, w.matmul(x, "attn_v")).reshape(n, mixer.n_kv_head, -1)
        run.keys[i][cells] = run.stored(_turned(k, mixer.k_norm, mixer, w, run))
        run.values[i][cells] = run.stored(w.norm_heads(mixer.v_norm, v))
    source = i if mixer.shared is None else mixer.shared
    sinks = w["attn_sinks.weight"] if mixer.sinks else None
    mask, bias = within(run, mixer), falling(run, mixer)
    mixed, weights = attend(
        q, run.keys[source], run.values[source], mask, mixer.scale, mixer.cap, sinks, bias
    )
    if run.wanted:
        run.attention.append(weights)
    if mixer.gate:
        mixed = mixed * sigmoid(gate.reshape(n, -1))
    return w.matmul(run.tap(i, Kind.HEADS, w.norm(mixer.mixed_norm, mixed)), "attn_output")


def _clipped(mixer: Attention, x: Floats) -> Floats:
    """Numbers no further from 0 than the limit, if there is one."""
    return np.clip(x, np.float32(-mixer.clip), np.float32(mixer.clip)) if mixer.clip else x


def _turned(x: Floats, norm: Norm | None, mixer: Attention, w: LayerWeights, run: Pass) -> Floats:
    """Queries or keys, normalised and rotated."""
    if not mixer.norm_after_rope:
        x = w.norm_heads(norm, x)
    if mixer.rope is not None:
        x = rotate(x, run.rotated, mixer.rope, run.view_lengths)
    return w.norm_heads(norm, x) if mixer.norm_after_rope else x


def within(run: Pass, mixer: Attention) -> Mask:
    """The mask without cells outside the window; whole views in both directions."""
    table, positions = run.placement.table[None, :], run.positions[:, None]
    if not mixer.causal:
        return run.whole if mixer.window is None else run.whole & (np.abs(table - positions) < mixer.window)
    if mixer.window is None:
        return run.mask if run.causal is None else run.causal
    first = positions - (positions % mixer.window if mixer.chunked else mixer.window - 1)
    return run.mask & (table >= first)


def falling(run: Pass, mixer: Attention) -> Floats | None:
    """float32[n_head, n, n_cells]: what scores fall by with the distance (ALiBi), below 0."""
    if not mixer.alibi:
        return None
    distance = np.abs(run.placement.table[None, :] - run.positions[:, None])
    fallen: Floats = -np.asarray(mixer.alibi, np.float32)[:, None, None] * distance.astype(np.float32)
    return fallen


def attend(
    queries: Floats,
    keys: Floats,
    values: Floats,
    mask: Mask,
    scale: float,
    most: float = 0.0,
    sinks: Floats | None = None,
    bias: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Attention of each row to the cells its mask allows, each K/V head shared by a group of heads.

    queries [n, n_head, size], keys and values [n_cells, n_kv_head, size], mask [n, n_cells], sinks [n_head],
    bias [n_head, n, n_cells]
    → float32[n, n_head × size] and the weights float32[n_head, n, n_cells]
    """
    n, n_head, _ = queries.shape
    cells = np.flatnonzero(mask.any(axis=0))
    group = n_head // keys.shape[1]
    weights = np.zeros((n_head, n, len(keys)), np.float32)
    mixed = np.empty((n, n_head, values.shape[2]), np.float32)
    for head in range(n_head):
        scores = queries[:, head] @ keys[cells, head // group].T * np.float32(scale)  # [n, cells]
        scores = cap(scores, most) if bias is None else cap(scores, most) + bias[head][:, cells]
        scores = np.where(mask[:, cells], scores, -np.inf)
        largest = scores.max(axis=1, keepdims=True)
        if sinks is not None:
            largest = np.maximum(largest, sinks[head])
        scores = np.exp(scores - largest)
        total = scores.sum(axis=1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks[head] - largest)
        scores /= total
        weights[head][:, cells] = scores
        mixed[:, head] = scores @ values[cells, head // group]
    return mixed.reshape(n, -1), weights


# Latent attention (MLA): attention over one compressed vector for each cell.


def mix_latent(mixer: Latent, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """Attention of normalised rows x to their cells; the compressed rows are written first."""
    n, low = len(x), x
    if mixer.q_rank:
        low = w.norm(mixer.q_norm, w.matmul(x, "attn_q_a"))
    q = w.matmul(low, "attn_q_b" if mixer.q_rank else "attn_q")
    q = q.reshape(n, mixer.n_head, -1)
    # In the space of the compressed vectors, head by head.
    k_b, v_b = expansions(mixer, w)
    plain = np.einsum("nhd,hrd->nhr", q[..., : mixer.nope_size], k_b)
    rotated = _rotated(q[..., mixer.nope_size :], mixer, run)
    queries = np.concatenate((plain, rotated), axis=2)

    compressed = w.matmul(x, "attn_kv_a_mqa")
    latent = w.norm(mixer.kv_norm, compressed[:, : mixer.rank])
    key = _rotated(compressed[:, None, mixer.rank :], mixer, run)[:, 0]
    run.keys[i][run.placement.cells, 0] = run.stored(np.concatenate((latent, key), axis=1))

    values = run.keys[i][..., : mixer.rank]
    mask = run.mask
    if mixer.indexer is not None:
        mask = run.chosen[i] = choose(mixer.indexer, w, i, x, low, run)
    elif mixer.chosen_by is not None:
        mask = run.chosen[mixer.chosen_by]
    mixed, weights = attend(queries, run.keys[i], values, mask, mixer.scale)
    if run.wanted:
        run.attention.append(weights)
    heads = np.einsum("nhr,hvr->nhv", mixed.reshape(n, mixer.n_head, -1), v_b)
    return w.matmul(run.tap(i, Kind.HEADS, heads.reshape(n, -1)), "attn_output")


def choose(indexer: Indexer, w: LayerWeights, i: int, x: Floats, low: Floats, run: Pass) -> Mask:
    """bool[n, n_cells]: the cells that each row attends to; index keys of the rows are written first.

    The original rotates queries and keys by a Hadamard matrix before it rounds them to FP8. Nothing is
    rounded here, and without that the rotation of both changes no product.
    """
    n, keys = len(x), run.values[i]
    q = rotate(w.matmul(low, "indexer.attn_q_b").reshape(n, indexer.n_head, -1), run.rotated, indexer.rope)
    k = w.norm(indexer.k_norm, w.matmul(x, "indexer.attn_k"))
    keys[run.placement.cells] = run.stored(rotate(k[:, None], run.rotated, indexer.rope))
    weights = w.matmul(x, "indexer.proj") * np.float32(indexer.scale)
    chosen = run.mask.copy()
    for row in np.flatnonzero(run.mask.sum(axis=1) > indexer.top_k):
        view = run.placement.views[run.placement.view_of[row]]
        seen = view[run.mask[row, view]]
        scores = weights[row] @ np.maximum(q[row] @ keys[seen, 0].T, 0)
        chosen[row, seen[np.argsort(-scores, kind="stable")[indexer.top_k :]]] = False
    return chosen


def _rotated(x: Floats, mixer: Latent, run: Pass) -> Floats:
    """x [n, heads, size], rotated if the mixer has positions."""
    return x if mixer.rope is None else rotate(x, run.rotated, mixer.rope)


def expansions(mixer: Latent, w: LayerWeights) -> tuple[Floats, Floats]:
    """The matrices of K [n_head, rank, nope_size] and V [n_head, value_size, rank]."""
    if not mixer.fused:
        return w["attn_k_b.weight"], w["attn_v_b.weight"]
    both = w["attn_kv_b.weight"].reshape(mixer.n_head, -1, mixer.rank)
    return both[:, : mixer.nope_size].swapaxes(1, 2), both[:, mixer.nope_size :]


# Recurrent mixers: each row advances the state in its slot, token after token.
#
# A slot's state of a layer is one array of numbers: the last inputs of its convolution, then the matrices
# of its heads. Both are changed in place.

LENGTH_EPSILON = np.float32(1e-6)  # of the length that queries and keys of a delta net are divided by


def delta_net(mixer: DeltaNet, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """A matrix for each value head, which tells a value for each key; a token corrects that of its key."""
    n, heads = len(x), (mixer.n_value_head, mixer.value_size)
    qkv, z = w.matmul(x, "attn_qkv"), w.matmul(x, "attn_gate").reshape(n, *heads)
    beta, alpha = _beta_alpha(mixer, w, x)
    correction = sigmoid(beta)  # [n, value heads]
    decay = np.exp(w["ssm_a"] * softplus(alpha + w["ssm_dt.bias"]))
    out = np.empty((n, *heads), np.float32)
    for rows, history, matrices in _states(run, i, mixer.kernel, mixer.channels):
        mixed = silu(convolve(history, qkv[rows], w["ssm_conv1d.weight"]))
        q, k, v = np.split(mixed, np.cumsum([mixer.n_key_head * mixer.key_size] * 2), axis=1)
        q, k = (_by_value_head(mixer, unit(a.reshape(len(a), mixer.n_key_head, -1))) for a in (q, k))
        v = v.reshape(-1, *heads)
        memory = matrices.reshape(mixer.n_value_head, mixer.key_size, mixer.value_size)
        for t, row in enumerate(rows):
            memory *= decay[row][:, None, None]
            error = v[t] - np.einsum("hkv,hk->hv", memory, k[t])
            memory += k[t][:, :, None] * (correction[row][:, None] * error)[:, None, :]
            out[row] = np.einsum("hkv,hk->hv", memory, q[t]) * np.float32(mixer.key_size**-0.5)
    out = w.norm(mixer.norm, out) * silu(z)
    return w.matmul(out.reshape(n, -1), "ssm_out")


def kimi_delta(mixer: KimiDelta, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """A delta net's matrix for each head, in which every row, that of a channel of keys, decays by itself."""
    n, heads = len(x), (mixer.n_head, mixer.head_size)
    mixed = [w.matmul(x, f"attn_{name}") for name in "qkv"]
    correction = sigmoid(w.matmul(x, "ssm_beta"))  # [n, heads]
    steps = softplus(w.matmul(w.matmul(x, "ssm_f_a"), "ssm_f_b") + w["ssm_dt.bias"]).reshape(n, *heads)
    decay = np.exp(w["ssm_a"][:, None] * steps)
    out = np.empty((n, *heads), np.float32)
    for rows, history, matrices in _states(run, i, mixer.kernel, 3 * mixer.width):
        inputs = np.split(history.reshape(-1), 3)  # of queries, keys and values
        q, k, v = (
            silu(convolve(last.reshape(-1, mixer.width), each[rows], w[f"ssm_conv1d_{name}.weight"])).reshape(
                -1, *heads
            )
            for name, last, each in zip("qkv", inputs, mixed, strict=True)
        )
        q, k = unit(q) * np.float32(mixer.head_size**-0.5), unit(k)
        memory = matrices.reshape(mixer.n_head, mixer.head_size, mixer.head_size)
        for t, row in enumerate(rows):
            memory *= decay[row][:, :, None]
            error = v[t] - (memory * k[t][:, :, None]).sum(axis=1)
            memory += k[t][:, :, None] * (correction[row][:, None] * error)[:, None, :]
            out[row] = np.einsum("hkv,hk->hv", memory, q[t])
    gate = sigmoid(w.matmul(w.matmul(x, "ssm_g_a"), "ssm_g_b"))
    return w.matmul(w.norm(mixer.norm, out).reshape(n, -1) * gate, "attn_output")


def short_convolution(mixer: Convolution, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """c × convolution(b × x)."""
    b, c, inner = np.split(w.matmul(x, "shortconv.in_proj"), 3, axis=1)
    out = np.empty_like(c)
    for rows, history, _ in _states(run, i, mixer.kernel, mixer.width):
        out[rows] = c[rows] * convolve(history, (b * inner)[rows], w["shortconv.conv.weight"])
    return w.matmul(out, "shortconv.out_proj")


def mamba2(mixer: Mamba2, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """A matrix for each head, to which a token adds x times its B, and from which it reads with its C."""
    n = len(x)
    gate, inputs, dt = np.split(w.matmul(x, "ssm_in"), np.cumsum([mixer.inner, mixer.channels]), axis=1)
    step = softplus(dt + w["ssm_dt.bias"])  # [n, heads]
    decay = np.exp(step * w["ssm_a"][:, 0])
    out = np.empty((n, mixer.n_head, mixer.head_size), np.float32)
    for rows, history, matrices in _states(run, i, mixer.kernel, mixer.channels):
        mixed = silu(convolve(history, inputs[rows], w["ssm_conv1d.weight"], w.get("ssm_conv1d.bias")))
        values, b, c = np.split(mixed, np.cumsum([mixer.inner, mixer.n_group * mixer.state_size]), axis=1)
        values = values.reshape(-1, mixer.n_head, mixer.head_size)
        shared = mixer.n_head // mixer.n_group  # heads that have the same B and C
        b, c = (np.repeat(a.reshape(len(a), mixer.n_group, -1), shared, axis=1) for a in (b, c))
        memory = matrices.reshape(mixer.n_head, mixer.head_size, mixer.state_size)
        for t, row in enumerate(rows):
            memory *= decay[row][:, None, None]
            memory += (step[row][:, None] * values[t])[:, :, None] * b[t][:, None, :]
            out[row] = np.einsum("hps,hs->hp", memory, c[t]) + w["ssm_d"] * values[t]
    gated = out.reshape(n, -1) * silu(gate)
    if mixer.norm is not None:
        groups = gated.reshape(n, mixer.n_group, -1)
        gated = w.norm(mixer.norm, groups).reshape(n, -1)
    return w.matmul(gated, "ssm_out")


def mamba(mixer: Mamba, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """A state for each channel, to which a token adds the channel times B, and which it reads with C."""
    mixed, gate = w.matmul(x, "ssm_in"), w.matmul(x, "ssm_in_gate")
    for rows, history, _ in _states(run, i, mixer.kernel, mixer.width):
        mixed[rows] = convolve(history, mixed[rows], w["ssm_conv1d.weight"], w.get("ssm_conv1d.bias"))
    mixed = silu(mixed)
    norms = {"dt": mixer.step_norm, "b": mixer.b_norm, "c": mixer.c_norm}
    low, b, c = (w.norm(norm, w.matmul(mixed, f"ssm_x_{name}")) for name, norm in norms.items())
    step = softplus(w.matmul(low, "ssm_dt"))  # [n, channels]
    out = np.empty_like(mixed)
    for rows, _, memory in _states(run, i, mixer.kernel, mixer.width):
        state = memory.reshape(mixer.width, mixer.state_size)
        for row in rows:
            state *= np.exp(step[row][:, None] * w["ssm_a"])
            state += (step[row] * mixed[row])[:, None] * b[row]
            out[row] = state @ c[row] + w["ssm_d"] * mixed[row]
    return w.matmul(out * silu(gate), "ssm_out")


SQUARED_LENGTH = np.float32(1e-24)  # the least that keys of time mixing are divided by the root of
DECAY = np.float32(-np.exp(-0.5))  # of a channel that decays fastest, log


def time_mix(mixer: TimeMix, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """A matrix for each head whose channels decay, which is corrected towards a token's value at its key."""
    n, heads = len(x), (mixer.n_head, mixer.head_size)
    before = np.empty_like(x)
    for rows, history, _ in _states(run, i, 2, mixer.width):
        before[rows] = shifted(history[0], x[rows])
    shares = w["time_mix_lerp_fused.weight"]
    mixed = {name: x + (before - x) * share for name, share in zip(mixer.mixtures, shares, strict=True)}

    def narrow(name: str, inner: Callable[[Floats], Floats] = np.asarray) -> Floats:
        made = w.matmul(inner(w.matmul(mixed[name], f"time_mix_{name}1")), f"time_mix_{name}2")
        return made if name == "g" else made + w[f"time_mix_{name}0.weight"]

    r, k, v = (w.matmul(mixed[name[0]], f"time_mix_{name}") for name in ("receptance", "key", "value"))
    decays = np.exp(DECAY * sigmoid(narrow("w", np.tanh)))
    rate = sigmoid(narrow("a"))
    if run.first_values is None:
        run.first_values = v
    else:
        v = v + (run.first_values - v) * sigmoid(narrow("v"))
    corrected = (k * w["time_mix_k_k.weight"]).reshape(n, *heads)
    corrected /= np.sqrt(np.maximum(np.square(corrected).sum(-1, keepdims=True), SQUARED_LENGTH))
    k = k * (1 + (rate - 1) * w["time_mix_k_a.weight"])
    r, k, v, decays, rate = (a.reshape(n, *heads) for a in (r, k, v, decays, rate))
    out = np.empty((n, *heads), np.float32)
    for rows, _, matrices in _states(run, i, 2, mixer.width):
        size = mixer.head_size * mixer.width  # what is behind them is the feed-forward's
        state = matrices[:size].reshape(mixer.n_head, mixer.head_size, mixer.head_size)  # keys, values
        for row in rows:
            found = np.einsum("hkv,hk->hv", state, corrected[row])
            state *= decays[row][:, :, None]
            state -= (corrected[row] * rate[row])[:, :, None] * found[:, None, :]
            state += k[row][:, :, None] * v[row][:, None, :]
            out[row] = np.einsum("hkv,hk->hv", state, r[row])
    if mixer.norm is not None:
        weight, bias = (w[f"{mixer.norm.name}.{kind}"].reshape(heads) for kind in ("weight", "bias"))
        out = layer_norm(out, weight, bias, mixer.norm.eps)
    own = (r * k * w["time_mix_r_k.weight"].reshape(heads)).sum(-1, keepdims=True) * v
    out = (out + own).reshape(n, -1)
    return w.matmul(out * narrow("g", sigmoid) if mixer.gate_rank else out, "time_mix_output")


def mix_channels(ffn: Dense, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """What channel mixing reads: normalised rows x, each mixed with the one before it in its text."""
    before = np.empty_like(x)
    for rows, _, state in _states(run, i, 1, 0):
        before[rows] = shifted(state[-ffn.shift :], x[rows])
    return x + (before - x) * w["channel_mix_lerp_k.weight"]


def shifted(last: Floats, x: Floats) -> Floats:
    """The rows before those of x [n, n_embd], the first of which is `last` [n_embd]; it becomes x's last."""
    before: Floats = np.concatenate((last[None], x[:-1]))
    last[:] = x[-1]
    return before


def convolve(history: Floats, x: Floats, taps: Floats, bias: Floats | None = None) -> Floats:
    """Each channel's last inputs times its taps, the newest last; `history` becomes that of the next row.

    history [kernel − 1, channels], x [n, channels], taps [channels, kernel] → float32[n, channels]
    """
    inputs = np.concatenate((history, x))
    out = np.zeros_like(x)
    for back in range(taps.shape[1]):
        out += inputs[back : back + len(x)] * taps[:, back]
    history[:] = inputs[len(x) :]
    return out if bias is None else out + bias


def unit(x: Floats) -> Floats:
    """x divided by its length, along the last axis."""
    out: Floats = x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + LENGTH_EPSILON)
    return out


def _by_value_head(mixer: DeltaNet, x: Floats) -> Floats:
    """Keys or queries [n, key heads, size], for each value head."""
    times = mixer.n_value_head // mixer.n_key_head
    return np.tile(x, (1, times, 1)) if mixer.tiled else np.repeat(x, times, axis=1)


def _beta_alpha(mixer: DeltaNet, w: LayerWeights, x: Floats) -> tuple[Floats, Floats]:
    """The numbers that become each value head's correction and decay: [n, value heads] each."""
    if not mixer.fused:
        return w.matmul(x, "ssm_beta"), w.matmul(x, "ssm_alpha")
    both = w.matmul(x, "ssm_ba").reshape(len(x), mixer.n_key_head, 2, -1)
    return both[:, :, 0].reshape(len(x), -1), both[:, :, 1].reshape(len(x), -1)


def _states(
    run: Pass, i: int, kernel: int, channels: int
) -> Iterator[tuple[NDArray[np.intp], Floats, Floats]]:
    """For each slot of the pass: its rows in order, and layer i's state, as the history and the matrices."""
    slots = run.placement.slots
    if slots is None:
        raise InvalidRequest("the model has recurrent layers, but the batch has no state slots")
    for slot in dict.fromkeys(slots.tolist()):
        state = run.states[i][slot]
        size = (kernel - 1) * channels
        yield np.flatnonzero(slots == slot), state[:size].reshape(kernel - 1, channels), state[size:]
