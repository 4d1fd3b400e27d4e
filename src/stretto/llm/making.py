"""From prompts and options to requests of the engine; combinations without a meaning are refused here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stretto.engine import Engine, Request, Sequence
from stretto.engine.branch import Branches, branching
from stretto.engine.branch import new_branches as branches_of
from stretto.engine.branch import new_text as text_of
from stretto.engine.params import RequestParams, request_params
from stretto.engine.sequence import track_in
from stretto.errors import InvalidRequest
from stretto.llm.prompts import Prompt, prompt_ids

if TYPE_CHECKING:
    from stretto.parallel import Run


def new_text(engine: Engine, prompt: Prompt | Sequence, options: Mapping[str, Any]) -> Request[Any]:
    """A request for one text."""
    how, rest = branching(options)
    if not how.plain:
        raise InvalidRequest("a stream gives one text; n, best_of and beams are for generate", param="n")
    params = _params(engine, rest)
    return text_of(engine, _start_of(engine, prompt, params), params)


def new_branches(engine: Engine, prompt: Prompt | Sequence, options: Mapping[str, Any]) -> Branches:
    """Requests for the texts of one prompt."""
    return new_batch(engine, [prompt], options)[0]


def new_batch(engine: Engine, prompts: Iterable[Any], options: Mapping[str, Any]) -> list[Branches]:
    """Requests for the texts of several prompts, all or none; their options are checked once."""
    how, rest = branching(options)
    params = _params(engine, rest)
    if how.best_of is not None:
        params = replace(params, scored=True)
    made: list[Branches] = []
    try:
        for prompt in prompts:
            made.append(branches_of(engine, _start_of(engine, prompt, params), params, how))
    except BaseException:
        _cancel(engine, [branches.requests[0] for branches in made])
        raise
    return made


def new_runs(engine: Engine, prompts: Iterable[Any], options: Mapping[str, Any]) -> list[Run]:
    """Parallel runs, one for each prompt, all or none."""
    from stretto.parallel import new_run, parallel_params

    run, params = parallel_params(options, engine.runner.spec.n_vocab)
    params = _compiled(engine, params)
    made: list[Run] = []
    try:
        for prompt in prompts:
            made.append(new_run(engine, _start_of(engine, prompt, params), run, params))
    except BaseException:
        _cancel(engine, made)
        raise
    return made


def _cancel(engine: Engine, requests: Iterable[Request[Any]]) -> None:
    with engine.lock:
        for request in requests:
            request.cancel()


def _start_of(engine: Engine, prompt: Prompt | Sequence, params: RequestParams) -> list[int] | Sequence:
    """Token ids, or a sequence of this model."""
    if not isinstance(prompt, Sequence):
        return prompt_ids(engine, prompt, params.cache_salt)
    track_in(engine, prompt)
    return prompt


def _params(engine: Engine, options: Mapping[str, Any]) -> RequestParams:
    params = request_params(options, engine.runner.spec.n_vocab)
    if params.fused:
        engine.backend.capabilities.require("fused", engine.backend.name)
    return _compiled(engine, params)


def _compiled(engine: Engine, params: RequestParams) -> RequestParams:
    if params.grammar is None:
        return params
    from stretto.structured import Grammar

    if isinstance(params.grammar, Grammar):
        return replace(params, grammar=engine.grammars.compile(params.grammar))
    return params
