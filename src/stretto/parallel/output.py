"""The steps of a run on their way out, and the text of its path."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, cast

from stretto.engine.metrics import Metrics
from stretto.engine.output import Ending, Output
from stretto.engine.params import RequestParams
from stretto.parallel.held import HeldSteps
from stretto.parallel.path import BestPath
from stretto.parallel.types import ParallelStep
from stretto.text.detokenizer import Detokenizer
from stretto.text.stops import StopMatcher


class SetOutput(Output[ParallelStep]):
    """Gives out a step when its member on the path is decided, and its text is no part of a stop string."""

    def __init__(
        self,
        metrics: Metrics,
        params: RequestParams,
        prompt: list[int],
        detokenizer: Detokenizer,
        delay: int,
    ) -> None:
        super().__init__(metrics)
        self.steps: list[ParallelStep] = []
        self.tokens = list(prompt)  # and the best path as it is now
        self.path = BestPath(delay)
        self._n_prompt = len(prompt)
        self._n_decided = 0  # steps whose member is decided
        self._start = detokenizer  # behind the prompt
        self._detokenizer = detokenizer.fork()  # behind the last decided step
        self._tail = self._detokenizer  # behind the last step, along the best path
        self._params = params
        self._matcher = StopMatcher(params.stop)
        self._held = HeldSteps()
        self._text = ""

    def text_of(self, token: int) -> str:
        """What a token would add to the best path; half a character shows as U+FFFD."""
        return self._tail.peek(token)

    def read(self, tokens: list[int]) -> str:
        """The text of any path; it ends before a stop string."""
        detokenizer, matcher = self._start.fork(), StopMatcher(self._params.stop)
        text = "".join([matcher.push(detokenizer.push(token)) for token in tokens])
        return text if matcher.matched is not None else text + matcher.flush() + detokenizer.flush()

    def add(self, step: ParallelStep) -> tuple[list[ParallelStep], Ending | None]:
        """Take a step; return those that may be shown, and why the run ends here if it does.

        Stops are looked for in the best path as it is now.
        """
        self.steps.append(step)
        self.path.add(step.path_logs())
        ending = self._look_ahead()
        shown = self._decide(self.path.settle(all_of_it=ending is not None))
        if self._matcher.matched is not None:
            shown += self._held.cut()
        return shown, ending

    def _look_ahead(self) -> Ending | None:
        """Read the best path to its end; say whether it stops there."""
        undecided = zip(self.steps[self._n_decided :], self.path.tail, strict=True)
        tail = [step.members[member].id for step, member in undecided]
        self.tokens[self._n_prompt + self._n_decided :] = tail
        self._tail, matcher = self._detokenizer.fork(), copy(self._matcher)
        text = self._text + "".join([matcher.push(self._tail.push(token)) for token in tail])
        if matcher.matched is not None:
            return Ending("stop", matcher.matched)
        if any(stop(text) for stop in self._params.stop_functions):
            return Ending("stop", "stop function")
        return None

    def _decide(self, members: list[int]) -> list[ParallelStep]:
        """Fix the path's members of the next steps; return the steps that may be shown."""
        shown = []
        for member in members:
            step = self.steps[self._n_decided]
            step.chosen = member
            step.text = self._detokenizer.push(step.members[member].id)
            certain = self._matcher.push(step.text)
            self._text += certain
            shown += self._held.add(step, len(certain))
            self._n_decided += 1
        return shown

    def emit(self, steps: list[ParallelStep], ending: Ending | None = None) -> None:
        """Give out steps, and the ending with the last of them."""
        if ending is not None:
            steps = steps + self._rest_of_steps()
        callback = cast("Callable[[ParallelStep], Any] | None", self._params.callback)
        for step in steps:
            self.events.append(step)
            if callback is not None and callback(step) is False:
                self._drop_after(step)
                ending = Ending("stop", "callback")
                break
        if steps and self.notify is not None:
            self.notify()
        if ending is not None:
            self.end(ending)

    def end_early(self, ending: Ending) -> None:
        """End without another step."""
        if self.ending is None:
            self.events += self._rest_of_steps()
            self.end(ending)

    def _rest_of_steps(self) -> list[ParallelStep]:
        """The steps that were not given out yet: the path is the best one now."""
        shown = self._decide(self.path.settle(all_of_it=True)) if self.steps else []
        return shown + self._held.flush()

    def _drop_after(self, step: ParallelStep) -> None:
        """Forget the steps behind one that a callback has ended the run with."""
        self._held.flush()
        del self.steps[step.index + 1 :]
        self._n_decided = len(self.steps)

    @property
    def shown(self) -> list[ParallelStep]:
        """The steps that are not held back."""
        return self.steps[: self._n_decided - len(self._held)]

    @property
    def rest(self) -> str:
        """U+FFFD for a character that was never finished."""
        cut = self._matcher.matched is not None
        return "" if cut or len(self._held) else self._detokenizer.fork().flush()
