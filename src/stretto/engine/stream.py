"""A request as an iterator: the thread that takes its next event steps the engine for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stretto.engine.engine import Engine
from stretto.engine.output import TextOutput
from stretto.engine.request import Request
from stretto.engine.types import Result, Token

if TYPE_CHECKING:
    from typing_extensions import Self

Event = TypeVar("Event")


class EventStream(Generic[Event]):
    """Iterate it for the events of a request; `cancel()` ends it, as does leaving a `with`."""

    def __init__(self, engine: Engine, request: Request[Any]) -> None:
        self._engine = engine
        self.request = request
        self._events: deque[Event] = request.output.events  # not taken yet
        request.single_steps = True
        try:
            engine.add(request)
        except BaseException:
            self.cancel()
            raise

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        request, events = self.request, self._events
        while True:
            ended = request.finished  # asked first: its last event is there by then
            if events:
                try:
                    return events.popleft()
                except IndexError:  # another thread took it
                    pass
            if ended:
                break
            try:
                self._engine.step_until(lambda: bool(events) or request.finished)
            except BaseException:  # Ctrl-C in the middle of a step: the cells are given back at once
                self.cancel()
                raise
        if request.error is not None:
            raise request.error
        raise StopIteration

    def cancel(self) -> None:
        """End the request, from any thread; its cells are free then. Its events stay readable."""
        with self._engine.lock:
            self.request.cancel()

    def close(self) -> None:
        """The same as `cancel`, as generators have it."""
        self.cancel()

    def __repr__(self) -> str:
        state = "ended" if self.request.finished else "running"
        return f"<{type(self).__name__}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        # A forgotten stream would keep its cells for ever. This may be called in the
        # middle of anything, so the next step ends it.
        self.request.abandon()


class TextStream(EventStream[Token]):
    """Iterate it for `Token`s; `result` is the whole when it has ended, `cancel()` ends it.

    stream = llm.stream("Once upon a time")
    for token in stream:
        print(token.text, end="", flush=True)
    stream.result.timings.tokens_per_second
    """

    @property
    def result(self) -> Result:
        """The whole result; finishes the generation first."""
        for _ in self:
            pass
        result: Result = self.request.result()
        return result

    @property
    def text(self) -> str:
        """The text so far."""
        output: TextOutput = self.request.decoder.output
        return output.text

    def __repr__(self) -> str:
        text = self.text
        shown = text if len(text) <= 60 else f"…{text[-57:]}"
        return f"{super().__repr__()[:-1]}: {shown!r}>"
