"""Downloads of models while the server runs: one at a time, with progress, cancelled when the client leaves.

The download itself is `hub.pull` in a thread; a model that is made here (`ollama_create.py`) is other work of
the same kind. What it reports is kept as the latest progress; the client gets it a few times a second.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from stretto.errors import Cancelled, InvalidRequest
from stretto.loading.choose import check_download
from stretto.server.http.errors import ApiError, field_error, translate, write_error
from stretto.server.http.state import State
from stretto.server.settings import ModelEntry
from stretto.weights import hub
from stretto.weights.hub.catalogue import CATALOGUE
from stretto.weights.hub.names import HF_PREFIX, canonical, is_repository

REPORT_SECONDS = 0.25  # between two events
HEARTBEATS = 40  # reports without progress, then the last one is repeated: proxies close silent connections


def check_source(text: str) -> str:
    """A name of a catalogue, or `hf:org/repo…`; nothing else is fetched, and no path or link is opened."""
    if text in hub.packaged_models() or text in CATALOGUE:
        return text
    if text.startswith(HF_PREFIX) or is_repository(text):
        try:
            return canonical(HF_PREFIX + text.removeprefix(HF_PREFIX))
        except InvalidRequest as error:
            raise field_error("source", str(error)) from None
    raise field_error(
        "source",
        f"source: there is no model {text[:100]!r} to fetch; /stretto/catalogue lists the names, and "
        "hf:org/repo:Q4_K_M fetches from the Hugging Face Hub. Files of this machine need --model",
    )


class Pull:
    """A download for a registry, begun at once; `stop` ends it, and nothing of the model is left then.

    `work` does something else in place of it, and `undo` removes its model if that cannot be served.
    """

    def __init__(
        self,
        state: State,
        entry: ModelEntry,
        work: Callable[[hub.Progress], Any] | None = None,
        undo: Callable[[], Any] | None = None,
    ) -> None:
        if state.pull is not None:
            raise ApiError(
                429,
                "another model is being fetched or made; wait for it",
                param="source",
                code="busy",
                retry_after=10,
            )
        state.registry.require_free(entry)
        state.pull = self
        self._state = state
        self._entry = entry
        self._progress: tuple[int, int, str] = (0, 0, "starting")
        self.stopped = threading.Event()
        self._undo = undo
        self.error: ApiError | None = None  # that ended it
        self._work = asyncio.ensure_future(asyncio.to_thread(work or self._pull, self._report))
        self._work.add_done_callback(self._forget)  # not before the thread is done, whoever has gone

    def stop(self) -> None:
        """End the download at its next report."""
        self.stopped.set()

    def _pull(self, report: hub.Progress) -> None:
        hub.pull(self._entry.source, progress=report, check=check_download)

    def _report(self, done: int, total: int, what: str) -> None:
        """Keep the progress; called in the thread."""
        if self.stopped.is_set():
            raise Cancelled("the download was stopped")
        self._progress = (done, total, what)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The progress, then the model's name or an error."""
        shown, silent = None, 0
        try:
            while not self._work.done():
                await asyncio.wait([self._work], timeout=REPORT_SECONDS)
                silent += 1
                if self._progress != shown or silent >= HEARTBEATS:
                    shown, silent = self._progress, 0
                    done, total, what = shown
                    yield {"status": what, "completed": done, "total": total}
            self._work.result()
            yield {"done": await self._serve()}
        except Exception as error:
            self.error = translate(error, "source")
            yield write_error(self.error, "/stretto/")

    async def _serve(self) -> str:
        """Serve the model; returns its name."""
        try:
            return (await self._state.registry.add(self._entry)).name
        except Exception:
            if self._undo is not None:
                await asyncio.to_thread(self._undo)
            raise

    async def wait(self, seconds: float) -> None:
        """Wait for the thread after `stop`."""
        await asyncio.wait([self._work], timeout=seconds)

    def _forget(self, work: asyncio.Future[Any]) -> None:
        self._state.pull = None
        if not work.cancelled():
            work.exception()  # noted, also if nobody waits for it
