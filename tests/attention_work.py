"""AttentionWork built by hand, item by item, for tests of attention."""

from dataclasses import dataclass, field

import numpy as np
import torch

from stretto.backends.torch.work import ALIGN, PROMPT_ROWS, SHARED_ROWS, SPAN, AttentionWork, Items


@dataclass
class Rows:
    """Rows of a batch: each attends to entries firsts … lengths of a view."""

    views: list  # of lists of cells
    view_of: list
    lengths: list
    firsts: list = field(default_factory=list)
    positions: list = field(default_factory=list)
    table: object = None  # the position of each cell
    device: str = "cpu"

    def work(self, kind="single", shared=()):
        """Work of `single` or `prompt` items; `shared`: (rows, span) of shared items, beside single ones."""
        n = len(self.lengths)
        firsts = np.array(self.firsts or [0] * n, np.int32)
        lengths = np.array(self.lengths, np.int32)
        starts = np.cumsum([0] + [len(view) for view in self.views])
        offsets = np.array([starts[view] for view in self.view_of], np.int32)
        cells = np.concatenate([np.asarray(view, np.int32) for view in self.views])
        places = np.zeros_like(cells) if self.table is None else np.asarray(self.table, np.int32)[cells]
        first_span = firsts // SPAN
        spans = (lengths - 1) // SPAN - first_span + 1 if kind == "single" else np.zeros(n, np.int64)
        slot0 = np.cumsum(spans) - spans - first_span
        items = {"single": [], "shared": [], "prompt": []}
        taken = {(row, span) for rows, span in shared for row in rows}
        for rows, span in shared:
            first = max(min(firsts[row] for row in rows) // ALIGN * ALIGN, span * SPAN)
            stop = min(max(lengths[row] for row in rows), (span + 1) * SPAN)
            items["shared"].append((offsets[rows[0]], first, stop, span, rows, SHARED_ROWS))
        wait = np.zeros(n, np.int32)
        for row in range(n if kind == "single" else 0):
            for span in range(first_span[row], first_span[row] + spans[row]):
                if (row, span) not in taken:
                    first = max(firsts[row] // ALIGN * ALIGN, span * SPAN)
                    stop = min(lengths[row], (span + 1) * SPAN)
                    items["single"].append((offsets[row], first, stop, span, [row], 1))
                    wait[row] += 1
        at = 0
        while kind == "prompt" and at < n:
            stop = at
            while stop < n and stop - at < PROMPT_ROWS and self.view_of[stop] == self.view_of[at]:
                stop += 1
            rows = list(range(at, stop))
            first = min(firsts[at:stop]) // ALIGN * ALIGN
            items["prompt"].append((offsets[at], first, max(lengths[at:stop]), 0, rows, PROMPT_ROWS))
            at = stop

        def t(x):
            return torch.tensor(np.asarray(x, np.int32), device=self.device)

        return AttentionWork(
            views=t(cells), places=t(places), positions=t(self.positions or [0] * n), offsets=t(offsets),
            firsts=t(firsts), lengths=t(lengths), slot0=t(slot0), spans=t(spans), wait=t(wait),
            n_slots=int(spans.sum()), **{name: self._items(found) for name, found in items.items()},
        )  # fmt: skip

    def _items(self, found):
        if not found:
            return None
        block = found[0][5]
        data = [[*head, *rows, *[-1] * (block - len(rows))] for *head, rows, block in found]
        padding = [7, 7, 7]  # items need not begin at the first integer
        return Items(
            block,
            torch.tensor(
                padding + list(np.array(data, np.int32).ravel()), dtype=torch.int32, device=self.device
            ),
            torch.tensor([len(data), len(padding)], dtype=torch.int32, device=self.device),
            len(data),
            len(data),
        )
