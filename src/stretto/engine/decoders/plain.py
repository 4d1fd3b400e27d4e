"""One text, token by token: sample, accept, go on. A grammar may constrain it, and drafts may speed it up.

With a grammar the mask is applied last, in the native sampler: hooks, penalties and bias change the logits,
and what the grammar forbids stays forbidden. Forced tokens need no forward pass of their own: those before
the first sampled token are computed with the prompt, those behind a sampled one together with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stretto.backends.base import DeviceRow, Draw, Row, Rows, host_row
from stretto.drafts.base import ROOT, DraftTree
from stretto.engine.decoders.base import OneTrack, call_hook
from stretto.engine.editing import drop_oldest_half
from stretto.engine.output import CONTEXT, Ending, TextOutput
from stretto.engine.params import RequestParams
from stretto.engine.runner import Runner
from stretto.engine.track import Track
from stretto.engine.types import Logprob, Result, Usage
from stretto.errors import CacheFull
from stretto.sampling.sampler import shaped
from stretto.sampling.transforms import measure, measure_given

if TYPE_CHECKING:
    from stretto.engine.decoders.drafted import Speculation
    from stretto.structured import Constraint

MAX_FORCED = 8  # forced tokens that still count as a decoding step; more are paced like a prompt
MAX_FORCED_STEP = 256  # forced tokens in one step; between steps deadlines hold, and others get their turn


class PlainDecoder(OneTrack):
    """Samples one token after the other from a track's logits."""

    def __init__(
        self,
        runner: Runner,
        track: Track,
        output: TextOutput,
        params: RequestParams,
        end_ids: frozenset[int],
        guide: Constraint | None = None,
        speculation: Speculation | None = None,
        keep_track: bool = False,
    ) -> None:
        super().__init__(track)
        self.output: TextOutput = output
        self.params = params
        self.hooks = params.hooks
        if params.min_tokens and end_ids:
            self.hooks = (*params.hooks, partial(_exclude_ends, output, list(end_ids), params.min_tokens))
        self.end_ids = end_ids
        self.guide = guide
        self._runner = runner
        self._speculation = speculation
        self._keep_track = keep_track  # it belongs to a caller, who gets it back with the text
        self.n_prompt = len(track)
        self._taps = track.taps
        self._is_plain = not (guide or speculation or params.logprobs or params.scored or self._taps)
        sampling = params.sampling
        self.is_sampled_only = self._is_plain and not (
            self.hooks or sampling.penalizes or sampling.logit_bias
        )
        self.before_end: Callable[[], None] | None = None  # gives out tokens that wait
        self._guard = params.new_guard
        self._left_out: list[int] = []  # the last token of the text, which is not in the track
        self._check_at = 0  # tokens after which the limits have to be looked at again
        self._opening: list[int] = []  # forced tokens that are computed with the prompt
        self._owed: list[int] = []  # forced tokens that are not in the track yet
        if guide is not None:
            forced = guide.begin()
            room = min(MAX_FORCED_STEP, runner.context_length - track.position - 1)
            self._opening, self._owed = forced[:room], forced[room:]
            track.extend(self._opening)

    def replace_track(self, track: Track) -> None:
        """Go on with another track that has the same tokens."""
        track.random = self.track.random
        track.running = True
        self._runner.close_track(self.track)
        self.track = track
        self.sources = (track,)

    # -- a step --

    def advance(self, n_running: int) -> None:
        """Sample from the logits, and from those of a draft as far as it is right."""
        track = self.track
        if self._is_plain:  # nearly all tokens: the same as below, without the calls of what is not there
            assert track.logits is not None
            begun = time.perf_counter()
            token = track.sample(track.logits, self.params.sampling)
            self._runner.metrics.sampling += time.perf_counter() - begun
            self.output.n_sampled += 1
            self.accept(token)
            return
        if self._taps is not None:
            self._taps.deliver()
        if (self._opening or self._owed) and self._begin():
            return
        if track.draft_rows is not None:
            self._verify(track.draft_rows, track.draft)
        else:
            assert track.logits is not None
            self._take(track.logits)
        if self.guide is None and self._speculation is None:
            return
        if self.output.ending is None:
            if self._speculation is not None and not self._owed:
                self._speculation.propose(track, self._draft_room(), n_running, self.guide)
            self._pace()

    def _begin(self) -> bool:
        """Give out the forced tokens before the first sampled one; say whether the logits were used up."""
        opening, owed = self._opening, self._owed
        self._opening, self._owed = [], []
        for i, token in enumerate(opening, 1):
            self._accept_forced(token, i == len(opening) and not owed, in_track=True)
            if self.output.ending is not None:
                self._opening = opening[i:]  # in the track and not in the text
                return True
        self._accept_all_forced(owed)
        self._pace()
        return bool(owed) or self.output.ending is not None

    def _take(self, row: Row | DeviceRow) -> None:
        """Sample one token, and accept it with those that have to follow."""
        token, logprob, top = self._sample(row)
        if self.guide is None or token in self.end_ids:
            self.accept(token, logprob, top)
            return
        forced = self.guide.push(token)
        self.accept(token, logprob, top, complete=self.guide.done and not forced)
        if forced and self.output.ending is None:
            self._accept_all_forced(forced)

    def _verify(self, rows: Rows, draft: DraftTree) -> None:
        """Sample from each row, from the root of the draft down, until a token is not a drafted one."""
        node, output = ROOT, self.output
        while True:
            row = rows[node] if node else self.track.logits
            assert row is not None
            if node and self.hooks:  # those of the first row have been called with other requests'
                row = host_row(row)
                for hook in self.hooks:
                    call_hook(hook, row, self.track.shown.show(self.track.tokens), self.number)
            token, logprob, top = self._sample(row)
            forced = [] if self.guide is None or token in self.end_ids else self.guide.push(token)
            done = self.guide is not None and self.guide.done
            child = 0 if token in self.end_ids else draft.child(node, token)
            self.accept(token, logprob, top, child > 0, complete=done and not forced)
            node = child or node
            for one, last in self._due(forced):
                if output.ending is not None:
                    break
                child = child and draft.child(child, one)
                self._accept_forced(one, last, child > 0)
                node = child or node
            if not child or output.ending is not None or self._owed:
                break
        if self._speculation is not None:
            self._speculation.learn(draft, node)
        self.track.end_draft(node)
        if output.ending is None or node:  # those of the first row are behind an earlier token
            self.track.logits = None

    def _sample(self, row: Row | DeviceRow) -> tuple[int, float | None, tuple[Logprob, ...]]:
        """A token from a row of logits, and its log-probabilities if they are asked for."""
        params, guide = self.params, self.guide
        begun = time.perf_counter()
        token = self.track.sample(row, params.sampling, None if guide is None else guide.mask)
        self._runner.metrics.sampling += time.perf_counter() - begun
        self.output.n_sampled += 1
        if params.logprobs or params.scored:
            return token, *self._measure(token, row)
        return token, None, ()

    def _measure(self, token: int, row: Row | DeviceRow) -> tuple[float | None, tuple[Logprob, ...]]:
        """Log-probabilities in the model's own distribution; with a grammar among the allowed tokens."""
        n, guide, given = self.params.logprobs, self.guide, self.params.logprob_tokens
        if isinstance(row, np.ndarray):
            logprob, best = measure(row if guide is None else guide.masked(row), token, n)
        else:
            logprob, best = row.measure(token, n, None if guide is None else guide.mask)
        self.output.score += logprob
        if self.params.sampled_logprobs or given:
            host = host_row(row) if guide is None else guide.masked(host_row(row))
            if self.params.sampled_logprobs:
                host = shaped(host, self.params.sampling, *self.track.text_tokens)
                logprob, best = measure(host, token, n)
            best = measure_given(host, given) if given else best
        return (logprob, tuple(Logprob(*one) for one in best)) if n else (None, ())

    def add_draws(self, draws: list[Draw]) -> None:
        """Add what `advance` will sample from rows on a device, as far as that is known."""
        track, params, row = self.track, self.params, self.track.logits
        if row is None or isinstance(row, np.ndarray) or self._opening or self._owed:
            return
        mask = None if self.guide is None else self.guide.mask
        n_top = params.logprobs if params.logprobs or params.scored else None
        draws.append(track.draw(row, params.sampling, mask, n_top))
        if track.draft_rows is None or self.guide or self.hooks or params.sampling.penalizes:
            return  # or else rows of a draft depend on the tokens before them by the random numbers only
        for one, depth in zip(track.draft_rows[1:], track.draft.depths[1:], strict=True):
            if not isinstance(one, np.ndarray):
                draws.append(track.draw(one, params.sampling, None, n_top, depth))

    # -- accepting tokens --

    def accept(
        self,
        token: int,
        logprob: float | None = None,
        top: tuple[Logprob, ...] = (),
        placed: bool = False,
        complete: bool = False,
        in_track: bool = False,
        forced: bool = False,
    ) -> None:
        """Make a token part of the text, unless it ends it, and give it out.

        `placed`: its cell is filled already; `in_track`: so is its place in the track; `complete`: the
        grammar allows nothing behind it; `forced`: it allowed nothing else.
        """
        output = self.output
        output.note_token()
        if token in self.end_ids:
            text, _ = output.check(output.push(token)) if self.params.include_stop else ("", None)
            output.emit(token, text, logprob, top, Ending("stop", token))
            return
        output.tokens.append(token)
        text, ending = output.push(token), None
        if output.has_stops:
            text, ending = output.check(text)
        if ending is None:
            if complete:
                ending = Ending("stop", "grammar")
            elif len(output.tokens) >= self._check_at and self._is_exhausted():
                ending = Ending("length", self._cut_by(len(output.tokens)))
            elif self._guard is not None and not forced and self._repeats(token):
                ending = Ending("repetition")
            elif not in_track:
                self.track.append_sampled(token, placed)
        if ending is not None and not in_track:
            self._left_out = [token]
        output.emit(token, text, logprob, top, ending)

    # -- steps of the persistent batch --

    @property
    def n_unchecked(self) -> int:
        """How many tokens can be accepted before something but an end token may end the text."""
        return self._check_at - len(self.output.tokens)

    def accept_sampled(self, token: int) -> None:
        """Accept a token that was sampled without `advance`."""
        self.output.n_sampled += 1
        self.accept(token)

    def give_out(self, token: int) -> None:
        """Give out a token that is in the track already, and ends nothing."""
        output = self.output
        output.n_sampled += 1
        output.note_token()
        output.tokens.append(token)
        output.emit(token, output.push(token))

    @property
    def gains_ahead(self) -> bool:
        """Whether the backend's loop does all of it, so that it may be used unasked."""
        return self._is_plain and not self.hooks and self.params.may_run_ahead

    @property
    def is_sampling(self) -> bool:
        """Whether nothing forced stands before the next sampled token, and no draft was computed."""
        return not (self._opening or self._owed or self.track.draft)

    def accept_fused(self, token: int, room: int) -> tuple[list[int], bool]:
        """Accept a token that the backend's loop has sampled, and those that have to follow.

        Returns up to `room` of those that follow, and whether the loop goes on.
        """
        output, guide = self.output, self.guide
        output.n_sampled += 1
        if guide is None:
            self.accept(token, placed=True)
            return [], output.ending is None
        forced = guide.push(token)
        self.accept(token, placed=True, complete=guide.done and not forced)
        for one, last in self._due(forced):
            if output.ending is not None:
                return forced[:room], False
            self._accept_forced(one, last, placed=True)
        if output.ending is not None or len(forced) > room:
            return forced[:room], False
        guide.mask  # noqa: B018 - worked out in place
        return forced, True

    def _due(self, forced: list[int]) -> list[tuple[int, bool]]:
        """The forced tokens of this step, each with whether it is the last of all; others are owed."""
        due, self._owed = forced[:MAX_FORCED_STEP], forced[MAX_FORCED_STEP:]
        return [(token, i == len(forced)) for i, token in enumerate(due, 1)]

    def _accept_all_forced(self, tokens: list[int]) -> None:
        """Accept forced tokens, as many as a step may have; the next pass computes them together."""
        for token, last in self._due(tokens):
            if self.output.ending is not None:
                return
            self._accept_forced(token, last)

    def _accept_forced(self, token: int, last: bool, placed: bool = False, in_track: bool = False) -> None:
        """Accept a token without a choice: it is certain, and says nothing of how good the text is."""
        given = self.params.logprob_tokens or (token,)
        certain = tuple(Logprob(one, 0.0 if one == token else -math.inf) for one in given)
        logprob, top = (0.0, certain) if self.params.logprobs else (None, ())
        complete = last and self.guide is not None and self.guide.done
        self.accept(token, logprob, top, placed, complete, in_track, forced=True)

    # -- limits --

    def _repeats(self, token: int) -> bool:
        """Whether the text repeats itself with this token, so that the guard may end it."""
        assert self._guard is not None
        return self._guard.push(token) and len(self.output.tokens) >= self.params.min_tokens

    def _pace(self) -> None:
        """Say how many pending tokens are a decoding step."""
        track = self.track
        track.step_tokens = track.n_pending if 1 <= track.n_missing <= MAX_FORCED else 1

    def _cut_by(self, n_tokens: int) -> str | None:
        """What a text of so many tokens was cut by, if not by `max_tokens`."""
        most = self.params.max_tokens
        return None if most is not None and n_tokens >= most else CONTEXT

    def _is_exhausted(self) -> bool:
        """Whether there may be no more tokens; if not, `_check_at` says when to ask again."""
        n, most = len(self.output.tokens), self.params.max_tokens
        if most is not None and n >= most:
            return True
        room = self._runner.context_length - self.track.position
        if room <= 0:
            if self.params.overflow == "error":
                return True
            try:
                drop_oldest_half(self._runner, self.track, self.params.keep, self._compute)
            except CacheFull:  # other sequences share its cells, and there are none to copy them to
                return True
            room = self._runner.context_length - self.track.position
        self._check_at = n + room if most is None else min(most, n + room)
        return False

    def _compute(self, track: Track) -> None:
        self._runner.compute([track])

    def _draft_room(self) -> int:
        """How many tokens a draft may have without going beyond a limit."""
        most = self.params.max_tokens
        room = self._runner.context_length - self.track.position - 1
        return room if most is None else min(room, most - len(self.output.tokens) - 1)

    # -- the end --

    @property
    def usage(self) -> Usage:
        """Tokens counted so far."""
        thoughts = self.output.thoughts
        n_thought = 0 if thoughts is None else thoughts.n_tokens
        n_cached = min(self.track.request_prompt[1], self.n_prompt)  # forced tokens may be cached too
        drafts = self._speculation
        counted = (0, 0) if drafts is None else (drafts.n_drafted, drafts.n_accepted)
        n_text = len(self.output.tokens)
        return Usage(self.n_prompt, n_text, n_cached, n_thought, self.track.used_edit, *counted)

    def result(self) -> Result:
        """The text and how it came about, once it has ended."""
        output, thoughts = self.output, self.output.thoughts
        assert output.ending is not None
        return Result(
            text=output.text,
            tokens=list(output.tokens),
            finish_reason=output.ending.reason,
            stop_reason=output.ending.why,
            usage=self.usage,
            timings=output.timings(len(output.tokens)),
            seed=self.track.random.seed,
            logprob=output.mean_logprob,
            logprobs=list(output.logprobs) if self.params.logprobs else None,
            reasoning="" if thoughts is None else thoughts.text,
            answer_start=-self.params.continues if thoughts is None else thoughts.answer_start,
            captured=None if self._taps is None else self._taps.captured(),
        )

    def end_early(self, ending: Ending) -> None:
        """End from outside; the text so far stays."""
        if self.before_end is not None:
            self.before_end()
        self.output.end_early(ending)

    def preempt(self) -> None:
        """Give the cells up and keep the tokens."""
        self._runner.release(self.track)

    def close(self) -> None:
        """Close the track, or give it back to its owner with the generated text."""
        if self._speculation is not None:
            self._speculation.close()
        track, metrics = self.track, self._runner.metrics
        track.taps = None
        metrics.longest = max(metrics.longest, self.n_prompt + len(self.output.tokens))
        metrics.short_prompts += self.output.has_tokens and self.n_prompt - track.request_prompt[1] == 1
        if not self._keep_track or track.unowned:
            self._runner.close_track(track)
        elif not track.closed:
            track.end_draft()
            self._runner.rollback(track, len(track) - len(self._opening))
            if self._left_out and track.position < track.context_length:
                track.extend(self._left_out)
            track.step_tokens = 1
            track.running = False
            track.n_edits += 1


def _exclude_ends(output: TextOutput, ends: list[int], least: int, logits: Row, tokens: list[int]) -> None:
    """A hook for `min_tokens`: end tokens are excluded before the text has so many."""
    if len(output.tokens) < least:
        logits[ends] = -np.inf
