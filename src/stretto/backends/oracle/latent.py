"""Latent attention (MLA): attention over one compressed vector for each cell."""

from __future__ import annotations

import numpy as np

from stretto.backends.oracle.attention import attend
from stretto.backends.oracle.layer import Floats, LayerWeights, Pass
from stretto.backends.oracle.maths import rotate
from stretto.models.mixers import Latent


def mix(mixer: Latent, w: LayerWeights, i: int, x: Floats, run: Pass) -> Floats:
    """Attention of normalised rows x to their cells; the compressed rows are written first."""
    n = len(x)
    if mixer.q_rank:
        q = w.matmul(w.norm(mixer.q_norm, w.matmul(x, "attn_q_a")), "attn_q_b")
    else:
        q = w.matmul(x, "attn_q")
    q = q.reshape(n, mixer.n_head, -1)
    # In the space of the compressed vectors, head by head.
    k_b, v_b = expansions(mixer, w)
    plain = np.einsum("nhd,hrd->nhr", q[..., : mixer.nope_size], k_b)
    rotated = rotate(q[..., mixer.nope_size :], run.rotated, mixer.rope)
    queries = np.concatenate((plain, rotated), axis=2)

    compressed = w.matmul(x, "attn_kv_a_mqa")
    latent = w.norm(mixer.kv_norm, compressed[:, : mixer.rank])
    key = rotate(compressed[:, None, mixer.rank :], run.rotated, mixer.rope)[:, 0]
    run.keys[i][run.placement.cells, 0] = run.stored(np.concatenate((latent, key), axis=1))

    values = run.keys[i][..., : mixer.rank]
    mixed, weights = attend(queries, run.keys[i], values, run.mask, mixer.scale)
    if run.wanted:
        run.attention.append(weights)
    heads = np.einsum("nhr,hvr->nhv", mixed.reshape(n, mixer.n_head, -1), v_b)
    return w.matmul(heads.reshape(n, -1), "attn_output")


def expansions(mixer: Latent, w: LayerWeights) -> tuple[Floats, Floats]:
    """The matrices of K [n_head, rank, nope_size] and V [n_head, value_size, rank]."""
    if not mixer.fused:
        return w["attn_k_b.weight"], w["attn_v_b.weight"]
    both = w["attn_kv_b.weight"].reshape(mixer.n_head, -1, mixer.rank)
    return both[:, : mixer.nope_size].swapaxes(1, 2), both[:, mixer.nope_size :]
