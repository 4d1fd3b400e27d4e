"""A request's texts, from the model to the client.

A `Generation` holds its model, its texts and its deadline. Whatever ends it (a client that disconnects, an
error, the server's shutdown), it releases all of them at once; the engine frees the cells within a step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import Request

from stretto import Result
from stretto.engine.request import Progress, Summary
from stretto.engine.types import PromptStep
from stretto.server.http.errors import (
    ERROR_STATUS,
    ApiError,
    ClientGone,
    gone,
    note_error,
    translate,
    unsupported,
)
from stretto.server.http.keys import Keys
from stretto.server.http.logs import log_request
from stretto.server.http.registry import Lease, choose_adapter
from stretto.server.http.state import Caller, State, get_caller, get_state

Value = TypeVar("Value")

MAX_WARNINGS = 8  # of a request

REQUEST_ID = "stretto.id"  # key in a scope: the `x-request-id`, set by the guard
FOR_PYTHON = {"logprobs", "best_of", "min_tokens", "hooks", "draft"}  # that the fused loop has not
PRIORITY = "stretto.priority"  # key in a scope: of requests that give way to others
TASKS = "stretto.tasks"  # key in a scope: what a request waits for


class Generation:
    """Running texts of a request: `start`, then `results`, or iterate `texts`; `close` in any case."""

    def __init__(self, state: State, lease: Lease, since: float, request: Request) -> None:
        self._state = state
        self.id: str = request.scope.get(REQUEST_ID, "")
        self.path: str = request.scope["path"]
        self.caller = get_caller(request)
        self.cancelled = False  # by its caller or the operator
        self._tasks: set[asyncio.Future[Any]] = request.scope.setdefault(TASKS, set())
        self.limits = state.settings.limits
        self.max_queue = state.settings.max_queue
        self.max_running = state.settings.max_running
        self.lease = lease
        self.since = since  # when the request arrived, by the monotonic clock
        self.texts: Any = None  # an AsyncTexts, or an async iterator over parallel steps
        self._has_own_timeout = False  # the request's timeout ends it before the server's limit
        self.last: Callable[[], None] | None = None  # called in a thread after the last text
        self.on_close: Callable[[], None] | None = None  # called once, when it is closed
        self.stops: list[str] = []  # strings that may end its texts
        self.is_prompt_only = False  # the token that is sampled behind the prompt is dropped
        self.n_images = 0
        self._priority: int | None = request.scope.get(PRIORITY)
        self._notes: dict[str, Any] = request.scope.get("stretto", {})  # for the answer's head and the log
        self._notes.setdefault("model", self.model)
        self.adapter: Any = None  # of its texts
        self._prompt_begun: float | None = None  # when a stream with progress had its first
        self._first_token: float | None = None  # when a stream with timings sent its first
        self._compiling: asyncio.Future[Any] | None = None  # its grammar
        self._is_stopped = False  # the server shuts down
        state.generations.add(self)

    @classmethod
    async def begin(cls, request: Request, name: str, verb: str = "generate") -> Generation:
        """One with a loaded model that has the verb."""
        state, since = get_state(request), time.monotonic()
        request.scope.setdefault("stretto", {}).setdefault("model", name)
        caller = get_caller(request)
        use = state.part(Keys).of(caller)
        use.enter(lambda: _count_tokens(state, caller))
        try:
            return cls(state, await state.registry.lease(name, verb), since, request)
        except BaseException:
            use.leave(None)
            raise

    @property
    def left(self) -> float:
        """Seconds until the request has to end."""
        left = self.since + self.limits.seconds - time.monotonic()
        if left <= 0:
            most = self.limits.seconds
            raise ApiError(
                503, f"the request had to wait for longer than {most:g} s", code="timeout", retry_after=10
            )
        return left

    def warn(self, param: str, message: str) -> None:
        """Note a field that is not granted, for the answer and the log; an error with `--strict`."""
        if self._state.settings.strict:
            raise unsupported(f"{param}: {message}", param)
        told: list[str] = self._notes.setdefault("warnings", [])
        if len(told) < MAX_WARNINGS and (warning := f"{param}: {message}"[:300]) not in told:
            told.append(warning)

    @property
    def warnings(self) -> dict[str, list[str]]:
        """Fields that were not granted, for `usage`; nothing if there are none."""
        told = self._notes.get("warnings")
        return {"warnings": told} if told else {}

    @property
    def cache_difference(self) -> dict[str, Any]:
        """Where its first prompt that leaves a cached one does so, with its own text there, for `usage`."""
        found: Summary | None = None if self.texts is None else self.texts.summary
        if found is None or not found.differences:
            return {}
        first, decode = found.differences[0], self.lease.llm.tokenizer.decode
        near = {"before": decode(list(first.before)), "after": decode(list(first.after))}
        return {"cache_difference": {"token": first.token, "of": first.of, **near}}

    @property
    def usage_notes(self) -> dict[str, Any]:
        """What `usage` has besides numbers of tokens."""
        found: Summary | None = None if self.texts is None else self.texts.summary
        edited = {"edit_mode": found.edit_mode} if found is not None and found.edit_mode else {}
        return {**self.warnings, **self.cache_difference, **edited}

    def leave_out(self, name: str) -> None:
        """Note a part of the request that is not in the prompt, for the answer's head and the log."""
        self._notes["left_out"] = name

    def take_images(self, n: int) -> None:
        """Count the request's images; they take memory until it ends, and all requests share that."""
        held, most = sum(other.n_images for other in self._state.generations), self.limits.all_images
        if held + n > most:
            message = f"{held} images are being processed; at most {most} are at once: try again"
            raise ApiError(429, message, code="busy", retry_after=1)
        self.n_images = n

    async def start(self, prompts: list[Any], options: dict[str, Any], *, follow: bool = False) -> None:
        """Queue the texts, all or none; with `follow` news come while prompts are computed too."""
        settings = self._state.settings
        options = {"repeat_guard": settings.repeat_guard, **settings.defaults, **options}
        stops = options.get("stop") or []
        self.stops = [stops] if isinstance(stops, str) else list(stops)
        timeout, left = options.get("timeout"), self.left
        self._has_own_timeout = timeout is not None and timeout < left
        options["timeout"] = min(timeout, left) if timeout is not None else left
        if self.lease.llm.backend.capabilities.fused and not FOR_PYTHON & options.keys():
            options["loop"] = "fused"
        if (grammar := options.get("grammar")) is not None:
            options["grammar"] = await self._compiled(grammar)
        choose_adapter(options, self.lease)
        self.adapter = options.get("adapter")
        options["cache_salt"] = self.caller.salt or None
        if self._priority is not None:
            options["priority"] = self._priority
        if options.get("top_p") == 0:  # the most probable token alone
            options["top_k"] = 1
            del options["top_p"]
        self.is_prompt_only = options.get("max_tokens") == 0
        if self.is_prompt_only:
            options["max_tokens"] = 1
        self.texts = self.lease.llm.astream_many(prompts, **options)
        self.texts.follows_prompts = follow
        self.texts.splits_ends = True  # a reader waits for a token, not for what is done behind it
        await self.texts.start()

    async def results(self) -> list[Result]:
        """All texts, when they are done."""
        results = [self._check(result) for result in await self.texts.results()]
        await self.finish()
        return results

    def result(self, index: int) -> Result:
        """One text, when its last token has come."""
        return self._check(self.texts.result(index))

    async def finish(self) -> None:
        """Call `last`, once all texts are done."""
        self.check_cancelled()
        if self._is_stopped and self.texts.summary and "cancelled" in self.texts.summary.reasons:
            raise _shutting_down()
        if self.last is not None:
            last, self.last = self.last, None
            await asyncio.to_thread(last)

    def _check(self, result: Result) -> Result:
        """The result as it is sent; raises if there is nothing to return."""
        self.check_cancelled()
        if result.finish_reason == "cancelled":
            raise _shutting_down()
        if result.finish_reason == "timeout" and not result.tokens and not self._has_own_timeout:
            raise ApiError(
                503, "no token came before the time limit of the request", code="timeout", retry_after=10
            )
        return _emptied(result) if self.is_prompt_only else result

    def check_cancelled(self) -> None:
        """Raise if it was cancelled."""
        if self.cancelled:
            raise make_cancelled()

    def timings(self, results: list[Result]) -> dict[str, float]:
        """Seconds and speeds, for the answer; then the same by llama-server's names, in milliseconds."""
        first = min(result.timings.first_token for result in results)
        decode = max(result.timings.decode for result in results)
        decoded = sum(result.timings.n_decoded for result in results)
        cached = sum(result.usage.cached_tokens for result in results)
        computed = sum(result.usage.prompt_tokens for result in results) - cached
        return {
            "load": round(self.lease.waited, 6),
            "first_token": round(first, 6),
            "decode": round(decode, 6),
            "total": round(time.monotonic() - self.since, 6),
            "tokens_per_second": round(decoded / decode, 3) if decode > 0 else 0.0,
            "cache_n": cached,
            **_rate("prompt", computed, first, computed),
            **_rate("predicted", sum(result.usage.completion_tokens for result in results), decode, decoded),
        }

    def timings_now(self, n_tokens: int) -> dict[str, float]:
        """The same by llama-server's names, of a text that has so many tokens so far."""
        now = time.monotonic()
        if self._first_token is None:
            self._first_token = now
        progress = self.progress
        computed = progress.prompt_tokens - progress.cached_tokens
        return {
            "cache_n": progress.cached_tokens,
            **_rate("prompt", computed, self._first_token - self.since, computed),
            **_rate("predicted", n_tokens, now - self._first_token, n_tokens - 1),
        }

    def prompt_timings(self, step: PromptStep) -> dict[str, float]:
        """The same while a prompt is computed."""
        if self._prompt_begun is None:
            self._prompt_begun = step.time
        n = step.processed - step.cached
        return {
            "cache_n": step.cached,
            **_rate("prompt", n, step.time - self._prompt_begun, n),
            **_rate("predicted", 0, 0.0, 0),
        }

    def prompt_progress(self, step: PromptStep) -> dict[str, Any]:
        """llama-server's field of that name."""
        ms = int(self.prompt_timings(step)["prompt_ms"])
        return {"total": step.total, "cache": step.cached, "processed": step.processed, "time_ms": ms}

    def spent(self) -> dict[str, float]:
        """Seconds, for answers without generated tokens."""
        return {"load": round(self.lease.waited, 6), "total": round(time.monotonic() - self.since, 6)}

    async def _compiled(self, grammar: Any) -> Any:
        """The grammar, compiled; raises if the server shuts down meanwhile."""
        work = self.lease.llm.compile_grammar(grammar, self.caller.name)
        self._compiling = asyncio.ensure_future(work)
        try:
            return await self._compiling
        except asyncio.CancelledError:
            if not self._is_stopped:
                raise
            raise _shutting_down() from None

    def stop(self) -> None:
        """Cancel its texts: the server shuts down."""
        self._is_stopped = True
        if self._compiling is not None:
            self._compiling.cancel()
        if self.texts is not None:
            self.texts.cancel()

    def cancel(self) -> None:
        """End it by its caller's or the operator's word: its client gets an error that says so."""
        self.cancelled = True
        if self.texts is not None and self.texts.progress is not None:
            self.texts.cancel()
        else:
            for task in tuple(self._tasks):
                task.cancel()

    @property
    def model(self) -> str:
        """The name of its model."""
        return self.lease.model.name

    @property
    def progress(self) -> Progress:
        """How far it is."""
        if self.texts is None:  # it has none, or none yet
            return Progress("running")
        return self.texts.progress or Progress("waiting")

    def note(self, **facts: Any) -> None:
        """Put facts into the request's log line."""
        self._notes.update(facts)

    def note_error(self, error: ApiError) -> None:
        """Put an error behind the answer's head into the log line."""
        note_error(self._notes, error)

    def log_end(self) -> None:
        """Write the log line of a response that was made while its client did not wait."""
        notes = {**self._notes, "background": True}
        status: int = notes.get(ERROR_STATUS, 200)
        log_request(self._state.settings, "POST", self.path, self.caller, self.id, self.since, status, notes)

    def close(self) -> None:
        """Cancel the texts and release the model. Closing twice is fine."""
        if self in self._state.generations:
            self._state.generations.discard(self)
            summary = self._note_summary()
            self._state.part(Keys).of(self.caller).leave(summary)
            if self.texts is not None:
                self.texts.cancel()
            self.lease.release()
            if self.on_close is not None:
                self.on_close()

    def _note_summary(self) -> Summary | None:
        """Put into the log line what the texts took."""
        found: Summary | None = None if self.texts is None else self.texts.summary
        if found is None:
            return None
        seconds = {"queued_ms": found.queued, "first_token_ms": found.first_token}
        reasons = [reason or "cancelled" for reason in found.reasons]
        self.note(
            prompt_tokens=found.prompt_tokens,
            cached_tokens=found.cached_tokens,
            completion_tokens=0 if self.is_prompt_only else found.tokens,
            **{name: round(1e3 * value, 1) for name, value in seconds.items() if value is not None},
            finish_reason=",".join(dict.fromkeys(reasons)),
        )
        if found.differences:
            first = found.differences[0]
            self.note(differs=f"from a cached prompt at token {first.token:,} of {first.of:,}")
        if found.edit_mode:
            self.note(edit_mode=found.edit_mode)
        return found


def _count_tokens(state: State, caller: Caller) -> int:
    """The tokens computed so far for the requests of a caller that run."""
    steps = [one.progress for one in state.generations if one.caller.name == caller.name]
    return sum(step.prompt_tokens - step.cached_tokens + step.tokens for step in steps)


def _emptied(result: Result) -> Result:
    """The result of a prompt alone."""
    if result.finish_reason in ("cancelled", "timeout"):
        return result
    usage = replace(result.usage, completion_tokens=0, reasoning_tokens=0)
    empty = replace(result, text="", tokens=[], reasoning="", answer_start=0, tool_calls=(), usage=usage)
    return replace(
        empty, finish_reason="length", stop_reason=None, logprobs=None if result.logprobs is None else []
    )


@asynccontextmanager
async def lease_model(
    request: Request, name: str, *fields: str, verb: str = "generate"
) -> AsyncIterator[Generation]:
    """A generation with a loaded model that has the verb, for as long as the block runs.

    Waiting for the model ends if the client disconnects; `fields` are for the errors.
    """
    generation = await unless_gone(request, Generation.begin(request, name, verb), Generation.close)
    try:
        yield generation
    except Exception as error:
        raise translate(error, *fields) from error
    finally:
        generation.close()


async def unless_gone(
    request: Request, work: Awaitable[Value], too_late: Callable[[Value], None] | None = None
) -> Value:
    """The result of `work`; if the client disconnects first, the work is cancelled and `ClientGone` raised.

    `too_late` gets a result that came in the moment of the cancellation.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(gone(request.receive))
    tasks = request.scope.setdefault(TASKS, set())
    tasks.add(task)
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.cancelled():
            raise make_cancelled()
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        tasks.discard(task)
        watch.cancel()
        if not task.done():
            task.cancel()
            with suppress(BaseException):
                late = await task
                if too_late is not None:
                    too_late(late)


def _rate(name: str, n: int, seconds: float, n_timed: int) -> dict[str, float]:
    """So many tokens, and the time and speed of those of them that the time is for."""
    ms = round(1000 * seconds, 3)
    timed = n_timed if n_timed > 0 and ms > 0 else 0
    return {
        f"{name}_n": n,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / timed if timed else 0.0,
        f"{name}_per_second": 1000 * timed / ms if timed else 0.0,
    }


def _shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down", retry_after=5)


def make_cancelled() -> ApiError:
    """The error of a request that was cancelled; its status is one that clients do not retry."""
    return ApiError(410, "the request was cancelled here, by its owner or the operator", code="cancelled")
