"""The fused loop: several tokens of one sequence, each sampled on the device straight into its own pass.

A step is queued as a whole before the host has seen its token: the integers of the pass, which are all known
but the token; the sampling from the last logits, which writes the token where the pass reads it; the pass. So
the host accepts a token, and queues the step of the next one, while the device computes it. If the token
ends the text that pass was in vain: its cell is free again, and the logits before it are kept beside. States
of recurrent layers cannot be taken back, so there the pass is queued when its token has been accepted.

Hooks look at logits on the host, and plain torch samples there: then all that is done one after the other.

Accepting a token may run a callback, and that any other pass, in the memory of this step's integers and
logits: logits are kept as rows, which are copied before they are overwritten, and integers are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from stretto.backends.base import DeviceRow, FusedRun
from stretto.backends.batch import Batch
from stretto.backends.looping import goes_on, is_interrupted, make_batch, next_uniform
from stretto.backends.torch.device import Tensor, uses_kernels
from stretto.backends.torch.planner import OneRow, WorkPlanner
from stretto.backends.torch.rows import Logits, RowSampler, TorchRow
from stretto.backends.torch.sampler import WIDE, Sampler
from stretto.backends.torch.steps import Steps
from stretto.backends.torch.work import PassWork
from stretto.errors import InvalidRequest
from stretto.sampling.sampler import WRONG

Taken = tuple[list[int], DeviceRow]


class Loop:
    """Runs single sequences of one model."""

    def __init__(
        self,
        planner: WorkPlanner,
        steps: Steps,
        rows: RowSampler,
        device: Any,
        forward: Callable[[Batch], Sequence[DeviceRow]],
        *,
        has_states: bool,
    ) -> None:
        self._forward = forward  # a pass over any batch
        self._planner, self._steps, self._rows, self._device = planner, steps, rows, device
        self._has_states = has_states
        self._kept: Tensor | None = None  # float32[1, n_vocab]: the logits that the last token is of
        self._kept_rows: Callable[[], Logits | None] = lambda: None  # that somebody still has
        self._sampler: Sampler | None = None

    def run(self, run: FusedRun) -> Taken:
        """The tokens, and the logits after those of them that were computed."""
        row = self._row(run)
        if run.hooks or not uses_kernels(row.logits):
            return self._one_by_one(run, row)
        return self._ahead(run, row)

    def _row(self, run: FusedRun) -> TorchRow:
        """The logits that the first token is sampled from."""
        if isinstance(run.logits, TorchRow):
            return run.logits
        import torch

        host = run.logits if isinstance(run.logits, np.ndarray) else run.logits.numpy()
        (row,) = self._rows.rows(torch.from_numpy(host)[None].to(self._device))
        return row

    # -- one after the other --

    def _one_by_one(self, run: FusedRun, row: DeviceRow) -> Taken:
        found: list[int] = []
        while len(found) < len(run.cells):
            if run.hooks:
                logits = row.numpy()
                for hook in run.hooks:
                    hook(logits, run.tokens)
            found.append(row.sample(run.params, run.tokens, run.n_prompt, next_uniform(run), run.mask))
            if not goes_on(run, found):
                break
            new = found[run.n_run :]
            row = self._several(run, new) if len(new) > 1 else self._steps.run(self._place(run, *new), 1)[0]
            run.n_run = len(found)
            if is_interrupted(run):
                break
        return found, row

    # -- ahead of the host --

    def _ahead(self, run: FusedRun, row: TorchRow) -> Taken:
        if (old := self._kept_rows()) is not None:
            old.preserve()
        logits, found = row.current, list[int]()
        last: TorchRow | None = None
        while len(found) < len(run.cells):
            work = self._place(run)
            step = self._steps.captured(work)
            kept, sampler = self._open(work)
            kept.copy_(logits)
            last = None  # nobody needs them where they were
            (sampled,) = self._rows.rows(kept)
            self._kept_rows = ref(sampled.shared)
            uniform = next_uniform(run)
            sampler.queue(sampled.ask(run.params, run.tokens, run.n_prompt, uniform, run.mask))
            made, computed = self._planner.n_made, None
            if not self._has_states:
                step.replay()
                (computed,) = self._steps.rows(step, 1)
            token = sampler.take()
            if token == WIDE:
                token = sampled.sample(run.params, run.tokens, run.n_prompt, uniform, run.mask)
                work.tokens.fill_(token)
                computed = None
            if token < 0:
                raise InvalidRequest(WRONG[token])
            found.append(token)
            if not goes_on(run, found):
                return found, sampled
            if len(found) > run.n_run + 1:  # forced tokens follow: all of them together, as elsewhere
                last = self._several(run, found[run.n_run :])
            elif computed is not None:
                last = computed
            else:
                if self._planner.n_made != made:  # a callback ran another pass, in the same memory
                    step = self._steps.captured(self._place(run, token))
                step.replay()
                (last,) = self._steps.rows(step, 1)
            logits = last.current
            run.n_run = len(found)
            if is_interrupted(run):
                break
        assert last is not None
        return found, last

    def _open(self, work: PassWork) -> tuple[Tensor, Sampler]:
        """The buffers, made on first use."""
        import torch

        if self._kept is None or self._sampler is None:
            n = self._rows.n_vocab
            padded = torch.empty((1, -(-n // 4) * 4), dtype=torch.float32, device=self._device)
            self._kept = padded[:, :n]
            self._sampler = Sampler(self._device, n, 1, following=work.tokens)
        return self._kept, self._sampler

    def _several(self, run: FusedRun, tokens: list[int]) -> TorchRow:
        """Compute several tokens in one pass; the logits after them."""
        (row,) = self._forward(make_batch(run, tokens))
        assert isinstance(row, TorchRow)
        return row

    def _place(self, run: FusedRun, token: int = 0) -> PassWork:
        """The work of the next step; without a token that is written on the device."""
        at = run.n_run
        row = OneRow(
            taken=[int(run.cells[at])],
            places=[run.position + at],
            counts=[run.n_view - len(run.cells) + at + 1],
            stores=[run.view],
            table=run.table,
            sequences=[run.sequence],
            edits=[run.edits],
            slots=[run.slot] if self._has_states else [],
            ids=[token],
        )
        work = self._planner.decode(row, 1)
        assert work is not None  # there are slots for one row of any length
        return work
