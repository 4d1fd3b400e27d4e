"""The bar of `llm.generate(prompts, progress=True)`: on stderr, with the texts that are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stretto.engine import Request

REFRESH_SECONDS = 0.1


@contextmanager
def progress_bar(requests: list[Request[Any]]) -> Iterator[Callable[[], None]]:
    """Show a bar for the texts of requests while the block runs; the function it yields updates it."""
    from rich.console import Console  # so that only its users import it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("texts{task.description}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
    task = bar.add_task("", total=len(requests))
    begun = shown = time.monotonic()

    def update() -> None:
        n_tokens = sum(len(request.decoder.output.tokens) for request in requests)
        seconds = max(1e-3, time.monotonic() - begun)
        n_done = sum(request.finished for request in requests)
        speed = f", {n_tokens:,} tokens, {n_tokens / seconds:.1f} tok/s"
        bar.update(task, completed=n_done, description=speed, refresh=True)

    def tell() -> None:
        nonlocal shown
        if time.monotonic() >= shown + REFRESH_SECONDS:
            update()
            shown = time.monotonic()

    with bar:
        try:
            yield tell
        finally:
            update()
