"""Which kind of request serves which options."""

from __future__ import annotations

from stretto.engine.drafted import DraftedRequest
from stretto.engine.engine import Engine
from stretto.engine.guided import GuidedRequest
from stretto.engine.params import RequestParams
from stretto.engine.request import Request


def new_request(
    engine: Engine, prompt: list[int], params: RequestParams, index: int = 0, seed: int | None = None
) -> Request:
    """A request of the kind that its options ask for."""
    kind: type[Request] = Request
    if params.draft is not None:
        kind = DraftedRequest
    elif params.grammar is not None:
        kind = GuidedRequest
    return kind(engine, prompt, params, index, seed)
