"""Reads of an engine's tables from the event loop, which never waits for the engine's lock."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from stretto.llm import LLM

Value = TypeVar("Value")

POLL_SECONDS = 0.1  # after which a read that no step has done is tried again


async def soon(llm: LLM, future: Future[Value]) -> Value:
    """The value of a read that was asked for (`llm.cells.reads`); at the end of this step at the latest."""
    reads = llm.cells.reads
    try:
        if not future.done():
            wrapped = asyncio.wrap_future(future)
            while not (await asyncio.wait((wrapped,), timeout=POLL_SECONDS))[0]:
                reads.poll()
        return future.result()
    finally:
        reads.drop(future)
