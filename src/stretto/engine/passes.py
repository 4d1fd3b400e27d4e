"""Passes that callers wait for: scores, embeddings, logits of several sequences."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import POOLINGS, Batch, Head, Pooling, Projects
from stretto.engine.adapters import adapter_parts, check_same
from stretto.engine.decoders.passes import (
    EmbedPass,
    LogitsPass,
    MeasurePass,
    PackedPass,
    Pass,
    ScorePass,
    StatesPass,
    normalized,
)
from stretto.engine.engine import Engine
from stretto.engine.pool import Borrower
from stretto.engine.request import Request
from stretto.engine.runner import Runner
from stretto.engine.sequence import Sequence, prepare, track_in
from stretto.errors import ContextOverflow, InvalidRequest, Unsupported, wrong_value
from stretto.models.sites import list_sites
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import RandomStream

__all__ = [
    "Pass",
    "complete",
    "compute_all",
    "compute_logits",
    "embed_request",
    "embedding_head",
    "logits_request",
    "measure_request",
    "normalized",
    "score_request",
    "states_request",
]


Floats = NDArray[np.float32]


def score_request(
    engine: Engine,
    tokens: list[int],
    adapter: str | Mapping[str, float] | None = None,
    sampling: SamplingParams | None = None,
) -> Request[ScorePass]:
    """The log-probability of each token after the first, given those before it: float32[n-1]."""
    runner = engine.runner
    _check_sampling(sampling)
    if sampling is not None and sampling.penalizes:
        raise InvalidRequest(
            "penalties count the tokens behind a prompt; give the prompt, and its continuations apart",
            param="sampling",
        )
    _check_scorable(engine, tokens)
    track = runner.new_track(tokens[:-1], RandomStream(0))
    track.adapt(runner.adapters.mix(adapter_parts(adapter)))
    track.make_private()
    return Request(ScorePass(runner, track, tokens, sampling), runner.metrics)


def _check_sampling(sampling: object) -> None:
    if not isinstance(sampling, SamplingParams | None):
        raise wrong_value("sampling", sampling, "a stretto.SamplingParams, or None for the model's own")


def measure_request(
    engine: Engine,
    tokens: list[int],
    n_top: int,
    salt: str | None = None,
    adapter: str | Mapping[str, float] | None = None,
) -> Request[MeasurePass]:
    """As `score_request`, with the `n_top` most probable tokens; prompts of the salt may share its cells."""
    runner = engine.runner
    _check_scorable(engine, tokens)
    if type(n_top) is not int or n_top < 0:
        raise wrong_value("top", n_top, "a number from 0 on")
    track = runner.new_track(tokens[:-1], RandomStream(0), salt)
    track.adapt(runner.adapters.mix(adapter_parts(adapter)))
    return Request(MeasurePass(runner, track, tokens, n_top), runner.metrics)


def _check_scorable(engine: Engine, tokens: list[int]) -> None:
    if len(tokens) < 2:
        raise InvalidRequest(f"a text of at least 2 tokens can be scored, not of {len(tokens)}", param="text")
    _check_fits(engine.runner, tokens, "the text")
    if any(type(token) is not int for token in tokens):
        raise Unsupported("texts with images are not scored; use a sequence and its logits")


def _check_fits(runner: Runner, tokens: list[int], name: str) -> None:
    if len(tokens) > runner.context_length:
        raise ContextOverflow(
            f"{name} has {len(tokens)} tokens and the context {runner.context_length}; shorten it",
            n_tokens=len(tokens),
            limit=runner.context_length,
            param="text",
        )


def compute_activations(
    engine: Engine, tokens: list[int], layers: list[int], adapter: str | Mapping[str, float] | None = None
) -> Floats:
    """float32[layers, n, n_embd]: the residual stream of a text at the end of layers."""
    runner = engine.runner
    if not runner.backend.capabilities.sites or runner.spec.streams is not None:
        raise Unsupported(
            f"the {runner.backend.name} backend does not show activations of this model; backend='native' "
            "does, of models with one residual stream"
        )
    if not tokens or any(type(token) is not int for token in tokens):
        raise InvalidRequest("a text of at least one token, without images, is needed", param="text")
    if not layers or not all(type(one) is int and 0 <= one < runner.spec.n_layer for one in layers):
        raise wrong_value("layers", layers, f"a list of numbers from 0 to {runner.spec.n_layer - 1}")
    mix, found, sites = runner.adapters.mix(adapter_parts(adapter)), [], list_sites(runner.spec)
    with engine.arrivals.arriving(), engine.lock:
        runner.check_open()
        sequence = runner.borrowed.take(borrower := Borrower())
        try:
            for first in range(0, len(tokens), runner.chunk):
                batch = Batch()
                batch.extend(tokens[first : first + runner.chunk], first, (sequence,))
                batch.adapt(0, mix)
                rows = range(len(batch))
                taps = [batch.tap(sites[f"layers.{layer}.residual"], rows) for layer in layers]
                runner.forward(batch)
                found.append(np.stack([tap.values for tap in taps]))
        finally:
            runner.borrowed.give_back(borrower, [sequence])
    return np.concatenate(found, axis=1)


def embedding_head(engine: Engine, pooling: Pooling | None) -> Head:
    """What makes vectors of texts: the file's own way, or with another pooling; by default the mean."""
    known = engine.runner.spec.embedder or Head("mean")
    if pooling is None:
        return known
    if pooling not in POOLINGS:
        raise wrong_value("pooling", pooling, f"{', '.join(map(repr, POOLINGS))}, or None for the file's own")
    return replace(known, pooling=pooling)


def embed_request(
    engine: Engine,
    texts: list[list[int]],
    head: Head,
    normalize: bool,
    types: list[list[int]] | None = None,
) -> Request[EmbedPass]:
    """What a head makes of each text, from the final hidden states of its tokens: float32[n_texts, n].

    `types` are the token types of each text, for models that have them.
    """
    runner = engine.runner
    if not isinstance(normalize, bool):
        raise wrong_value("normalize", normalize, "True or False")
    _check_texts(runner, texts)
    if head.projections and not isinstance(runner.backend, Projects):
        raise Unsupported(
            f"the {runner.backend.name} backend has no matrices behind the pooling; backend='native' has"
        )
    return Request(EmbedPass(runner, texts, head, normalize, types), runner.metrics)


def states_request(engine: Engine, texts: list[list[int]]) -> Request[StatesPass]:
    """The final hidden states of the tokens of each text: a list of float32[n_tokens, n_embd]."""
    _check_texts(engine.runner, texts)
    return Request(StatesPass(engine.runner, texts), engine.runner.metrics)


def _check_texts(runner: Runner, texts: list[list[int]]) -> None:
    """Raise unless the backend gives hidden states, and the texts fit into the context."""
    runner.backend.capabilities.require("hidden", runner.backend.name)
    for number, text in enumerate(texts):
        if not text:
            raise InvalidRequest(f"text {number} is empty; give at least one token", param="text")
        _check_fits(runner, text, f"text {number}")


def complete(engine: Engine, request: Request[Any]) -> Any:
    """Run a pass with whatever else runs, and return its result."""
    engine.complete([[request]])
    return request.result()


def compute_logits(engine: Engine, sequences: Seq[Sequence]) -> Floats:
    """float32[n, n_vocab]: the logits of several sequences, computed in one pass; a copy."""
    with engine.lock:
        compute_all(engine, sequences)
        if not sequences:
            return np.empty((0, engine.runner.spec.n_vocab), np.float32)
        return np.stack([sequence.logits for sequence in sequences])


def logits_request(engine: Engine, sequences: Seq[Sequence]) -> Request[LogitsPass]:
    """Computes the pending tokens of several sequences, with whatever else runs."""
    with engine.arrivals.arriving(), engine.lock:
        tracks = [track_in(engine, sequence) for sequence in sequences]
        for sequence in sequences:
            prepare(sequence)
    return Request(LogitsPass(engine.runner, tracks), engine.runner.metrics)


def compute_all(engine: Engine, sequences: Seq[Sequence]) -> None:
    """Compute the pending tokens of several sequences together; each may be named once."""
    for sequence in sequences:
        if not isinstance(sequence, Sequence):
            raise InvalidRequest(f"{sequence!r} is not a sequence of this model", param="sequences")
    tracks = [track_in(engine, sequence) for sequence in sequences]
    if len({track.id for track in tracks}) != len(tracks):
        raise InvalidRequest("a sequence is in the list twice; fork it to go two ways", param="sequences")
    for sequence in sequences:
        prepare(sequence)
    engine.compute(tracks)


# Requests that score many continuations of one text, packed into as few passes as they fit into.


def packed_request(
    engine: Engine,
    text: list[int] | Sequence,
    continuations: list[list[int]],
    adapter: str | Mapping[str, float] | None = None,
    sampling: SamplingParams | None = None,
) -> Request[PackedPass]:
    """Of each continuation the log-probability of its tokens: a list of float32[n].

    The text is a prompt, which stays cached, or a sequence, which is forked and stays as it is.
    """
    runner = engine.runner
    runner.backend.capabilities.require("fork", runner.backend.name)
    _check_sampling(sampling)
    mix = runner.adapters.mix(adapter_parts(adapter))
    for number, tokens in enumerate(continuations):
        if not tokens:
            raise InvalidRequest(
                f"continuation {number} has no tokens; give at least one", param="continuations"
            )
        if any(type(token) is not int for token in tokens):
            raise Unsupported("images in continuations are not scored; put them into the prompt")
    longest = max(map(len, continuations), default=0)
    if isinstance(text, Sequence):
        with engine.lock:
            track = track_in(engine, text)
            _check_room(engine, track.position, longest)
            if mix is not None:
                check_same(track, mix)
            text.logits  # noqa: B018  # computed now, so that there are cells to share
            track = runner.fork(track)
    else:
        _check_room(engine, len(text), longest)
        track = runner.new_track(text, RandomStream(0))
        track.adapt(mix)
    is_prompt = not isinstance(text, Sequence)
    return Request(PackedPass(runner, track, continuations, is_prompt, sampling), runner.metrics)


def _check_room(engine: Engine, n: int, longest: int) -> None:
    """Raise unless a text of n tokens with its longest continuation fits into the context."""
    if not n:
        raise InvalidRequest("the prompt is empty; give at least one token", param="prompt")
    limit = engine.runner.context_length
    if n + longest > limit:
        raise ContextOverflow(
            f"a text of {n} tokens with a continuation of {longest} does not fit into a context of {limit}; "
            "shorten it, or load the model with more cells",
            n_tokens=n + longest,
            limit=limit,
            param="continuations",
        )
