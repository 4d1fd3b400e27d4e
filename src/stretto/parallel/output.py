"""The steps of a run on their way out, and the text of its path."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from math import inf
from typing import Any, cast

from stretto.engine.metrics import Metrics
from stretto.engine.output import Ending, Output
from stretto.engine.params import RequestParams
from stretto.parallel.types import ParallelStep
from stretto.text.detokenizer import Detokenizer
from stretto.text.stops import StopMatcher

# Steps on their way out: one whose text may begin a stop string waits until that is known.


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


# The most probable path through sets as they come: Viterbi's algorithm with a bounded delay.

Logs = Sequence[Sequence[float]]  # [members before][members]: log-probability of each edge


class BestPath:
    """Keeps, for each member of the last set, the most probable path that ends there.

    A set's member on the best path is decided as soon as all surviving paths agree on it. After `delay` more
    sets it is decided anyway: that of the best path then, and paths that differ there end. Of equal paths the
    one through earlier members wins.

    >>> from math import log
    >>> path = BestPath(delay=8)
    >>> path.add([[log(0.6), log(0.4)]])
    >>> path.tail, path.settle()
    ([0], [])
    >>> path.add([[log(0.1)], [log(0.9)]])
    >>> path.tail, path.settle(), path.logprob == log(0.4) + log(0.9)
    ([1, 0], [1, 0], True)
    """

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._scores = [0.0]  # of the best path to each member of the last set
        self._back: deque[list[int]] = deque()  # of each undecided set: the member before each of its members
        self.before: list[int] = []  # the member of the set before on the best path to each of the last set
        self.n_forced = 0  # decisions that could not wait

    @property
    def logprob(self) -> float:
        """The log-probability of the best path."""
        return max(self._scores)

    @property
    def best(self) -> int:
        """The member of the last set that the best path ends in."""
        return self._scores.index(max(self._scores))

    @property
    def alive(self) -> list[bool]:
        """Which members of the last set a path still ends in."""
        return [score > -inf for score in self._scores]

    def add(self, logs: Logs) -> None:
        """Take the next set, by the log-probabilities of its members after each member of the last one."""
        before, scores = [], []
        for edges in zip(*logs, strict=True):  # to each member; sets are small: arrays would take longer
            totals = [score + edge for score, edge in zip(self._scores, edges, strict=True)]
            scores.append(max(totals))
            before.append(totals.index(scores[-1]))
        self.before, self._scores = before, scores
        self._back.append(before)

    @property
    def tail(self) -> list[int]:
        """The members of the undecided sets on the best path."""
        return self._to(self.best)

    def settle(self, all_of_it: bool = False) -> list[int]:
        """The members that are decided now, of the next sets in order; at the end, all of the best path."""
        best = self.tail
        if all_of_it:
            self._back.clear()
            return best
        ends = [end for end, score in enumerate(self._scores) if score > -inf]
        paths = [self._to(end) for end in ends]
        n = 0
        while n < len(best) and all(path[n] == best[n] for path in paths):
            n += 1
        while len(best) - n > self._delay:
            self._end_others(best[n], n, ends, paths)
            self.n_forced += 1
            n += 1
        for _ in range(n):
            self._back.popleft()
        return best[:n]

    def _end_others(self, member: int, at: int, ends: list[int], paths: list[list[int]]) -> None:
        """End the paths that do not go through a member of an undecided set."""
        for end, path in zip(ends, paths, strict=True):
            if path[at] != member:
                self._scores[end] = -inf

    def _to(self, end: int) -> list[int]:
        """The path to a member of the last set, through the undecided sets."""
        path = []
        for back in reversed(self._back):
            path.append(end)
            end = back[end]
        return path[::-1]


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

    def decode_token(self, token: int) -> str:
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
