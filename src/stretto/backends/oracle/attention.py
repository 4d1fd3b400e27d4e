"""Attention: each row attends to the cells that its mask allows."""

from __future__ import annotations

import numpy as np

from stretto.backends.oracle.layer import Floats, LayerWeights, Mask, Pass
from stretto.backends.oracle.maths import cap, rotate, sigmoid
from stretto.models.mixers import Attention
from stretto.models.parts import Norm


def mix(mixer: Attention, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """Attention of normalised rows x to their cells; K and V of the rows are written first."""
    n = len(x)
    q = w.matmul(x, "attn_q").reshape(n, mixer.n_head, -1)
    gate = q[..., mixer.head_size :]
    q = _turned(q[..., : mixer.head_size], mixer.q_norm, mixer, w, run)
    if mixer.temperature is not None:
        t = mixer.temperature
        steps = np.floor((run.positions + t.offset) / t.length)
        q = q * (1 + t.slope * np.log1p(steps)).astype(np.float32)[:, None, None]
    if mixer.shared is None:
        cells = run.placement.cells
        k = w.matmul(x, "attn_k").reshape(n, mixer.n_kv_head, -1)
        v = k if mixer.values_are_keys else w.matmul(x, "attn_v").reshape(n, mixer.n_kv_head, -1)
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
    return w.matmul(mixed, "attn_output")


def _turned(x: Floats, norm: Norm | None, mixer: Attention, w: LayerWeights, run: Pass) -> Floats:
    """Queries or keys, normalised and rotated."""
    if not mixer.norm_after_rope:
        x = w.norm_heads(norm, x)
    if mixer.rope is not None:
        x = rotate(x, run.rotated, mixer.rope)
    return w.norm_heads(norm, x) if mixer.norm_after_rope else x


def within(run: Pass, mixer: Attention) -> Mask:
    """The mask without cells that are `window` positions away or more; whole views in both directions."""
    table, positions = run.placement.table[None, :], run.positions[:, None]
    if not mixer.causal:
        return run.whole if mixer.window is None else run.whole & (np.abs(table - positions) < mixer.window)
    if mixer.window is None:
        return run.mask if run.causal is None else run.causal
    return run.mask & (table > positions - mixer.window)


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
