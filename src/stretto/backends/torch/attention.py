"""Attention over views: each row attends to a range of entries of its view, whose cells lie anywhere.

`attend` is the kernel where kernels run (see `device.uses_kernels`) and `plain_attend` elsewhere, which says
what it means. A row's result depends on its query, the cells it attends to and their order, on nothing else:
not on other rows, and not on the items of `AttentionWork` that it is computed by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.planes import Plane, read, write
from stretto.backends.torch.work import AttentionWork, Scoring

PLAIN_ROWS = 128  # rows whose scores the plain version holds at a time


def attend(
    q: Tensor,
    keys: Plane,
    values: Plane,
    work: AttentionWork,
    scoring: Scoring,
    out: Tensor | None = None,
    deep: bool = True,
) -> Tensor:
    """Attention of queries [n, heads, size] to the cells of `work`: [n, heads × size of values].

    Each K/V head serves a group of heads. `values` may be `keys[..., :size]`. The result has the type of
    `out`, or that of `q`. `deep`: kernels of few rows load far ahead, in shared memory that a kernel
    which is launched early would need.
    """
    n, heads, _ = q.shape
    if out is None:
        out = q.new_empty(n, heads * values.shape[2])
    if uses_kernels(q):
        from stretto.backends.torch.kernels.attend_launch import launch_attend

        launch_attend(q, keys, values, work, scoring, out, deep)
    else:
        plain_attend(q, keys, values, work, scoring, out)
    return out


def store(k: Tensor, v: Tensor | None, keys: Plane, values: Plane | None, cells: Tensor) -> None:
    """Write K and V [n, K/V heads, size] to cells int32[n]; `v` is None where values are part of keys."""
    for x, plane in ((k, keys), (v, values)):
        if x is None or plane is None:
            continue
        if uses_kernels(x):
            from stretto.backends.torch.kernels.cells import launch_store

            launch_store(x, plane, cells)
        else:
            write(x, plane, cells)


def plain_attend(
    q: Tensor, keys: Plane, values: Plane, work: AttentionWork, scoring: Scoring, out: Tensor
) -> None:
    """`attend` in plain torch, with float32 sums."""
    n, heads, _ = q.shape
    mixed = out.view(n, heads, -1)
    for rows, cells, shares in _shares(q, keys, work, range(n), scoring):
        v = read(values, cells).float()  # [entries, K/V heads, size]
        group = heads // v.shape[1]
        grouped = shares.view(len(rows), v.shape[1], group, -1).permute(1, 0, 2, 3).flatten(1, 2)
        found = (grouped @ v.permute(1, 0, 2)).view(v.shape[1], len(rows), group, -1)
        mixed[rows] = found.permute(1, 0, 2, 3).flatten(1, 2).to(out.dtype)


def weights(
    q: Tensor, keys: Plane, work: AttentionWork, rows: Sequence[int], scoring: Scoring
) -> list[Tensor]:
    """The attention of some rows, float32[heads, length of the row] each, in the order of their views."""
    found: dict[int, Tensor] = {}
    lengths = work.lengths.tolist()
    for some, _, shares in _shares(q, keys, work, rows, scoring):
        found |= {row: shares[i, :, : lengths[row]] for i, row in enumerate(some)}
    return [found[row] for row in rows]


def received(q: Tensor, keys: Plane, work: AttentionWork, probes: Tensor, scoring: Scoring) -> Tensor:
    """The attention that cells int32[n_probes] get from each row, mean of all heads: float32[n, n_probes]."""
    found = q.new_zeros(len(q), len(probes)).float()
    for rows, cells, shares in _shares(q, keys, work, range(len(q)), scoring):
        at = (cells[:, None] == probes[None, :]).float()  # [entries, n_probes]
        found[rows] = shares.mean(1) @ at
    return found


def _shares(
    q: Tensor, keys: Plane, work: AttentionWork, rows: Sequence[int], scoring: Scoring
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Rows of one view, its cells int32[entries], and the rows' weights float32[rows, heads, entries]."""
    offsets, lengths = work.offsets.tolist(), work.lengths.tolist()
    by_view: dict[int, list[int]] = {}
    for row in dict.fromkeys(rows):
        by_view.setdefault(offsets[row], []).append(row)
    for offset, members in by_view.items():
        for first in range(0, len(members), PLAIN_ROWS):
            some = members[first : first + PLAIN_ROWS]
            entries = slice(offset, offset + max(lengths[row] for row in some))
            cells = work.views[entries]
            scores = _scores(q[some], read(keys, cells), scoring)
            yield some, cells, _softmax(scores, some, entries, work, scoring)


def _scores(q: Tensor, k: Tensor, scoring: Scoring) -> Tensor:
    """float32[rows, heads, entries]: products with keys [entries, K/V heads, size], scaled and capped."""
    n, heads, size = q.shape
    group = heads // k.shape[1]
    grouped = q.to(k.dtype).float().view(n, k.shape[1], group, size).permute(1, 0, 2, 3).flatten(1, 2)
    found = (grouped @ k.float().permute(1, 2, 0)).view(k.shape[1], n, group, -1) * scoring.scale
    found = found.permute(1, 0, 2, 3).flatten(1, 2)
    return (found / scoring.cap).tanh() * scoring.cap if scoring.cap else found


def _softmax(
    scores: Tensor, rows: list[int], entries: slice, work: AttentionWork, scoring: Scoring
) -> Tensor:
    """Weights of the entries that each row attends to, 0 elsewhere."""
    import torch

    if scoring.alibi is not None:
        distance = (work.places[entries][None, :] - work.positions[rows][:, None]).abs()
        scores = scores - scoring.alibi[None, :, None] * distance[:, None, :]
    index = torch.arange(scores.shape[2], device=scores.device)
    hidden = (index < work.firsts[rows][:, None]) | (index >= work.lengths[rows][:, None])
    scores = scores.masked_fill(hidden[:, None, :], float("-inf"))
    if scoring.sinks is None:
        return scores.softmax(2)
    sinks = scoring.sinks.float()[None, :, None].expand(len(rows), -1, 1)
    return torch.cat((scores, sinks), 2).softmax(2)[..., :-1]
