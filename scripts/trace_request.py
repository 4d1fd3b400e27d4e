"""Which files of src/stretto a request enters, and by how many calls (docs/explanation/architecture.md).

python scripts/trace_request.py                 two tokens by `llm.generate`, and a chat request to the server
python scripts/trace_request.py --list          the files too, in the order in which they are entered
python scripts/trace_request.py --model m.gguf  another model than smollm2
"""

import argparse
import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

SOURCES = f"{Path(__file__).resolve().parent.parent / 'src' / 'stretto'}/"
CHAT = {"messages": [{"role": "user", "content": "What is a fugue?"}], "max_tokens": 2, "temperature": 0}


class Trace:
    """Counts calls by file while it is on, in every thread that began after it was made."""

    def __init__(self):
        self.calls = {}
        self._is_on = False
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame, event, _):
        if self._is_on and event == "call" and (file := frame.f_code.co_filename).startswith(SOURCES):
            name = file[len(SOURCES) :]
            self.calls[name] = self.calls.get(name, 0) + 1

    def __enter__(self):
        self.calls.clear()
        self._is_on = True
        return self

    def __exit__(self, *_):
        self._is_on = False

    def show(self, what, with_files):
        """Print how many files were entered, and how many calls."""
        print(f"{what}: {len(self.calls)} files, {sum(self.calls.values())} calls")
        if with_files:
            print("".join(f"  {n:5} {name}\n" for name, n in self.calls.items()))


async def ask(app: Any, body: dict[str, Any]) -> int:
    """The status of a chat request to an app that has started."""
    import httpx

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return (await client.post("/v1/chat/completions", json=body)).status_code


async def chat(trace: Trace, path: str) -> None:
    """Start a server in this process, ask it once so that the model is loaded, and once with the trace on."""
    from stretto.server.app import create_app
    from stretto.server.settings import ModelEntry, Settings

    app: Any = create_app(Settings((ModelEntry.parse(path),)))
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    lifespan = asyncio.create_task(
        app({"type": "lifespan", "asgi": {"version": "3.0"}}, events.get, said.put)
    )
    await events.put({"type": "lifespan.startup"})
    if (await said.get())["type"] != "lifespan.startup.complete":
        raise SystemExit("the server did not start")
    assert await ask(app, CHAT) == 200
    other = {**CHAT, "messages": [{"role": "user", "content": "And a canon?"}]}
    with trace:
        assert await ask(app, other) == 200
    await events.put({"type": "lifespan.shutdown"})
    await said.get()
    await lifespan


def main() -> None:
    """Trace both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="a name or a path")
    parser.add_argument("--list", action="store_true", help="print the files")
    given = parser.parse_args()
    trace = Trace()

    import stretto

    with stretto.load(given.model, threads=1) as llm:
        llm.generate("Once upon a time", max_tokens=2, seed=1)
        with trace:
            llm.generate("The capital of France is", max_tokens=2, seed=1)
        trace.show("llm.generate, two tokens", given.list)
    asyncio.run(chat(trace, given.model))
    trace.show("POST /v1/chat/completions, two tokens", given.list)


if __name__ == "__main__":
    main()
