"""The cells of a draft: those of its first branch are its track's, each other branch has a lane.

A lane is a sequence of its own that shares the track's past, for one pass. A drafted token is in the
sequences of all branches that go through it, and attends from the first of them: to the past, and to the
tokens above it.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.backends.base import Batch
from stretto.cache.cells import Cells
from stretto.drafts.base import DraftTree


def open_lanes(cells: Cells, sequence: int, lanes: Sequence[int]) -> tuple[int, ...]:
    """The sequences of all branches, each with the cells of the first."""
    for lane in lanes:
        cells.remove(lane)  # of a pass that failed
        cells.copy(sequence, lane)
    return (sequence, *lanes)


def add_draft(batch: Batch, draft: DraftTree, root: int, sequences: tuple[int, ...]) -> None:
    """Add the tokens of a draft to a batch, behind the position of its root, each with logits."""
    if len(sequences) == 1:
        for position, token in enumerate(draft.tokens, root + 1):
            batch.add(token, position, sequences, logits=True)
        return
    nodes = zip(draft.tokens, draft.depths[1:], draft.branches_of()[1:], strict=True)
    for token, depth, branches in nodes:
        batch.add(token, root + depth, [sequences[branch] for branch in branches], logits=True)


def keep_accepted(cells: Cells, sequence: int, draft: DraftTree, lanes: Sequence[int], node: int) -> None:
    """Keep the cells of a computed draft down to a node, and remove all others from the sequence.

    With recurrent layers it goes back to the state before the draft: accepted tokens are pending again.
    """
    start = cells.end(sequence) - len(draft.branches[0])
    n_accepted, branch = draft.depths[node], draft.branch_through(node)
    if not branch:
        cells.remove(sequence, start + n_accepted)
        return
    n_common = draft.n_common(branch)
    cells.remove(sequence, start + n_common)
    cells.copy(lanes[branch - 1], sequence, start + n_common, start + n_accepted)
