"""Several texts at once for asyncio: the texts of many prompts, or many of one, as they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from stretto.engine.aio import start
from stretto.engine.branch import Branches
from stretto.engine.news import News
from stretto.engine.progress import Progress, progress_of
from stretto.engine.request import Request
from stretto.engine.types import PromptStep, Result, Token
from stretto.engine.worker import Worker


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
        self._requests: list[Request[Any]] = []
        self._news: News | None = None
        self.follows_prompts = False  # lists may be empty then: `prompt_steps` has something new
        self.splits_ends = False  # a last token may come before its request has ended, the end behind it

    async def start(self) -> None:
        """Make the requests and queue them, all or none. Iterating does it too."""
        if self._news is None:
            self._news = News()
            made = await start(self._worker, self._begin, self._news)
            self._requests = [request for group in made for request in group]

    @property
    def progress(self) -> Progress | None:
        """How far they are; None before they have started."""
        firsts = [branches.requests[0] for branches in self._branches]
        return progress_of(self._requests, firsts) if self._requests else None

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
            while not (found := self._take()):
                if any(request.prompt_steps for request in self._requests):
                    return []
                if all(request.finished and not request.output.events for request in self._requests):
                    self._check()
                    raise StopAsyncIteration
                await self._news.wait()
            return found
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _take(self) -> list[tuple[int, Token]]:
        self._check()
        found: list[tuple[int, Token]] = []
        for index, request in enumerate(self._requests):
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
        for index, request in enumerate(self._requests):
            while request.prompt_steps:
                found.append((index, request.prompt_steps.popleft()))
        return found

    def _check(self) -> None:
        """If one of them has failed, none is wanted."""
        for request in self._requests:
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
        result: Result = self._requests[index].result()
        return result

    def cancel(self) -> None:
        """End all of them within one step."""
        for request in self._requests:
            request.abandon()

    def __del__(self) -> None:
        self.cancel()


def _can_split(last: Token) -> bool:
    """Whether all of a text's last token but its end is known before the request has ended."""
    return last.finish_reason == "length" and bool(last.text) and last.logprob is None
