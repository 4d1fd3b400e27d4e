"""Steps on their way out: one whose text may begin a stop string waits until that is known."""

from __future__ import annotations

from collections import deque

from stretto.parallel.types import ParallelStep


class HeldSteps:
    """Takes steps as they are chosen, and gives out those whose text is certain.

    >>> held = HeldSteps()
    >>> held.add(ParallelStep(0, 5, [], text="E"), certain=0)
    []
    >>> [step.text for step in held.add(ParallelStep(1, 6, [], text="ND?"), certain=4)]
    ['E', 'ND?']
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[ParallelStep, int]] = deque()  # each with where its text ends
        self._n_text = 0  # characters of all steps
        self._n_certain = 0  # of those, how many are no part of a stop string

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: ParallelStep, certain: int) -> list[ParallelStep]:
        """Take a step; `certain` more characters are no part of a stop string. Return what may be shown."""
        self._n_text += len(step.text)
        self._n_certain += certain
        self._steps.append((step, self._n_text))
        shown = []
        while self._steps and self._steps[0][1] <= self._n_certain:
            shown.append(self._steps.popleft()[0])
        return shown

    def flush(self) -> list[ParallelStep]:
        """The rest: no stop string will come of it."""
        rest = [step for step, _ in self._steps]
        self._steps.clear()
        return rest

    def cut(self) -> list[ParallelStep]:
        """The rest: a stop string has come, and the texts end before it."""
        for step, end in self._steps:
            start = end - len(step.text)
            step.text = step.text[: max(0, self._n_certain - start)]
            step.cut = True
        return self.flush()
