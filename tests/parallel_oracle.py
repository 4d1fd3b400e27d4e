"""Parallel runs computed again in one pass, by a dense mask made by hand or by sets of sequences."""

import numpy as np

from stretto.backends.base import host_rows
from stretto.backends.batch import Batch
from stretto.cache.cells import Cells
from stretto.llm import LLM
from stretto.testing import byte_tokenizer

FOREVER = 1 << 30


def tiny_llm(backend, **options):
    """A tiny model behind the facade; its 96 tokens are the first bytes."""
    return LLM(backend, byte_tokenizer(), **options)


def recorded(llm, prompt, look=None, **options):
    """A finished run, and the logits of every member: a list of float32[members, n_vocab], a set each.

    `look(stream, step)` is called for each step when it has been computed, before the next one is.
    """
    steps, rows = [], []

    def note(step):
        if steps:
            rows.append(stream.run.decoder.source.rows.copy())
            if look is not None:
                look(stream, steps[-1])
        steps.append(step)

    stream = llm.parallel(prompt, stream=True, callback=note, delay=0, **options)
    return stream.result, rows


def who_sees_whom(prompt, steps, sees, gone_after=None):
    """Rows (token, position) of a whole run, and bool[n, n]: which row sees which.

    `sees(i, j)` says whether sibling i sees sibling j. `gone_after[step, member]` is the last step whose
    tokens see that member; without an entry all do.
    """
    gone_after = gone_after or {}
    rows = [(token, position, -1, 0) for position, token in enumerate(prompt)]
    for i, step in enumerate(steps):
        rows += [(member.id, step.position, i, j) for j, member in enumerate(step.members)]
    mask = np.zeros((len(rows), len(rows)), bool)
    for a, (_, position, step, member) in enumerate(rows):
        for b, (_, where, other, sibling) in enumerate(rows):
            if step == other and step >= 0:
                mask[a, b] = member == sibling or sees(member, sibling)
            else:
                mask[a, b] = where <= position and step <= gone_after.get((other, sibling), FOREVER)
    return rows, mask


def by_mask(backend, rows, mask):
    """The logits of all rows by the reference backend, with a dense mask: nothing is derived from sets."""
    batch = Batch()
    for token, position, _, _ in rows:
        batch.add(token, position, [0], logits=True)
    batch.place(Cells(backend.n_cells))
    dense = np.zeros((len(rows), backend.n_cells), bool)
    dense[:, batch.placement.cells] = mask
    computed = backend.compute(batch, dense, attention=True)
    weights = np.stack(computed.attention)[..., batch.placement.cells]  # [n_layer, n_head, n, n]
    return backend.logits(computed.hidden), weights


def by_sets(backend, rows, mask):
    """The same by any backend, in one pass over an empty cache: each row has a sequence of its own."""
    return with_cells(backend, rows, mask)[0]


def with_cells(backend, rows, mask):
    """`by_sets`, and what each row's cell holds."""
    batch = Batch()
    for b, (token, position, _, _) in enumerate(rows):
        seers = np.flatnonzero(mask[:, b]).tolist()
        batch.add(token, position, [b, *[a for a in seers if a != b]], logits=True)
    batch.place(Cells(backend.n_cells))
    logits = host_rows(backend.forward(batch))
    return logits, backend.read_cells(batch.placement.cells)


def sets_of(rows, logits):
    """The logits of a whole run, set by set."""
    found = {}
    for row, (_, _, step, _) in zip(logits, rows, strict=True):
        if step >= 0:
            found.setdefault(step, []).append(row)
    return [np.stack(found[step]) for step in sorted(found)]


def isolated(i, j):
    return False


def visible(i, j):
    return True
