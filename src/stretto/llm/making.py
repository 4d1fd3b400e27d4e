"""From prompts and options to requests of the engine; what does not go together is refused here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stretto.engine import Engine, Request, Sequence
from stretto.engine.branch import Branches, branching
from stretto.engine.kinds import new_request
from stretto.engine.params import RequestParams, request_params
from stretto.errors import InvalidRequest, Unsupported
from stretto.llm.prompts import Prompt, prompt_ids
from stretto.parallel import ParallelRun, parallel_params
from stretto.structured import Grammar


def new_text(engine: Engine, prompt: Prompt, options: Mapping[str, Any]) -> Request:
    """A request for one text."""
    how, rest = branching(options)
    if not how.plain:
        raise InvalidRequest("a stream gives one text; n, best_of and beams are for generate")
    return new_request(engine, prompt_ids(engine, prompt), _params(engine, rest))


def new_branches(engine: Engine, prompt: Prompt, options: Mapping[str, Any]) -> Branches:
    """Requests for the texts of one prompt."""
    how, rest = branching(options)
    params = _params(engine, rest)
    if how.beams is not None and params.grammar is not None:
        raise Unsupported("a beam search has no grammar; sample with n or best_of instead")
    if how.best_of is not None:
        if params.fused:
            raise InvalidRequest("loop='fused' gives no log-probabilities, which best_of needs")
        params = replace(params, scored=True)
    return Branches(engine, prompt_ids(engine, prompt), params, how)


def new_runs(engine: Engine, prompts: Any, options: Mapping[str, Any]) -> list[ParallelRun]:
    """Parallel runs, one for each prompt."""
    run, params = parallel_params(options, engine.spec.n_vocab)
    return [ParallelRun(engine, _start_of(engine, one), run, params) for one in prompts]


def _start_of(engine: Engine, prompt: Prompt | Sequence) -> list[int] | Sequence:
    """What a parallel run begins with: token ids, or a sequence of this model."""
    if not isinstance(prompt, Sequence):
        return prompt_ids(engine, prompt)
    if prompt._engine is not engine:
        raise InvalidRequest(f"{prompt!r} is not a sequence of this model")
    return prompt


def _params(engine: Engine, options: Mapping[str, Any]) -> RequestParams:
    params = request_params(options, engine.spec.n_vocab)
    if params.fused:
        engine.backend.capabilities.require("fused", engine.backend.name)
    if isinstance(params.grammar, Grammar):
        params = replace(params, grammar=engine.grammars.compile(params.grammar))
    return params
