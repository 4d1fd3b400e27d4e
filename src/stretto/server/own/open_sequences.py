"""The open sequences of `/v1/sequences`: whose they are, for how long, and what they hold.

An open sequence holds cells that are not evicted. So it belongs to the caller that made it, is closed after
some time without a request, and those of a caller have a share of the cells. One request at a
time uses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from secrets import token_hex
from typing import Any, TypeVar

import numpy as np

from stretto import Result, Token
from stretto.llm import LLM
from stretto.server.generation.answer import Answer, clamp_logprob
from stretto.server.generation.generation import Generation
from stretto.server.http.errors import ApiError
from stretto.server.http.served_model import ServedModel
from stretto.server.http.state import Caller, State
from stretto.server.http.streaming import DONE, event

HELD_FRACTION = 0.5  # of a model's cells, that open sequences may hold; those of one of several callers: half
NO_CELLS = np.empty(0, np.int32)
THREADS = 4  # in which sequences are forked, edited and saved

Value = TypeVar("Value")


def new_id() -> str:
    """An id that nobody can guess."""
    return f"seq_{token_hex(12)}"


@dataclass(eq=False)
class OpenSequence:
    """A sequence that a caller has open."""

    id: str
    caller: str
    model: str  # as the caller named it, with its adapter
    served: ServedModel
    llm: LLM
    sequence: Any  # a `stretto.Sequence`
    created: int
    adapter: Any = None  # that it is computed with
    is_used: bool = False  # by a request
    most: int = 0  # cells that the request which uses it may bring it to
    expires: float = 0.0  # by the monotonic clock
    timer: asyncio.TimerHandle | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its model was unloaded."""
        return self.served.llm is not self.llm

    def new_fork(self, sequence: Any) -> OpenSequence:
        """A fork of it, under an id of its own."""
        return replace_fields(
            self, id=new_id(), sequence=sequence, created=int(time.time()), is_used=False, most=0, timer=None
        )


class OpenSequences:
    """The open sequences of all callers; used by the event loop's thread."""

    def __init__(self) -> None:
        self._open: dict[str, OpenSequence] = {}
        self.coming: dict[Generation, int] = {}  # tokens of sequences that are being made
        self.threads = ThreadPoolExecutor(THREADS, "stretto-sequences")

    def of(self, caller: str) -> list[OpenSequence]:
        """Those of a caller, the oldest first; sequences of models that were unloaded are gone."""
        for one in [one for one in self._open.values() if one.is_gone and not one.is_used]:
            self.forget(one)
        return [one for one in self._open.values() if one.caller == caller]

    def of_model(self, llm: LLM) -> list[OpenSequence]:
        """Those that hold cells of a model."""
        return [one for one in self._open.values() if one.llm is llm]

    def find(self, caller: str, name: str, seconds: float) -> OpenSequence:
        """A sequence by its id; raises if the caller has none with it, or not any more."""
        found = self._open.get(name)
        if found is None or found.caller != caller or found.is_gone:
            raise ApiError(
                404,
                f"there is no open sequence {name[:64]!r} of yours; it was closed, unused for {seconds:g} s, "
                "or its model was unloaded: make a new one with POST /v1/sequences",
                param="sequence_id",
                code="not_found",
            )
        return found

    def add(self, entry: OpenSequence, seconds: float) -> None:
        """Keep a sequence until it is closed, or not used for so long."""
        self._open[entry.id] = entry
        self.rest(entry, seconds)

    def rest(self, entry: OpenSequence, seconds: float) -> None:
        """A request has ended that used a sequence."""
        entry.is_used, entry.most = False, 0
        entry.expires = time.monotonic() + seconds
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.id in self._open:
            entry.timer = asyncio.get_running_loop().call_later(seconds, self._expire, entry)

    def forget(self, entry: OpenSequence) -> None:
        """Let a sequence be found no more."""
        self._open.pop(entry.id, None)
        if entry.timer is not None:
            entry.timer.cancel()

    def _expire(self, entry: OpenSequence) -> None:
        if not entry.is_used:
            self.forget(entry)
            self.threads.submit(entry.sequence.close)


def get_open(state: State) -> OpenSequences:
    """The open sequences of a server."""
    return state.part(OpenSequences)


async def in_thread(state: State, work: Callable[[], Value]) -> Value:
    """The value of some work that may wait for a step of the engine."""
    return await asyncio.get_running_loop().run_in_executor(get_open(state).threads, work)


# -- their share of the cells --


async def reserve_cells(
    generation: Generation,
    state: State,
    param: str,
    n_new: int,
    entry: OpenSequence | None = None,
    edited_at: int | None = None,
) -> int:
    """Reserve cells for so many more tokens, of an open sequence or of a new one, while the request runs.

    Raises if that is above what open sequences may hold, the caller's or all; returns how many more there
    could be. An edit takes cells too for the tokens behind it that are shared with other open sequences.
    """
    llm, opened, caller = generation.lease.llm, get_open(state), generation.caller
    table = await in_thread(state, llm.cells.copied)
    entries = opened.of_model(llm)
    views = {one: table.views.get(one.sequence.id, NO_CELLS) for one in entries}
    if entry is not None and edited_at is not None:
        behind = views[entry][table.positions[views[entry]] >= edited_at]
        others = [views[one] for one in entries if one is not entry]
        n_new += int(np.isin(behind, np.concatenate([NO_CELLS, *others])).sum())
    n_keys = len(state.settings.api_keys) + len(state.settings.admin_keys)
    most = int(HELD_FRACTION * len(llm.cells))
    own_most = most // 2 if n_keys > 1 else most
    shares = (
        ("your open sequences hold", min(own_most, caller.limits.cells or own_most), caller.name),
        ("all open sequences hold", most, None),
    )
    room = most
    for words, limit, owner in shares:
        theirs = [one for one in entries if owner in (None, one.caller)]
        held = len(np.unique(np.concatenate([NO_CELLS, *(views[one] for one in theirs)])))
        held += sum(max(0, len(one.sequence) - len(views[one]), one.most - len(views[one])) for one in theirs)
        held += sum(n for other, n in opened.coming.items() if owner in (None, other.caller.name))
        if held + n_new > limit:
            message = (
                f"{param}: {words} {held:,} cells, and {n_new:,} more are above the {limit:,} of "
                f"{len(llm.cells):,} that they may hold; close sequences, or ask for less"
            )
            raise ApiError(400 if n_new > limit else 429, message, param=param, code="over_limit")
        room = min(room, limit - held - n_new)
    if entry is None:
        opened.coming[generation] = n_new
    else:
        entry.most = len(entry.sequence) + n_new
    return room


def check_count(state: State, caller: Caller, n_new: int, param: str) -> None:
    """Raise if a caller has too many sequences open for some more."""
    most, held = state.settings.max_sequences, len(get_open(state).of(caller.name))
    if held + n_new > most:
        message = f"{param}: {held} sequences of yours are open, and at most {most} may be; close some first"
        raise ApiError(429, message, param=param, code="over_limit")


# -- answers --


def describe(entry: OpenSequence, seconds: float, is_whole: bool = False) -> dict[str, Any]:
    """A sequence for its caller, the tokens and the text too where they are asked for."""
    sequence = entry.sequence
    found = {
        "id": entry.id,
        "object": "sequence",
        "model": entry.model,
        "created_at": entry.created,
        "expires_in": seconds if entry.is_used else round(max(0.0, entry.expires - time.monotonic()), 1),
        "tokens": len(sequence),
        "position": sequence.position,
        "pending": sequence.n_pending,
        "edit_mode": sequence.edit_mode,
    }
    if is_whole:
        tokens = sequence.tokens
        ids = [token if type(token) is int else -1 for token in tokens]  # −1: of an image
        positions = sequence.positions
        found |= {"token_ids": ids, "positions": positions, "text": entry.llm.tokenizer.decode(tokens)}
    return found


def usage(entry: OpenSequence) -> dict[str, Any]:
    """The tokens of a sequence, those of it that are computed, and the mode of an edit that shows in it."""
    n, pending = len(entry.sequence), entry.sequence.n_pending
    return {
        "prompt_tokens": n,
        "computed_tokens": n - pending,
        "cached_tokens": entry.sequence.n_cached,
        "edit_mode": entry.sequence.edit_mode,
    }


class SequenceAnswer(Answer):
    """Texts behind a sequence: tokens as events, then the sequence as it is now."""

    def __init__(self, generation: Generation, entry: OpenSequence, state: State, top: int | None) -> None:
        super().__init__(generation)
        self._entry = entry
        self._state = state
        self._top = top  # alternatives of each token; None: no log-probabilities
        self._results: dict[int, Result] = {}

    def whole(self, results: list[Result]) -> dict[str, Any]:
        """The texts, and the sequence; to be called in a thread."""
        texts = [
            {
                "index": index,
                "text": result.text,
                "token_ids": result.tokens,
                "finish_reason": result.finish_reason,
                "stop_reason": result.stop_reason,
                **(
                    {}
                    if self._top is None
                    else {"logprobs": [self._told(one) for one in result.logprobs or ()]}
                ),
            }
            for index, result in enumerate(results)
        ]
        return {"texts": texts, **self._ending(results)}

    def _ending(self, results: list[Result]) -> dict[str, Any]:
        first = results[0].usage
        completion = sum(result.usage.completion_tokens for result in results)
        seconds = self._state.settings.sequence_seconds
        return {
            "sequence": describe(self._entry, seconds),
            "usage": {
                "prompt_tokens": first.prompt_tokens,
                "completion_tokens": completion,
                "total_tokens": first.prompt_tokens + completion,
                "cached_tokens": first.cached_tokens,
                "edit_mode": first.edit_mode,
                "drafted_tokens": sum(result.usage.drafted_tokens for result in results),
                "accepted_tokens": sum(result.usage.accepted_tokens for result in results),
                **self.generation.warnings,
            },
            "timings": self.generation.timings(results),
        }

    def _told(self, token: Token) -> dict[str, Any]:
        found: dict[str, Any] = {"token": token.id, "text": token.text}
        if self._top is not None:
            found["logprob"] = clamp_logprob(token.logprob)
            found["top"] = [
                {
                    "token": one.token,
                    "text": self.tokenizer.spelled(one.token),
                    "logprob": clamp_logprob(one.logprob),
                }
                for one in token.top[: self._top]
            ]
        return found

    def add(self, index: int, token: Token, result: Result | None) -> str:
        """The event of a token, and behind the last one that of the end."""
        is_shown = token.id is not None and (
            result is None or result.finish_reason != "stop" or bool(token.text)
        )
        out = event({"index": index, **self._told(token)}) if is_shown or token.text else ""
        if result is not None:
            self._results[index] = result
            ends = {"finish_reason": result.finish_reason, "stop_reason": result.stop_reason}
            out += event({"index": index, **ends})
        return out

    async def end(self) -> bytes:
        """The sequence, and what it took."""
        results = [self._results[index] for index in sorted(self._results)]
        return event(await in_thread(self._state, lambda: self._ending(results))).encode() + DONE
