"""The attention of a layer: projections, norms and rotations, K and V into cells, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from stretto.backends.torch import planes
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.launching import Form, launch, make_form
from stretto.backends.torch.matrix import BLOCK, prefetch_arguments, product
from stretto.backends.torch.passes import Pass
from stretto.backends.torch.planes import Plane, read, write
from stretto.backends.torch.rowwise import NormWeights, norm, power_of_two
from stretto.backends.torch.rowwise import norm as normalize
from stretto.backends.torch.weights import LayerWeights
from stretto.backends.torch.work import AttentionWork, Scoring
from stretto.errors import Unsupported
from stretto.models.mixers import Attention, Latent
from stretto.models.parts import Norm

# Attention over views: each row attends to a range of entries of its view, whose cells lie anywhere.
#
# `attend` is the kernel where kernels run (see `device.uses_kernels`) and `plain_attend` elsewhere,
# which says what it means. A row's result depends on its query, the cells it attends to and their
# order, on nothing else: not on other rows, and not on the items of `AttentionWork` that it is computed
# by.

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


def weigh_cells(
    q: Tensor, keys: Plane, work: AttentionWork, rows: Sequence[int], scoring: Scoring
) -> list[Tensor]:
    """The attention of some rows, float32[heads, length of the row] each, in the order of their views."""
    found: dict[int, Tensor] = {}
    lengths = work.lengths.tolist()
    for some, _, shares in _shares(q, keys, work, rows, scoring):
        found |= {row: shares[i, :, : lengths[row]] for i, row in enumerate(some)}
    return [found[row] for row in rows]


def sum_received(q: Tensor, keys: Plane, work: AttentionWork, probes: Tensor, scoring: Scoring) -> Tensor:
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


HEADS = 8  # that one program turns
WHOLE_ROW = 2  # of a norm's extent: over all heads
GATED = 512  # numbers that a program gates
SMALLEST_HEAD = 16  # that a product of one kernel takes

_Turning = tuple[Form, tuple[Tensor | None, ...], tuple[float, ...]]


class AttentionLayer:
    """Attention over the cells of each row's view."""

    def __init__(self, mixer: Attention, w: LayerWeights, index: int, n_embd: int) -> None:
        self.mixer, self.index, self.dtype = mixer, index, w.dtype
        size, heads, kv_heads = mixer.head_size, mixer.n_head, mixer.n_kv_head
        rows = {"attn_q": heads * size * (2 if mixer.gate else 1)}
        self.at_k = self.at_v = rows["attn_q"]
        if mixer.shared is None:
            rows["attn_k"] = kv_heads * size
            if not mixer.values_are_keys:
                self.at_v = self.at_k + rows["attn_k"]
                rows["attn_v"] = kv_heads * size
        self.projection = w.matrix(rows, n_embd)
        self.bias = w.biases(rows)
        self.output = w.matrix({"attn_output": n_embd}, heads * size)
        self.output_bias = w.biases({"attn_output": n_embd})
        shared = mixer.shared is not None
        self.q_norm = _head_norm(w, mixer.q_norm, heads, size)
        self.k_norm = None if shared else _head_norm(w, mixer.k_norm, kv_heads, size)
        self.v_norm = None if shared else _head_norm(w, mixer.v_norm, kv_heads, size)
        self.mixed_norm = w.norm(mixer.mixed_norm, heads * size)
        sinks = w.vector("attn_sinks.weight", heads) if mixer.sinks else None
        alibi = torch.tensor(mixer.alibi, device=w.device) if mixer.alibi else None
        self.scoring = Scoring(mixer.scale, mixer.cap, sinks, alibi)
        self.rope = w.weights.rope(mixer.rope) if mixer.rope is not None else None
        self._programs = 1  # that share a row's queries, K and V
        self._forms: dict[tuple[bool, bool, bool], _Turning] = {}

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        """dtype[n, n_embd]: what the layer adds, from normalised rows."""
        projected = product(x, self.projection, bias=self.bias)
        if self.mixer.clip:
            projected = projected.clamp(-self.mixer.clip, self.mixer.clip)
        mixed = self.attend(projected, run)
        if self.mixed_norm is not None:
            mixed = normalize(mixed, self.mixed_norm, self.dtype)
        return product(mixed, self.output, bias=self.output_bias)

    def attend(self, projected: Tensor, run: Pass) -> Tensor:
        """dtype[n, heads × size]: the attention of rows to their cells, from their projections."""
        mixer, source = self.mixer, self.index if self.mixer.shared is None else self.mixer.shared
        keys, values = run.memory.keys[source], run.memory.values[source]
        assert keys is not None
        assert values is not None
        work = run.work.of(mixer.reach, mixer.causal)
        mixed = projected.new_empty(len(projected), mixer.n_head * mixer.head_size, dtype=self.dtype)
        if run.is_lean and self.is_one_kernel(keys):
            self.attend_row(projected, keys, values, run, work, mixed)
            return mixed
        turn = self.turn_kernel if uses_kernels(projected) else self.turn
        q = turn(projected, keys, values, run)
        watch(run, q, keys, work, self.scoring)
        attend(q, keys, values, work, self.scoring, mixed, deep=not run.is_lean)
        if mixer.gate and uses_kernels(mixed):
            self.gate_kernel(mixed, projected)
        elif mixer.gate:
            gate = projected[:, : self.at_k].view(len(q), mixer.n_head, -1)[..., mixer.head_size :]
            mixed = mixed.float() * torch.sigmoid(gate.float()).reshape(mixed.shape)
            mixed = mixed.to(self.dtype)
        return mixed

    # -- queries and keys --

    def turn(self, projected: Tensor, keys: Tensor, values: Tensor, run: Pass) -> Tensor:
        """Queries; K and V are stored. In plain torch."""
        mixer, n = self.mixer, len(projected)
        q = projected[:, : self.at_k].view(n, mixer.n_head, -1)[..., : mixer.head_size]
        q = self._turned(q, self.q_norm, run)
        if (t := mixer.temperature) is not None:
            steps = torch.floor((run.positions + t.offset) / t.length)
            q = q * (1 + t.slope * torch.log1p(steps))[:, None, None]
        if mixer.shared is None:
            width = mixer.n_kv_head * mixer.head_size
            k, v = (
                projected[:, at : at + width].view(n, mixer.n_kv_head, -1) for at in (self.at_k, self.at_v)
            )
            v = v if self.v_norm is None else normalize(v, self.v_norm, torch.float32)
            store(self._turned(k, self.k_norm, run), v, keys, values, run.cells)
        return q.to(planes.operand(keys))

    def _turned(self, x: Tensor, norm: NormWeights | None, run: Pass) -> Tensor:
        after = self.mixer.norm_after_rope
        x = x.float() if after else _normed(x, norm)
        if self.rope is not None:
            x = self.rope.rotate(x, *self.rope.at(run.turns))
        return _normed(x, norm) if after else x

    def _form(self, has_axes: bool, placed: bool, prefetches: bool, device: torch.device) -> _Turning:
        """The kernel of `_turn`, and the weights and numbers that it takes."""
        found = self._forms.get((has_axes, placed, prefetches))
        if found is not None:
            return found
        from stretto.backends.torch.kernels import rowwise as kernels
        from stretto.backends.torch.kernels.early import early_options

        mixer, size = self.mixer, self.mixer.head_size
        together = power_of_two(mixer.n_head)
        if _extent(self.q_norm) != WHOLE_ROW:
            together = min(HEADS, together)
        parts = -(-mixer.n_head // together)
        self._programs = parts + (2 if mixer.shared is None else 0)
        form = make_form(
            kernels.queries_and_keys,
            HP=together, KP=power_of_two(mixer.n_kv_head), PARTS=parts, DP=power_of_two(size),
            QSTRIDE=size * (2 if mixer.gate else 1), PLACED=placed, **self._turning_constants(has_axes),
            LAST=self._programs, PREFETCHED=BLOCK if prefetches else 0, num_warps=4, **early_options(device),
        )  # fmt: skip
        weights = tuple(None if each is None else each.weight for each in self._norms)
        self._forms[has_axes, placed, prefetches] = found = form, weights, self._turning_numbers()
        return found

    @property
    def _norms(self) -> tuple[NormWeights | None, ...]:
        return self.q_norm, self.k_norm, self.v_norm

    def _turning_constants(self, has_axes: bool) -> dict[str, Any]:
        """What kernels that turn queries and keys are compiled for."""
        mixer, table = self.mixer, self.rope
        return {
            "H": mixer.n_head, "HK": mixer.n_kv_head, "D": mixer.head_size,
            "PAIRS": 0 if table is None else table.pairs,
            "ADJACENT": table is not None and table.rope.pairs == "adjacent", "AXES": has_axes,
            "Q_NORM": _extent(self.q_norm), "Q_LAYER": _is_layer(self.q_norm), "Q_GAIN": _gain(self.q_norm),
            "K_NORM": _extent(self.k_norm), "K_LAYER": _is_layer(self.k_norm), "K_GAIN": _gain(self.k_norm),
            "V_NORM": _extent(self.v_norm), "V_GAIN": _gain(self.v_norm),
            "AFTER": mixer.norm_after_rope, "WARM": mixer.temperature is not None,
        }  # fmt: skip

    def _turning_numbers(self) -> tuple[float, ...]:
        """The numbers that they take: epsilons of the norms, slope, length and offset of the temperature."""
        warm = self.mixer.temperature
        numbers = [0.0 if each is None else each.part.eps for each in self._norms]
        numbers += [0.0, 1.0, 0.0] if warm is None else [warm.slope, float(warm.length), warm.offset]
        return tuple(numbers)

    def turn_kernel(self, projected: Tensor, keys: Tensor, values: Tensor, run: Pass) -> Tensor:
        """The same in one kernel."""
        mixer, n, table = self.mixer, len(projected), self.rope
        heads, kv_heads, size = mixer.n_head, mixer.n_kv_head, mixer.head_size
        q = torch.empty(n, heads, size, dtype=planes.operand(keys), device=projected.device)
        placed = planes.is_plain(keys)
        k, v = keys, values
        if not placed:  # they are quantised on the way into their cells
            k, v = (torch.empty(n, kv_heads, size, device=projected.device) for _ in range(2))
        none, turns = projected, run.turns
        prefetch = run.prefetch(self.output)
        form, weights, numbers = self._form(turns.ndim == 2, placed, prefetch is not None, q.device)
        form.launch(
            (n, self._programs + (prefetch.grid(n) if prefetch else 0)),
            projected, q, k, v, *[none if each is None else each for each in weights],
            *((none, none) if table is None else (table.cos, table.sin)),
            turns, none if table is None else table.axes, run.positions, run.cells,
            *numbers, projected.stride(0), self.at_k, self.at_v, *prefetch_arguments(prefetch, none),
        )  # fmt: skip
        if not placed and mixer.shared is None:
            store(k, v, keys, values, run.cells)
        return q

    def gate_kernel(self, mixed: Tensor, projected: Tensor) -> None:
        """Multiply attention's result with sigmoids of the gates that stand beside the queries."""
        from stretto.backends.torch.kernels import rowwise as kernels
        from stretto.backends.torch.kernels.early import early_options

        heads, size = self.mixer.n_head, self.mixer.head_size
        launch(
            kernels.gate_heads, (len(mixed), -(-heads * size // GATED)),
            mixed, projected[:, size:], projected.stride(0),
            HEADS=heads, SIZE=size, GATE_STRIDE=2 * size, BLOCK=GATED, **early_options(mixed.device),
        )  # fmt: skip

    # -- one row, in one kernel --

    def is_one_kernel(self, keys: planes.Plane) -> bool:
        """Whether `_attend_row` can be used: K and V as they are, plain scores, norms of single heads."""
        mixer, size = self.mixer, self.mixer.head_size
        return (
            planes.is_plain(keys)
            and mixer.shared is None
            and not mixer.gate
            and not mixer.alibi
            and not mixer.cap
            and size == power_of_two(size)
            and size >= SMALLEST_HEAD
            and all(_extent(norm) != WHOLE_ROW for norm in self._norms)
        )

    def attend_row(
        self, projected: Tensor, keys: Tensor, values: Tensor, run: Pass, work: AttentionWork, out: Tensor
    ) -> None:
        """The attention of the only row of a decode step; K and V are stored."""
        from stretto.backends.torch.kernels.attend_launch import Turning, launch_row

        table = self.rope
        turning = Turning(
            self._turning_constants(run.turns.ndim == 2),
            [projected if norm is None or norm.weight is None else norm.weight for norm in self._norms],
            [out, out, run.turns, out] if table is None else [table.cos, table.sin, run.turns, table.axes],
            self._turning_numbers(),
            self.at_k,
            self.at_v,
        )
        launch_row(projected, turning, keys, values, run.cells, work, self.scoring, out)


def watch(run: Pass, q: Tensor, keys: planes.Plane, work: AttentionWork, scoring: Scoring) -> None:
    """Note the attention that is asked for."""
    if run.probes is not None:
        run.received.append(sum_received(q, keys, work, run.probes, scoring))
    if run.watched:
        run.weights.append(weigh_cells(q, keys, work, run.watched, scoring))


def _head_norm(w: LayerWeights, norm: Norm | None, heads: int, size: int) -> NormWeights | None:
    """A norm of heads; weights of several heads are [heads, size]."""
    if norm is None:
        return None
    shape = norm.shape(heads, size)
    n = shape[0] if len(shape) == 1 else shape[0] * shape[1]
    found = w.norm(norm, n)
    if found is None or found.weight is None or norm.over == "head":
        return found
    return NormWeights(norm, found.weight.view(heads, size), found.bias)


def _normed(x: Tensor, norm: NormWeights | None) -> Tensor:
    """x [n, heads, size] float32, normalised over what the norm says."""
    if norm is None:
        return x.float()
    if norm.part.over != "all":
        return normalize(x, norm, torch.float32)
    flat = NormWeights(norm.part, None if norm.weight is None else norm.weight.reshape(-1), norm.bias)
    return normalize(x.reshape(len(x), -1), flat, torch.float32).view(x.shape)


def _extent(norm: NormWeights | None) -> int:
    return 0 if norm is None else WHOLE_ROW if norm.part.over == "all" else 1


def _is_layer(norm: NormWeights | None) -> bool:
    return norm is not None and norm.part.kind == "layer"


def _gain(norm: NormWeights | None) -> int:
    if norm is None or norm.weight is None:
        return 0
    return 1 if norm.part.over == "head" else 2


# Products of each head with a matrix of its own, for latent attention.


def head_product(x: Tensor, w: Tensor) -> Tensor:
    """x [n, heads, d] times w [heads, r, d], head by head: [n, heads, r], of x's dtype.

    The numbers of a head stand together in x; rows and heads may have gaps between them.
    """
    if uses_kernels(x):
        from stretto.backends.torch.kernels import dense as kernels

        return kernels.head_product(x, w)
    rows = [torch.einsum("hd,hrd->hr", row.float(), w.float()) for row in x]
    return torch.stack(rows).to(x.dtype) if rows else x.new_empty((0, *w.shape[:2]))


# Latent attention (MLA): attention over one compressed vector for each cell.


class LatentLayer:
    """Attention with one K/V head, whose V is the first part of K."""

    def __init__(self, mixer: Latent, w: LayerWeights, index: int, n_embd: int) -> None:
        if mixer.is_sparse:
            raise Unsupported(
                f"sparse attention by an indexer (layer {index}) on this device; device='cpu' has it",
                param="indexer",
            )
        self.mixer, self.index, self.dtype = mixer, index, w.dtype
        rows = mixer.n_head * (mixer.nope_size + mixer.rope_size)
        self.compress = w.matrix({"attn_q_a": mixer.q_rank}, n_embd) if mixer.q_rank else None
        self.q_norm = w.norm(mixer.q_norm, mixer.q_rank)
        self.query = w.matrix({"attn_q_b" if mixer.q_rank else "attn_q": rows}, mixer.q_rank or n_embd)
        self.latent = w.matrix({"attn_kv_a_mqa": mixer.rank + mixer.rope_size}, n_embd)
        self.kv_norm = w.norm(mixer.kv_norm, mixer.rank)
        self.k_b = w.heads("attn_k_b", mixer.n_head, mixer.rank, mixer.nope_size)
        self.v_b = w.heads("attn_v_b", mixer.n_head, mixer.value_size, mixer.rank)
        self.output = w.matrix({"attn_output": n_embd}, mixer.n_head * mixer.value_size)
        if mixer.rope is None:
            raise Unsupported(
                "latent attention without positions on this device; device='cpu' has it", param="rope"
            )
        self.rope = w.weights.rope(mixer.rope)
        self.scoring = Scoring(mixer.scale)

    def __call__(self, x: Tensor, run: Pass) -> Tensor:
        """dtype[n, n_embd]: what the layer adds, from normalised rows."""
        mixer, n, keys = self.mixer, len(x), run.memory.keys[self.index]
        assert keys is not None
        q = x if self.compress is None else norm(product(x, self.compress), self.q_norm, self.dtype)
        q = product(q, self.query).view(n, mixer.n_head, -1)
        cos, sin = self.rope.at(run.turns)
        plain = head_product(q[..., : mixer.nope_size], self.k_b)
        rotated = self.rope.rotate(q[..., mixer.nope_size :].float(), cos, sin)
        queries = torch.cat((plain.float(), rotated), dim=2).to(planes.operand(keys))
        compressed = product(x, self.latent, out_dtype=torch.float32)
        latent = norm(compressed[:, : mixer.rank], self.kv_norm, torch.float32)
        key = self.rope.rotate(compressed[:, None, mixer.rank :], cos, sin)[:, 0]
        store(torch.cat((latent, key), dim=1)[:, None], None, keys, None, run.cells)
        work, values = run.work.of(None, True), keys[..., : mixer.rank]
        watch(run, queries, keys, work, self.scoring)
        mixed = torch.empty(n, mixer.n_head * mixer.rank, dtype=self.dtype, device=x.device)
        attend(queries, keys, values, work, self.scoring, mixed)
        heads = head_product(mixed.view(n, mixer.n_head, -1), self.v_b)
        return product(heads.reshape(n, -1), self.output)
