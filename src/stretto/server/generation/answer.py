"""Answers: what a protocol makes of the texts of a request, whole or token by token.

Every protocol has an `Answer` of its own, and none knows how texts come: `respond` reads them, and sends what
its methods write. Answers without texts are JSON, written in a thread where there is much of it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stretto import Result, Token, __version__
from stretto.engine.types import PromptStep
from stretto.server.generation.generation import Generation, unless_gone
from stretto.server.http.errors import (
    CLIENT_GONE,
    ERROR_STATUS,
    ApiError,
    Json,
    dumps,
    translate,
    write_error,
)
from stretto.server.http.streaming import DIRECT, EVENTS, OpenResponse, event

FINGERPRINT = f"stretto-{__version__}"
LOWEST = -9999.0  # stands for −∞, which JSON does not have

PIECE_VALUES = 4096  # written at a time, in a few milliseconds
DRAIN_SECONDS = 30.0  # that a client may take after the end to read the rest


class Answer(ABC):
    """The texts of one request as a protocol writes them.

    `write` is for streams, and calls `add` for each token; an answer of other things than texts has its own.
    """

    media_type = EVENTS

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.tokenizer = generation.lease.llm.tokenizer

    @abstractmethod
    def whole(self, results: Any) -> Any:
        """The answer in one piece."""

    def count_values(self, results: Any) -> int:
        """About how many values it has beside the texts."""
        return 0

    def write(self, news: Any) -> bytes:
        """The chunks of what a step of the engine has brought."""
        generation, texts = self.generation, self.generation.texts
        out = [self.progress(*step) for step in texts.prompt_steps()] if texts.follows_prompts else []
        for index, token in news:
            result = None if token.finish_reason is None else generation.result(index)
            if generation.is_prompt_only:
                if result is None:
                    continue
                token = Token(None, "", finish_reason="length")
            out.append(self.add(index, token, result))
        return "".join(out).encode()

    def add(self, index: int, token: Token, result: Result | None) -> str:
        """The chunks of a token; the last one of a text comes with its result."""
        raise NotImplementedError

    def progress(self, index: int, step: PromptStep) -> str:
        """The chunk of a step that has computed a part of a prompt, where a request asks for these."""
        return ""

    async def end(self) -> bytes:
        """The last chunk, once all texts have ended."""
        return b""

    def fail(self, error: ApiError) -> bytes:
        """The last chunk after an error, which is an event too."""
        return event(write_error(error, self.generation.path)).encode()


Made = TypeVar("Made", bound=Answer)


async def start_answer(
    request: Request, name: str, start: Callable[[Generation], Awaitable[Made]], *fields: str
) -> Made:
    """The answer of a generation that `start` has started; `fields` are for the errors.

    It is cancelled if the client disconnects meanwhile.
    """

    async def work() -> Made:
        generation = await Generation.begin(request, name)
        try:
            return await start(generation)
        except BaseException as error:
            generation.close()
            if isinstance(error, Exception):
                raise translate(error, *fields) from error
            raise

    return await unless_gone(request, work(), lambda made: made.generation.close())


async def respond(request: Request, answer: Answer, stream: bool | None) -> Response:
    """Send the texts of an answer that has been started: as they come, or when they are whole."""
    generation = answer.generation
    try:
        if stream:
            return Streamed(answer, generation.texts)
        results = await unless_gone(request, generation.results())
        n_values = answer.count_values(results)
        if n_values <= PIECE_VALUES:
            whole = answer.whole(results)
        else:
            whole = await asyncio.to_thread(answer.whole, results)
        generation.close()
        return await long_json(whole, n_values)
    except BaseException:
        generation.close()
        raise


class Streamed(OpenResponse):
    """Streams an answer; closes its generation at the end, whatever the reason.

    A chunk is sent after every step that has new tokens: the engine wakes the event loop once for all
    streams, and chunks go to the connection directly, past the middleware. Meanwhile the connection is
    watched: if the client disconnects, the generation is cancelled.
    """

    def __init__(self, answer: Answer, news: AsyncIterator[Any]) -> None:
        super().__init__(answer.media_type)
        self._generation = answer.generation
        self._news = news
        self._answer = answer
        self._seconds = self._generation.left
        self._is_done = False  # all of it was sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks."""
        work = self._send(send, scope.get(DIRECT, send))
        # The generation is closed at once: the next step frees the cells.
        await self.send_until(work, receive, self._generation.close, timeout=self._seconds + DRAIN_SECONDS)
        if not self._is_done:
            self._generation.note(**{"error": "client_gone", ERROR_STATUS: CLIENT_GONE})

    async def _send(self, send: Send, direct: Send) -> None:
        """Send the head, the chunks and the end. Only the first and the last pass through the middleware."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        take, write = self._news.__anext__, self._answer.write
        while True:
            try:
                piece = write(await take())
            except StopAsyncIteration:
                last = await self._end()
                break
            except Exception as error:
                last = self._fail(error)
                break
            if piece:
                await direct({"type": "http.response.body", "body": piece, "more_body": True})
        self._generation.close()
        await send({"type": "http.response.body", "body": last, "more_body": False})
        self._is_done = True

    async def _end(self) -> bytes:
        try:
            await self._generation.finish()
            return await self._answer.end()
        except Exception as error:
            return self._fail(error)

    def _fail(self, error: Exception) -> bytes:
        found = translate(error)
        self._generation.note_error(found)
        return self._answer.fail(found)


async def long_json(content: Any, n_values: int) -> Response:
    """An answer in JSON with about so many values, written piece by piece: others get their turn."""
    if n_values <= PIECE_VALUES:
        return Json(content)
    body = await asyncio.to_thread(lambda: pieces(content).encode())
    return Response(body, media_type=Json.media_type)


def pieces(value: Any) -> str:
    """`dumps`, by many calls instead of one; nothing else runs while one does."""
    if isinstance(value, dict):
        return "{" + ",".join([f"{dumps(name)}:{pieces(inner)}" for name, inner in value.items()]) + "}"
    if not isinstance(value, list) or not value:
        return dumps(value)
    n = PIECE_VALUES
    if isinstance(value[0], (dict, list)):
        inner = value[0].values() if isinstance(value[0], dict) else value[0]
        if any(isinstance(one, (dict, list)) for one in inner) or len(inner) > PIECE_VALUES:
            return "[" + ",".join([pieces(inner) for inner in value]) + "]"
        n = PIECE_VALUES // max(1, len(inner))  # small records are written together
    return "[" + ",".join([dumps(value[at : at + n])[1:-1] for at in range(0, len(value), n)]) + "]"


# What several protocols write.


def clamp_logprob(logprob: float | None) -> float:
    """A log-probability that JSON can hold."""
    return LOWEST if logprob is None else max(LOWEST, logprob)


def name_limit(result: Result) -> dict[str, str]:
    """A field of our own for answers whose words for an end know one limit only: which one it was.

    "repetition", "context" or "cache full"; nothing for an end by the number of tokens.
    """
    if result.finish_reason == "length" and isinstance(result.stop_reason, str):
        return {"ended_by": result.stop_reason}
    return {"ended_by": "repetition"} if result.finish_reason == "repetition" else {}
