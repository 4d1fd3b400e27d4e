"""From a placed batch to calls of a causal graph: which rows run together, and whether the result is exact.

A graph with past and present tensors lets each new token see all of the past and the new tokens before it.
Rows whose views are like that form a **chain**: some past cells, then new tokens one after another. Rows that
need the cells of other rows of the batch come in a later **wave**. Rows that see each other both ways have no
order: `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.backends.batch import Batch, Placement
from stretto.errors import InvalidRequest, Unsupported

Ints = NDArray[np.int32]

NATIVE = "load the model as GGUF with backend='native', which computes it exactly"


@dataclass
class Chain:
    """New tokens that follow some cells and each other."""

    rows: list[int]  # of the batch
    cells: Ints  # of the new tokens
    past: Ints  # cells that all of them see
    positions: Ints  # of the new tokens
    wave: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, first: int, stop: int) -> Chain:
        """The tokens from `first` to `stop`; those before them are its past."""
        if first == 0 and stop >= len(self):
            return self
        past = np.concatenate((self.past, self.cells[:first]))
        rows, cells, positions = self.rows[first:stop], self.cells[first:stop], self.positions[first:stop]
        return Chain(rows, cells, past, positions, self.wave)


def check_plain(batch: Batch) -> Placement:
    """The placement of a batch of tokens; `Unsupported` for what no ONNX decoder takes or gives."""
    placement = batch.placement
    if placement is None:
        raise InvalidRequest("the batch has no cells yet; call batch.place(cells) first")
    if batch.vectors:
        raise Unsupported(f"an ONNX decoder takes tokens, not vectors or images; {NATIVE}")
    if len(batch.probes) or len(batch.watched):
        raise Unsupported(f"an ONNX decoder does not give its attention weights; {NATIVE}")
    if placement.rotated is not None or placement.slots is not None:
        raise Unsupported(
            f"an ONNX decoder has one position for each token, and no recurrent state; {NATIVE}"
        )
    return placement


def group_chains(batch: Batch) -> list[list[Chain]]:
    """The chains of a batch, in waves that are computed one after another."""
    placement = check_plain(batch)
    positions = batch.positions
    owners = np.full(len(placement.table), -1, np.int32)  # the row that writes each cell
    owners[placement.cells] = np.arange(len(batch), dtype=np.int32)
    chains = _plain_chains(placement, positions, owners)
    if chains is None:
        chains = _ordered_chains(placement, positions, owners)
    waves: list[list[Chain]] = [[] for _ in range(1 + max(chain.wave for chain in chains))]
    for chain in chains:
        waves[chain.wave].append(chain)
    return waves


def _plain_chains(placement: Placement, positions: Ints, owners: Ints) -> list[Chain] | None:
    """One chain for each view, as in prompts and decode steps; None if a batch is not like that."""
    chains = []
    order = np.argsort(placement.view_of, kind="stable")
    bounds = np.searchsorted(placement.view_of[order], np.arange(len(placement.views) + 1))
    for index, view in enumerate(placement.views):
        rows = order[bounds[index] : bounds[index + 1]]
        lengths, n = placement.lengths[rows], len(rows)
        first, last = int(lengths[0]) - 1, int(lengths[-1])
        cells = placement.cells[rows]
        if last - first != n or not np.array_equal(view[first:last], cells):
            return None
        if n > 1 and not (lengths[1:] - lengths[:-1] == 1).all():
            return None
        past = view[:first].copy()  # a view is valid until the table changes
        if (owners[past] >= 0).any():
            return None
        chains.append(Chain(rows.tolist(), cells, past, positions[rows]))
    return chains


def _ordered_chains(placement: Placement, positions: Ints, owners: Ints) -> list[Chain]:
    """Chains in waves, for batches whose rows see each other's cells in any way that has an order."""
    chains: list[Chain] = []
    chain_of: dict[int, Chain] = {}
    for row in np.argsort(positions, kind="stable").tolist():
        own = int(placement.cells[row])
        visible = placement.views[placement.view_of[row]][: placement.lengths[row]]
        others = visible[visible != own]
        needed = [int(owner) for owner in owners[others] if owner >= 0]
        missing = [owner for owner in needed if owner not in chain_of]
        if missing:
            raise Unsupported(
                f"tokens of rows {row} and {missing[0]} see each other, and an ONNX decoder is causal; "
                f"use isolated sets, or {NATIVE}"
            )
        chain = next((chain_of[owner] for owner in needed if _continues(chain_of[owner], others)), None)
        if chain is None:
            wave = 1 + max((chain_of[owner].wave for owner in needed), default=-1)
            chain = Chain([], np.empty(0, np.int32), others.copy(), np.empty(0, np.int32), wave)
            chains.append(chain)
        chain.rows.append(row)
        chain.cells = np.append(chain.cells, np.int32(own))
        chain.positions = np.append(chain.positions, positions[row])
        chain_of[row] = chain
    return chains


def _continues(chain: Chain, others: Ints) -> bool:
    """Whether a row that sees these cells sees just the past and the tokens of a chain."""
    whole = np.concatenate((chain.past, chain.cells))
    return len(whole) == len(others) and np.array_equal(np.sort(whole), np.sort(others))


def check_exact(
    chains: Sequence[Chain], table: Ints, explicit: bool, windows: tuple[int, ...] | None
) -> None:
    """Raise `Unsupported` for a chain whose positions the graph would take for others.

    A graph counts windows in tokens, and where positions are no input it takes a token's index for one.
    """
    for chain in chains:
        n_past = len(chain.past)
        if not explicit and (chain.positions != np.arange(n_past, n_past + len(chain))).any():
            raise Unsupported(
                f"a token at position {chain.positions[0]} behind {n_past} cells: this ONNX decoder has no "
                f"position_ids, so each token must follow the one before it; {NATIVE}"
            )
        if windows == ():
            continue
        places = np.concatenate((table[chain.past], chain.positions)).astype(np.int64)
        breaks = np.cumsum(np.diff(places, prepend=places[0] - 1) != 1)
        if breaks[-1] == 0:
            continue
        if windows is None or not all(_sees_window(places, breaks, n_past, size) for size in windows):
            what = (
                "a layer that may have a window" if windows is None else f"a window of {min(windows)} tokens"
            )
            raise Unsupported(f"holes and merged tokens within {what} are not exact in ONNX; {NATIVE}")


def _sees_window(places: NDArray[np.int64], breaks: NDArray[np.int64], n_past: int, window: int) -> bool:
    """Whether for each new token the last `window` cells are those at the last `window` positions."""
    index = np.arange(n_past, len(places))
    short = index < window
    if (places[index[short]] - places[0] >= window).any():
        return False
    index = index[~short]
    first = index - window + 1
    contiguous = breaks[index] == breaks[first]
    return bool((contiguous & (places[first - 1] <= places[index] - window)).all())
