"""Several texts from one prompt: n samples, the best of several, beam search. All of it is forking.

The prompt is computed once. Samples are requests of their own from there on; beams are tracks of one request,
forked where two of the best hypotheses share a past. All run in the same steps as everything else.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.engine.adapters import check_same
from stretto.engine.decoders.plain import PlainDecoder
from stretto.engine.engine import Engine
from stretto.engine.output import TextOutput, Thoughts
from stretto.engine.params import Branching, RequestParams
from stretto.engine.request import Request
from stretto.engine.sequence import Sequence, track_in
from stretto.engine.taps import Taps
from stretto.engine.track import Track
from stretto.engine.types import Result
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.models.sites import list_sites
from stretto.sampling.sampler import RandomStream
from stretto.text.reasoning import Reasoning

if TYPE_CHECKING:
    from stretto.engine.decoders.beam import BeamDecoder
    from stretto.structured import Constraint, Guide

Prompt = list[int] | Sequence


class Branches:
    """The requests of one prompt, and which of their results count."""

    def __init__(self, requests: list[Request[Any]], how: Branching) -> None:
        self.how = how
        self.requests = requests

    @property
    def finished(self) -> bool:
        """Whether all of them have come to an end."""
        return all(request.finished for request in self.requests)

    def results(self) -> Result | list[Result]:
        """The best results, as many as were asked for: a list with `n`, else one."""
        found: list[Result] = []
        for request in self.requests:
            result = request.result()
            found += result if isinstance(result, list) else [result]
        if self.how.best_of is not None:
            outputs: list[TextOutput] = [request.decoder.output for request in self.requests]
            means = [output.score / max(1, output.n_sampled) for output in outputs]
            found = [found[i] for i in np.argsort(np.negative(means), kind="stable")]
        return found[0] if self.how.n is None else found[: self.how.n]


def new_text(engine: Engine, prompt: Prompt, params: RequestParams) -> Request[PlainDecoder]:
    """A request for one text. A sequence as prompt is continued, and has the text when that has ended."""
    if isinstance(prompt, Sequence):
        with engine.arrivals.arriving(), engine.lock:
            track = track_in(engine, prompt)
            check_prompt(engine, track.position, params)
            check_same_salt(track, params)
            if params.seed is not None:
                track.random = RandomStream(params.seed)
            track.running = True
            track.begin_request()
            try:
                return _text_request(engine, track, params, keep_track=True)
            except BaseException:
                track.running, track.taps = False, None
                raise
    check_prompt(engine, len(prompt), params)
    track = engine.runner.new_track(prompt, RandomStream(params.seed), params.cache_salt, params.edits)
    return _text_request(engine, track, params)


def new_branches(engine: Engine, prompt: Prompt, params: RequestParams, how: Branching) -> Branches:
    """Requests for the texts of one prompt. A sequence is forked, unless one text is all that is wanted."""
    if how.plain:
        return Branches([new_text(engine, prompt, params)], how)
    seed = RandomStream(params.seed).seed  # one for all, and an index for each
    if isinstance(prompt, Sequence):
        with engine.arrivals.arriving(), engine.lock:
            track = track_in(engine, prompt)
            check_prompt(engine, track.position, params)
            check_same_salt(track, params)
            if params.seed is None:
                seed = track.random.seed
            engine.compute([track])  # so that there are cells to share
            first = engine.runner.fork(track, RandomStream(seed, track.random.index, track.random.draws))
            first.begin_request()
    else:
        check_prompt(engine, len(prompt), params)
        first = engine.runner.new_track(prompt, RandomStream(seed), params.cache_salt, params.edits)
    try:
        return Branches(_branch_requests(engine, first, params, how, seed), how)
    except BaseException:
        with engine.lock:
            engine.runner.close_track(first)
        raise


def _branch_requests(
    engine: Engine, first: Track, params: RequestParams, how: Branching, seed: int
) -> list[Request[Any]]:
    if how.beams is not None:
        return [_beam_request(engine, first, params, how)]
    requests = [_text_request(engine, first, params)]
    for index in range(1, how.best_of or how.n or 1):
        # Its track has the tokens only: it is replaced by a fork when the first one has been computed.
        tokens = first.tokens[: requests[0].decoder.n_prompt]
        track = engine.runner.new_track(list(tokens), RandomStream(seed, index), params.cache_salt)
        track.n_prompt = first.n_prompt
        requests.append(_text_request(engine, track, params))
    requests[0].siblings = list(requests[1:])
    requests[0].start_sibling = partial(_start_sibling, engine)
    return list(requests)


def _start_sibling(engine: Engine, first: Request[PlainDecoder], sibling: Request[PlainDecoder]) -> None:
    sibling.decoder.replace_track(engine.runner.fork(first.decoder.track))


def _text_request(
    engine: Engine, track: Track, params: RequestParams, keep_track: bool = False
) -> Request[PlainDecoder]:
    runner, tokenizer = engine.runner, engine.tokenizer
    adapt(engine, track, params, keep_track)
    tap(engine, track, params, keep_track)
    track.running = True
    track.n_prompt = min(track.n_prompt, len(track.tokens) - params.continues)
    guide, speculation = _constraint(engine, track, params), None
    if params.draft is not None:
        from stretto.engine.decoders.drafted import Speculation

        speculation = Speculation(runner, params.draft, tokenizer, track, params.draft_branches)
    output = _output(engine, track, params, guide is not None)
    decoder = PlainDecoder(
        runner, track, output, params, collect_end_ids(engine, params), guide, speculation, keep_track
    )
    return Request(decoder, runner.metrics, priority=params.priority, timeout=params.timeout)


def _beam_request(
    engine: Engine, track: Track, params: RequestParams, how: Branching
) -> Request[BeamDecoder]:
    from stretto.engine.decoders.beam import BeamDecoder, BeamParams

    runner = engine.runner
    adapt(engine, track, params)
    track.running = True
    guide = _constraint(engine, track, params)
    output = _output(engine, track, params, guide is not None)
    beam = BeamParams(how.beams or 1, how.length_penalty)
    decoder = BeamDecoder(runner, track, output, params, collect_end_ids(engine, params), beam, guide)
    return Request(decoder, runner.metrics, priority=params.priority, timeout=params.timeout)


def adapt(engine: Engine, track: Track, params: RequestParams, is_sequence: bool = False) -> None:
    """Have a request's track computed with its adapters; one with cells has to have been so far."""
    if params.adapter:
        mix = engine.runner.adapters.mix(params.adapter)
        if is_sequence or track.n_placed:
            check_same(track, mix)
        else:
            track.adapt(mix)


def tap(engine: Engine, track: Track, params: RequestParams, is_sequence: bool = False) -> None:
    """Have what a request captures and changes tapped in the passes of its track."""
    if params.capture is None and not params.patch:
        return
    engine.backend.capabilities.require("sites", engine.backend.name)
    if params.patch and is_sequence:
        raise InvalidRequest(
            "a sequence that goes on would have cells of a changed pass; give its tokens (seq.tokens) as the "
            "prompt instead",
            param="patch",
        )
    track.taps = Taps(list_sites(engine.runner.spec), params.capture, params.patch, len(track.tokens))
    if track.taps.reads_prompt and not is_sequence:
        track.make_private()


def new_guide(params: RequestParams) -> Guide | None:
    """A guide through the grammar of a request, if it has one."""
    if params.grammar is None:
        return None
    from stretto.structured import Compiled

    return params.grammar.guide() if isinstance(params.grammar, Compiled) else None


def _constraint(engine: Engine, track: Track, params: RequestParams) -> Constraint | None:
    """The guide of a text; it starts after the reasoning where that is told apart."""
    if params.grammar is None and params.reasoning_budget is None:
        return None
    from stretto.structured import Compiled, limit_reasoning, make_constraint

    guide, reasoning = new_guide(params), _reasoning(engine, params)
    n = len(track.tokens) - params.continues
    made: Constraint | None = None
    inner = None
    if guide is not None:
        compiled = params.grammar
        waits = isinstance(compiled, Compiled) and not compiled.grammar.covers_reasoning
        made = inner = make_constraint(guide, reasoning if waits else None, track.tokens[:n])
    if params.reasoning_budget is not None and reasoning is not None:
        n_vocab = engine.runner.spec.n_vocab
        made = limit_reasoning(inner, reasoning, track.tokens[:n], params.reasoning_budget, n_vocab)
    if made is not None and params.continues:
        made.skip(track.tokens[n:])
    return made


def _output(engine: Engine, track: Track, params: RequestParams, exact: bool) -> TextOutput:
    """The output of a text; with `continues` it has read the tokens that the answer begins with."""
    n, reasoning = len(track.tokens) - params.continues, _reasoning(engine, params)
    detokenizer = engine.tokenizer.detokenizer(params.special, after=track.tokens[n - 1], exact=exact)
    thoughts = None if reasoning is None else Thoughts(reasoning, track.tokens[:n])
    for token in track.tokens[n:]:
        if thoughts is None:
            detokenizer.push(token)
        else:
            thoughts.push(token, detokenizer)
    if thoughts is not None:
        thoughts.begin_here()
    return TextOutput(engine.metrics, params, detokenizer, thoughts)


def _reasoning(engine: Engine, params: RequestParams) -> Reasoning | None:
    return engine.reasoning if params.reasoning else None


def collect_end_ids(engine: Engine, params: RequestParams) -> frozenset[int]:
    """The tokens that end a text: the model's own, unless they are ignored, and `stop_tokens`."""
    return params.stop_tokens | (frozenset() if params.ignore_eos else engine.tokenizer.end_ids)


def check_same_salt(track: Track, params: RequestParams) -> None:
    """Raise for a salt that is not the one of the sequence that a request continues."""
    if params.cache_salt and params.cache_salt != track.domain.salt:
        raise InvalidRequest(
            "a sequence keeps the cache_salt that it was made with; give it to llm.sequence",
            param="cache_salt",
        )


def check_prompt(engine: Engine, length: int, params: RequestParams) -> None:
    """Raise unless a prompt leaves room for an answer."""
    runner = engine.runner
    if not length:
        raise InvalidRequest("the prompt is empty; give at least one token", param="prompt")
    if params.continues >= length:
        raise InvalidRequest(
            f"continues is {params.continues}, and the prompt has {length} tokens; at least one has to stand "
            "before the answer",
            param="continues",
            value=params.continues,
        )
    if length >= runner.context_length:
        raise ContextOverflow(
            f"the prompt has {length} tokens and the context {runner.context_length}; "
            "shorten it, leaving room for an answer",
            n_tokens=length,
            limit=runner.context_length,
        )
    if params.overflow == "shift":
        runner.require_shift()
        if params.keep > runner.context_length - 2:
            raise InvalidRequest(
                f"keep is {params.keep}; in a context of {runner.context_length} at most "
                f"{runner.context_length - 2} tokens can be kept",
                param="keep",
            )
