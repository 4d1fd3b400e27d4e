"""The edge to asyncio: an async iterator over tokens, and results to await.

Nothing here blocks the event loop: requests are made in a thread of its executor, and the engine's worker
steps them. A task that is cancelled, a loop that is left, an iterator that is forgotten: the request ends
within one step, and its cells are free.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stretto.engine.branch import Branches
from stretto.engine.request import Progress, Request, Summary, measure_progress, summarize_requests
from stretto.engine.types import PromptStep, Result, Token
from stretto.engine.worker import LoopNotifier, Worker

if TYPE_CHECKING:
    from typing_extensions import Self


Event = TypeVar("Event")


class AsyncEventStream(Generic[Event]):
    """Iterate it with `async for`; a loop that is left cancels the request and frees its cells."""

    def __init__(self, worker: Worker, make: Callable[[], Request[Any]]) -> None:
        self._worker = worker
        self._make = make
        self.request: Request[Any] | None = None
        self._events: deque[Event] = deque()
        self._news: LoopNotifier | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        request = self.request
        if request is None or self._news is None:
            self._news = LoopNotifier()
            ((request,),) = await start(self._worker, self._begin, self._news)
            self.request = request
        try:
            while not self._events and not request.finished:
                await self._news.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._events:
            return self._events.popleft()
        if request.error is not None:
            raise request.error
        raise StopAsyncIteration

    @property
    def progress(self) -> Progress | None:
        """How far it is; None before it has started."""
        return None if self.request is None else measure_progress([self.request], [self.request])

    @property
    def summary(self) -> Summary | None:
        """What it took so far; None before it has started."""
        return None if self.request is None else summarize_requests([self.request], [self.request])

    def _begin(self) -> list[list[Request[Any]]]:
        request = self._make()
        self._events = request.output.events
        return [[request]]

    async def _exhausted(self) -> Request[Any]:
        """The request, when all its events have been taken."""
        async for _ in self:
            pass
        assert self.request is not None
        return self.request

    def cancel(self) -> None:
        """End the generation within one step."""
        if self.request is not None:
            self.request.abandon()

    def __repr__(self) -> str:
        state = "not started" if self.request is None else "ended" if self.request.finished else "running"
        return f"<{type(self).__name__}, {state}>"

    async def aclose(self) -> None:
        """End the generation within one step."""
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()


class AsyncStream(AsyncEventStream[Token]):
    """Iterate it with `async for`; `await stream.result()` is the whole when it has ended.

    async for token in llm.astream("Once upon a time"):
        print(token.text, end="", flush=True)
    """

    async def result(self) -> Result:
        """The whole result; finishes the generation first."""
        result: Result = (await self._exhausted()).result()
        return result


async def start(
    worker: Worker,
    make: Callable[[], list[list[Request[Any]]]],
    news: LoopNotifier,
) -> list[list[Request[Any]]]:
    """Make groups of requests in a thread and queue the first of each, which starts the others.

    `news` is told whenever any of them has something new.
    """
    made: list[list[Request[Any]]] = []
    held: list[weakref.ref[Request[Any]]] = []  # `made` would be a cycle: requests know `news` by `notify`

    def forget(task: asyncio.Future[None]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved here, or asyncio would log it
        abandon()

    def abandon() -> None:
        for reference in held:
            if (request := reference()) is not None:
                request.abandon()

    def notify() -> None:
        worker.tell(news)

    def work() -> None:
        made.extend(make())
        for group in made:
            for request in group:
                request.set_notify(notify)
                held.append(weakref.ref(request))
        try:
            worker.add(made)
        except BaseException:
            worker.cancel(made)
            raise

    news.forget = abandon
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except BaseException:  # cancelled, or one of them was refused: none of them is wanted then
        task.add_done_callback(forget)
        raise
    return made


async def finished(worker: Worker, make: Callable[[], list[list[Request[Any]]]]) -> None:
    """Make requests and wait until all of them have finished; a cancelled task ends them."""
    news = LoopNotifier()
    made = await start(worker, make, news)
    requests = [request for group in made for request in group]
    try:
        while not all(request.finished for request in requests):
            await news.wait()
    except asyncio.CancelledError:
        for request in requests:
            request.abandon()
        raise


async def finished_pass(worker: Worker, make: Callable[[], Request[Any]]) -> Any:
    """Make a request in a thread, wait until it has finished, and return its result."""
    made: list[Request[Any]] = []

    def begin() -> list[list[Request[Any]]]:
        made.append(make())
        return [made]

    await finished(worker, begin)
    return made[0].result()


# Several texts at once for asyncio: the texts of many prompts, or many of one, as they come.


class AsyncTexts:
    """Iterate it for lists of (index of the text, `Token`), all that has come since the last list.

    texts = llm.astream_many(["One", "Two"], n=2)       # texts 0 and 1 are of the first prompt
    async for news in texts:
        for index, token in news:
            print(index, token.text)
    await texts.results()
    """

    def __init__(
        self, worker: Worker, make: Callable[[list[Any]], list[Branches]], prompts: list[Any]
    ) -> None:
        self._worker = worker
        self._make = make
        self._prompts = prompts
        self._branches: list[Branches] = []
        self.requests: list[Request[Any]] = []
        self._news: LoopNotifier | None = None
        self.follows_prompts = False  # lists may be empty then: `prompt_steps` has something new
        self.splits_ends = False  # a last token may come before its request has ended, the end behind it

    async def start(self) -> None:
        """Make the requests and queue them, all or none. Iterating does it too."""
        if self._news is None:
            self._news = LoopNotifier()
            made = await start(self._worker, self._begin, self._news)
            self.requests = [request for group in made for request in group]

    @property
    def progress(self) -> Progress | None:
        """How far they are; None before they have started."""
        firsts = [branches.requests[0] for branches in self._branches]
        return measure_progress(self.requests, firsts) if self.requests else None

    @property
    def summary(self) -> Summary | None:
        """What they took so far; None before they have started."""
        firsts = [branches.requests[0] for branches in self._branches]
        return summarize_requests(self.requests, firsts) if self.requests else None

    def _begin(self) -> list[list[Request[Any]]]:
        self._prompts = [prompt() if callable(prompt) else prompt for prompt in self._prompts]
        self._branches = self._make(self._prompts)
        if self.follows_prompts:
            for branches in self._branches:
                branches.requests[0].prompt_steps = deque()
        return [branches.requests for branches in self._branches]

    def __aiter__(self) -> AsyncIterator[list[tuple[int, Token]]]:
        return self

    async def __anext__(self) -> list[tuple[int, Token]]:
        if self._news is None:
            await self.start()
        assert self._news is not None
        try:
            while not (found := self.take()):
                if any(request.prompt_steps for request in self.requests):
                    return []
                if all(request.finished and not request.output.events for request in self.requests):
                    self._check()
                    raise StopAsyncIteration
                await self._news.wait()
            return found
        except asyncio.CancelledError:
            self.cancel()
            raise

    def take(self) -> list[tuple[int, Token]]:
        """What has come and has not been taken yet, of all texts."""
        self._check()
        found: list[tuple[int, Token]] = []
        for index, request in enumerate(self.requests):
            events = request.output.events
            # The last one is handed out when the request has really ended, and its result is there.
            while events and (events[0].finish_reason is None or request.finished):
                found.append((index, events.popleft()))
            if self.splits_ends and events and _can_split(events[0]):
                found.append((index, events[0]._replace(finish_reason=None)))
                events[0] = Token(None, "", finish_reason="length")
        return found

    def prompt_steps(self) -> list[tuple[int, PromptStep]]:
        """How far prompts are computed, with the index of the first text of each; each step once."""
        found: list[tuple[int, PromptStep]] = []
        for index, request in enumerate(self.requests):
            while request.prompt_steps:
                found.append((index, request.prompt_steps.popleft()))
        return found

    def _check(self) -> None:
        """If one of them has failed, none is wanted."""
        for request in self.requests:
            if request.error is not None:
                self.cancel()
                raise request.error

    async def results(self) -> list[Result]:
        """All results, those of the first prompt first; finishes all texts before it returns."""
        async for _ in self:
            pass
        found: list[Result] = []
        for branches in self._branches:
            result = branches.results()
            found += result if isinstance(result, list) else [result]
        return found

    def result(self, index: int) -> Result:
        """The result of one text, once its last token has come."""
        result: Result = self.requests[index].result()
        return result

    def cancel(self) -> None:
        """End all of them within one step."""
        for request in self.requests:
            request.abandon()

    def __del__(self) -> None:
        self.cancel()


def _can_split(last: Token) -> bool:
    """Whether all of a text's last token but its end is known before the request has ended."""
    return last.finish_reason == "length" and bool(last.text) and last.logprob is None
