"""Several texts from one prompt: n samples, the best of several, beam search. All of it is forking.

The prompt is computed once. Samples are requests of their own from there on; beams are sequences of one
request, forked where two of the best hypotheses share a past. All run in the same steps as everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.engine.kinds import new_request
from stretto.engine.params import RequestParams
from stretto.engine.request import Request
from stretto.engine.sequence import Sequence
from stretto.engine.types import FinishReason, Result, Timings, Usage
from stretto.errors import InvalidRequest
from stretto.sampling.params import check_integer, check_number
from stretto.sampling.transforms import add_bias, log_softmax
from stretto.text.detokenizer import Detokenizer
from stretto.text.stops import StopMatcher

if TYPE_CHECKING:
    from stretto.engine.engine import Engine

MAX_BRANCHES = 256


@dataclass(frozen=True)
class Branching:
    """How many texts come from a prompt, and how they are found.

    - `n`: how many results; they come in a list
    - `best_of`: sample so many, and keep the `n` (or the one) whose tokens are most probable on average
    - `beams`: beam search with so many hypotheses, and the `n` best of them (or the best)
    - `length_penalty`: a hypothesis counts with its log-probability / length ** length_penalty
    """

    n: int | None = None
    best_of: int | None = None
    beams: int | None = None
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("n", "best_of", "beams"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_BRANCHES)
        check_number("length_penalty", self.length_penalty, -10.0, 10.0)
        if self.best_of is not None and self.beams is not None:
            raise InvalidRequest("best_of samples and beams search: give one of them")
        for name in ("best_of", "beams"):
            if (self.n or 1) > (getattr(self, name) or MAX_BRANCHES):
                raise InvalidRequest(f"n is {self.n}, which is more than {name}={getattr(self, name)}")
        if self.length_penalty != 1.0 and self.beams is None:
            raise InvalidRequest("length_penalty is for beams")

    @property
    def plain(self) -> bool:
        """Whether one text is all that is asked for."""
        return self.n is None and self.best_of is None and self.beams is None


NAMES = tuple(field.name for field in fields(Branching))
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed", "logprobs")  # what a search has no use for
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def branching(options: Mapping[str, Any]) -> tuple[Branching, dict[str, Any]]:
    """What of some options says how to branch, and the rest of them."""
    found = Branching(**{name: options[name] for name in NAMES if name in options})
    rest = {name: value for name, value in options.items() if name not in NAMES}
    if found.beams is not None:
        for name in (*SAMPLING, *PENALTIES, "callback", "draft"):
            if rest.get(name) is not None:
                raise InvalidRequest(f"{name} has no meaning in a beam search")
        if rest.get("loop") == "fused" or rest.get("overflow") == "shift":
            raise InvalidRequest("a beam search has no fused loop and no overflow='shift'")
        stops = rest.get("stop", ())
        if callable(stops) or (isinstance(stops, (list, tuple)) and any(callable(stop) for stop in stops)):
            raise InvalidRequest("a beam search has no stop functions; give stop strings")
    return found, rest


class Branches:
    """The requests of one prompt, and which of their results count."""

    def __init__(self, engine: Engine, prompt: list[int], params: RequestParams, how: Branching) -> None:
        self.how = how
        self.requests: list[Request] = []
        if how.beams is not None:
            self.beam: BeamSearch | None = BeamSearch(engine, prompt, params, how)
            self.requests = [self.beam]
            return
        self.beam = None
        first = new_request(engine, prompt, params)
        seed = first.sequence.random.seed  # one for all, and an index for each
        self.requests = [first]
        for index in range(1, how.best_of or how.n or 1):
            self.requests.append(new_request(engine, prompt, params, index, seed))
        first.siblings = self.requests[1:]

    @property
    def finished(self) -> bool:
        """Whether all of them have come to an end."""
        return all(request.finished for request in self.requests)

    def results(self) -> Result | list[Result]:
        """The best results, as many as were asked for: a list with `n`, else one."""
        if self.beam is not None:
            found = self.beam.results()
        else:
            found = [request.result() for request in self.requests]
            if self.how.best_of is not None:
                means = [request.score / max(1, request.n_sampled) for request in self.requests]
                found = [found[i] for i in np.argsort(np.negative(means), kind="stable")]
        return found[0] if self.how.n is None else found[: self.how.n]


@dataclass
class Hypothesis:
    """A text on its way: where it stands, what it has said, and how probable that is."""

    sequence: Sequence
    detokenizer: Detokenizer
    matcher: StopMatcher
    tokens: tuple[int, ...] = ()
    logprob: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class Ending:
    """A finished hypothesis."""

    score: float
    tokens: tuple[int, ...]
    text: str
    reason: FinishReason
    why: str | int | None


class BeamSearch(Request):
    """A request whose sequences are the hypotheses that are still open, the most probable first."""

    def __init__(self, engine: Engine, prompt: list[int], params: RequestParams, how: Branching) -> None:
        super().__init__(engine, prompt, params)
        self._how = how
        self._beams = [Hypothesis(self.sequence, self._detokenizer, self._matcher)]
        self._endings: list[Ending] = []
        most = engine.context_length - len(prompt)
        self._most = most if params.max_tokens is None else min(most, params.max_tokens)

    @property
    def width(self) -> int:
        """How many hypotheses are kept."""
        return self._how.beams or 1

    def _advance(self) -> None:
        """One more token for all: of all continuations the most probable stay."""
        if self._timed_out():
            self._conclude("timeout")
            return
        self.note_token()
        opened = self._extend(self._candidates())
        for sequence in {beam.sequence for beam in self._beams} - {beam.sequence for beam in opened}:
            sequence.close(park=False)
        self._beams = opened
        self.sequences = [beam.sequence for beam in opened]
        self.tokens = list(opened[0].tokens) if opened else self.tokens
        if not opened or len(opened[0].tokens) >= self._most:
            self._conclude("length")
        elif len(self._endings) >= self.width and self._hopeless():
            self._conclude("stop")

    def finish(self, reason: FinishReason, why: str | int | None = None) -> None:
        """End it from outside; the hypotheses end as they are."""
        if not self.finished:
            self._conclude(reason, why)

    def _candidates(self) -> list[tuple[float, int, int]]:
        """The best continuations of all hypotheses: (log-probability, index of the hypothesis, token)."""
        bias = self.params.sampling.logit_bias
        wanted = 2 * self.width + len(self._end_ids)  # so that enough are left when some of them end
        found = []
        for index, beam in enumerate(self._beams):
            row = beam.sequence.logits
            logs = log_softmax(add_bias(row, bias) if bias else row) + beam.logprob
            best = np.argpartition(-logs, min(wanted, len(logs)) - 1)[:wanted]
            found += [(float(logs[t]), index, int(t)) for t in best if logs[t] > -np.inf]
        if not found:
            raise InvalidRequest(
                "every token is excluded (all logits are −inf); relax logit_bias or the hook"
            )
        return sorted(found, key=lambda c: (-c[0], c[1], c[2]))[:wanted]

    def _extend(self, candidates: list[tuple[float, int, int]]) -> list[Hypothesis]:
        """Take candidates until there are enough hypotheses; those that end are put aside."""
        chosen: list[tuple[float, int, int]] = []
        for rank, (logprob, index, token) in enumerate(candidates):
            if token in self._end_ids:
                if rank < self.width:
                    beam = self._beams[index]
                    self._put_aside(beam, logprob, len(beam.tokens) + 1, "stop", token)
            elif len(chosen) < self.width:
                chosen.append((logprob, index, token))
        opened = []
        for at, (logprob, index, token) in enumerate(chosen):
            parent = self._beams[index]
            alone = all(other != index for _, other, _ in chosen[at + 1 :])
            sequence = parent.sequence if alone else parent.sequence.fork()
            sequence.running = True
            beam = Hypothesis(
                sequence,
                parent.detokenizer.fork(),
                copy(parent.matcher),
                (*parent.tokens, token),
                logprob,
            )
            beam.text = parent.text + beam.matcher.push(beam.detokenizer.push(token))
            if beam.matcher.matched is not None:
                self._put_aside(beam, logprob, len(beam.tokens), "stop", beam.matcher.matched)
                if not alone:
                    sequence.close(park=False)
                continue
            if len(beam.tokens) < self._most:
                sequence.append(token)
            opened.append(beam)
        return opened

    def _put_aside(
        self, beam: Hypothesis, logprob: float, length: int, reason: FinishReason, why: str | int | None
    ) -> None:
        rest = "" if beam.matcher.matched is not None else copy(beam.matcher).flush() + self._half(beam)
        score = logprob / length**self._how.length_penalty
        self._endings.append(Ending(score, beam.tokens, beam.text + rest, reason, why))
        self._endings.sort(key=lambda ending: -ending.score)
        del self._endings[self.width :]

    @staticmethod
    def _half(beam: Hypothesis) -> str:
        return beam.detokenizer.fork().flush()

    def _hopeless(self) -> bool:
        """Whether no open hypothesis can come to beat the worst of the finished ones."""
        penalty = self._how.length_penalty
        length = self._most if penalty > 0 else len(self._beams[0].tokens) + 1
        return bool(self._beams[0].logprob / length**penalty <= self._endings[-1].score)

    def _conclude(self, reason: FinishReason, why: str | int | None = None) -> None:
        """The open hypotheses end as they are."""
        if reason != "stop":
            for beam in self._beams:
                self._put_aside(beam, beam.logprob, max(1, len(beam.tokens)), reason, why)
        best = self._endings[0]
        self.tokens = list(best.tokens)
        self._text = [best.text]
        self._end(best.reason, best.why)

    def results(self) -> list[Result]:
        """The finished hypotheses, the best first."""
        whole = self.result()
        return [
            Result(
                text=ending.text,
                tokens=list(ending.tokens),
                finish_reason=ending.reason,
                stop_reason=ending.why,
                usage=Usage(whole.usage.prompt_tokens, len(ending.tokens), whole.usage.cached_tokens),
                timings=Timings(
                    whole.timings.first_token, whole.timings.decode, max(0, len(ending.tokens) - 1)
                ),
                seed=whole.seed,
                logprob=ending.score,
            )
            for ending in self._endings
        ] or [whole]
