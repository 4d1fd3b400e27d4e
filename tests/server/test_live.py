"""`/stretto/live`: figures, requests, log lines and cells as events, for as long as somebody watches."""

import asyncio
import json
import logging
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest

from cell_reader import Reader
from serving import TINY, endless, mock, until, visiting
from stretto.server.http.guard import TextLines
from stretto.server.http.logs import MAX_CHARACTERS, MAX_LINES, LastLines
from stretto.server.http.state import Caller, State
from stretto.server.own.cells import CellEvents
from stretto.server.own.live import MAX_DELAY_SECONDS, MAX_WATCHERS, Live, LiveStream, Watcher
from stretto.server.settings import ModelEntry, Settings

ADMIN = Caller("", True)
LIVE = "/stretto/live?model=mock&cells=1"


def header(key):
    return {"authorization": f"Bearer {key}"}


def parsed(answer):
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@contextmanager
def watching(web, path=LIVE, key=None):
    """The events of a page."""
    with web.stream("GET", path, headers=header(key) if key else {}) as answer:
        assert answer.status_code == 200, answer.read()
        yield parsed(answer)


def first(events, kind):
    return next(event[kind] for event in events if kind in event)


@contextmanager
def generating(running, key=None, **options):
    """A stream that goes on; yields its id and a list of its lines, complete when the block is left."""
    lines, started = [], threading.Event()
    found = {}

    def read():
        body = {"model": "mock", "prompt": "abc", "max_tokens": 900, "stream": True, **options}
        with (
            httpx.Client(base_url=running.url, timeout=60) as web,
            web.stream("POST", "/v1/completions", json=body, headers=header(key) if key else {}) as answer,
        ):
            found["id"] = answer.headers["x-request-id"]
            for line in answer.iter_lines():
                lines.append(line)
                started.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert started.wait(60)
    try:
        yield found["id"], lines
    finally:
        running.state.cancel_all()
        thread.join()


# -- what is shown --


def test_a_page_gets_the_state_and_the_table():
    with visiting(endless(0.002)) as (running, web), watching(web) as events:
        assert first(events, "hello")["admin"] is True
        assert len(first(events, "history")["columns"]["time"]) == 900
        reader = Reader()
        assert next(event["cells"]["n"] for event in events if "cells" in event) == 0  # it is not loaded
        with httpx.Client(base_url=running.url, timeout=60) as other:
            for prompt in ("abc", "abcd", "xyz"):
                body = {"model": "mock", "prompt": prompt, "max_tokens": 30, "n": 2}
                other.post("/v1/completions", json=body)
        seen = set()
        for event in events:
            seen |= event.keys()
            if "cells" in event:
                reader.take(event["cells"])
            if {"stats", "requests"} <= seen and settled(reader, running.llm()):
                break
        reader.check(running.llm())


def settled(reader, llm):
    return reader.sequences and reader.sequences.keys() == set(llm.engine.cells.sequences)


def test_figures_and_requests_of_a_run():
    with visiting(endless(0.005)) as (running, web), generating(running, n=2) as (name, _):
        with watching(web) as events:
            stats = next(e["stats"] for e in events if "stats" in e and e["stats"]["tokens_per_second"])
            (request,) = first(events, "requests")
        assert (stats["running"], stats["waiting"], stats["errors"]) == (2, 0, {"4xx": 0, "5xx": 0})
        assert 0 < stats["gap"]["p50"] <= stats["gap"]["p99"]
        assert stats["memory"]["loaded"] == running.state.registry.loaded_bytes
        assert set(stats["cpu"]) == {"process", "steps", "loop", "helpers"}
        assert stats["models"]["mock"]["cells"]["used"] > 3
        assert (request["id"], request["state"], request["model"]) == (name, "running", "mock")
        assert (request["prompt_tokens"], request["path"]) == (3, "/v1/completions")
        assert request["tokens"] > 0
        assert request["mine"]
        until(lambda: web.get("/stretto/requests").json()["requests"][0]["tokens"] > request["tokens"])
    assert running.state.generations == set()


def test_a_page_that_comes_back_gets_the_table():
    with visiting(endless()) as (running, web):
        for prompt in ("abc", "xyz"):
            web.post("/v1/completions", json={"model": "mock", "prompt": prompt, "max_tokens": 30})
            with watching(web) as events:
                Reader().take(first(events, "cells")).check(running.llm())


# -- who watches, and what it costs --


def test_more_than_eight_watchers_are_refused():
    with visiting() as (running, web):
        clients = [web.stream("GET", "/stretto/live") for _ in range(MAX_WATCHERS)]
        for client in clients:
            assert client.__enter__().status_code == 200
        refused = web.get("/stretto/live")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_watchers")
        assert int(refused.headers["retry-after"]) > 0
        clients.pop().__exit__(None, None, None)
        until(lambda: len(running.live.watchers) < MAX_WATCHERS)
        with watching(web, "/stretto/live") as events:
            assert first(events, "hello")["watchers"] == MAX_WATCHERS
        for client in clients:
            client.__exit__(None, None, None)


def test_nothing_runs_when_nobody_watches():
    with visiting(endless()) as (running, web):
        assert running.live.task is None
        with generating(running):
            with watching(web) as events:
                first(events, "cells")
                assert running.live.task is not None
            until(lambda: running.live.task is None)
            spent = running.live.spent
            steps = running.llm().metrics.steps
            until(lambda: running.llm().metrics.steps > steps + 20)
            assert running.live.spent == spent


def test_a_page_gets_no_figures_from_before_it_came():
    with visiting() as (running, web):
        with watching(web, "/stretto/live") as events:
            first(events, "stats")
        until(lambda: running.live.task is None)
        opened = time.time()
        with watching(web, "/stretto/live") as events:
            assert first(events, "stats")["time"] >= opened


def test_watching_is_put_off_when_it_takes_too_long(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("stretto.server.own.live.time", SimpleNamespace(monotonic=lambda: clock[0]))
    live = Live(None, None)
    live.spend(0.01)
    assert live.ready <= clock[0]  # a page that opens may take a little at once
    live.spend(0.02)
    assert 0 < live.ready - clock[0] < 2
    live.spend(9.0)
    assert live.ready - clock[0] <= MAX_DELAY_SECONDS


def test_a_reader_that_takes_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr("stretto.server.own.live.SEND_SECONDS", 0.05)
    sent = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)
        if len(sent) == 2:  # the first events
            await asyncio.Event().wait()

    async def stream(live):
        await asyncio.wait_for(LiveStream(live, Watcher(ADMIN))({}, receive, send), 60)

    with visiting() as (running, _):
        live = Live(running.state, LastLines(logging.Formatter()))
        asyncio.run(stream(live))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert (live.watchers, live.task) == (set(), None)


def test_an_error_ends_the_streams_and_the_next_page_starts_anew(monkeypatch):
    with visiting() as (running, web):
        with monkeypatch.context() as patch:
            patch.setattr("stretto.server.own.live.Live.measure", lambda self, load: 1 / 0)
            with watching(web, "/stretto/live") as events:
                assert "stats" not in {kind for event in events for kind in event}
        until(lambda: not running.live.watchers)
        with watching(web, "/stretto/live") as events:
            assert first(events, "stats")["running"] == 0


def test_live_events_end_with_the_server():
    with visiting() as (running, web), watching(web, "/stretto/live") as events:
        first(events, "hello")
        running.server.end()
        assert [event for event in events if "error" in event] == []


def test_wrong_questions_say_what_is_wrong():
    with visiting() as (_, web):
        assert web.get("/stretto/live?model=x").status_code == 404
        wrong = web.get("/stretto/live?cells=1")
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "model")


def test_a_reader_gets_the_last_frame_once():
    with visiting(endless()) as (running, web):
        complete = {"model": "mock", "prompt": "abc", "max_tokens": 30}
        web.post("/v1/completions", json=complete)
        events = CellEvents(running.state, running.state.registry.find("mock"))
        quick, slow = Watcher(ADMIN), Watcher(ADMIN)

        def take(watcher):
            watcher.seen, text = events.news(ADMIN, watcher.seen)
            return Reader().take(json.loads(text.removeprefix("data: "))["cells"]) if text else None

        for prompt in ("abc", "abcx", "q", "qrs", "abcxy"):
            web.post("/v1/completions", json={**complete, "prompt": prompt})
            asyncio.run(events.look([ADMIN]))
            take(quick).check(running.llm())
            asyncio.run(events.look([ADMIN]))
            assert take(quick) is None  # nothing has changed
        take(slow).check(running.llm())
        assert take(slow) is None
        asyncio.run(events.look([]))
        assert events.news(ADMIN, 0) == (0, "")


def test_a_frame_waits_for_a_step_and_the_server_does_not():
    in_step, go_on = threading.Event(), threading.Event()

    def script(seen):
        in_step.set()
        assert go_on.wait(60)
        return 97

    with visiting(mock(script)) as (running, web), watching(web) as events:
        assert first(events, "cells")["n"] == 0
        body = {"model": "mock", "prompt": "abc", "max_tokens": 2}
        thread = threading.Thread(
            target=httpx.post, args=(f"{running.url}/v1/completions",), kwargs={"json": body}
        )
        thread.start()
        assert in_step.wait(60)
        for _ in range(8):  # more than there are threads for others
            with pytest.raises(httpx.ReadTimeout):
                web.get("/stretto/cells/at?model=mock&cell=0", timeout=0.05)
        assert web.post("/tokenize", json={"model": "mock", "content": "abc"}).status_code == 200
        go_on.set()
        assert first(events, "cells")["n"] > 0
        thread.join(60)
        assert web.get("/stretto/cells/at?model=mock&cell=0").json()["used"]


# -- cancelling --


def test_a_request_is_cancelled_by_its_id():
    with visiting(endless()) as (running, web), generating(running) as (name, lines):
        assert web.delete(f"/stretto/requests/{name}").json() == {"cancelled": name}
        until(lambda: not running.state.generations)
        until(lambda: any("cancelled" in line for line in lines))
        (last,) = [json.loads(line.removeprefix("data: ")) for line in lines if "error" in line]
        assert last["error"]["code"] == "cancelled"
        assert "[DONE]" not in "".join(lines)
        assert web.get("/stretto/requests").json() == {"requests": []}
        again = web.delete(f"/stretto/requests/{name}")
        assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")
        until(lambda: running.llm().cache.stats().held == 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "abc", "max_tokens": 900}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/stretto/parallel", {"prompt": "abc", "max_tokens": 900}),
        ("/api/generate", {"prompt": "abc", "stream": False, "options": {"num_predict": 900}}),
    ],
)
def test_an_answer_that_was_cancelled_says_so(path, body):
    with visiting(endless()) as (running, web):
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(httpx.post(running.url + path, json={"model": "mock", **body}))
        )
        thread.start()
        until(lambda: any(one["tokens"] for one in web.get("/stretto/requests").json()["requests"]))
        (one,) = web.get("/stretto/requests").json()["requests"]
        web.delete(f"/stretto/requests/{one['id']}")
        thread.join(60)
        assert answers[0].status_code == 410
        assert "cancelled" in answers[0].text


# -- who sees what --

KEYS = {"api_keys": ("ann", "bob"), "admin_keys": ("root",)}


def test_callers_see_their_own_requests_and_cells_alone():
    with visiting(endless(), **KEYS) as (running, web), generating(running, "ann") as (name, _):
        for key, sees in (("ann", True), ("bob", False), ("root", True)):
            requests = web.get("/stretto/requests", headers=header(key)).json()["requests"]
            assert [one["id"] for one in requests] == ([name] if sees else [])
            assert [one["mine"] for one in requests] == ([key == "ann"] if sees else [])
            assert all(("caller" in one) == (key == "root") for one in requests)
            with watching(web, key=key) as events:
                assert first(events, "hello")["admin"] == (key == "root")
                frame = next(e["cells"] for e in events if "cells" in e and e["cells"]["n"])
            reader = Reader()
            reader.take(frame)
            assert (reader.set_of > 0).sum() > 3
            assert bool(reader.sequences) == sees
            assert (reader.positions >= 0).any() == sees
            assert {one["mine"] for one in reader.sequences.values()} == ({key == "ann"} if sees else set())
            cell = int(running.llm().engine.cells.view(running.llm().cells.sequences[0])[0])
            at = web.get(f"/stretto/cells/at?model=mock&cell={cell}", headers=header(key)).json()
            assert at["used"]
            assert (at["token"], at["piece"]) == ((ord("a"), "a") if sees else (None, None))
        refused = web.delete(f"/stretto/requests/{name}", headers=header("bob"))
        assert refused.status_code == 404
        assert web.delete(f"/stretto/requests/{name}", headers=header("ann")).status_code == 200


def test_cells_of_finished_requests_stay_private():
    with visiting(mock("Hello"), **KEYS) as (_, web):
        body = {"model": "mock", "prompt": "abc", "temperature": 0}
        web.post("/v1/completions", json=body, headers=header("ann"))
        for key, sees in (("ann", True), ("bob", False), ("root", True)):
            with watching(web, key=key) as events:
                frame = next(e["cells"] for e in events if "cells" in e and e["cells"]["n"])
            assert bool(frame["sequences"]) == sees


# -- history and logs --


def test_the_last_minutes_are_known_though_nobody_watched():
    with visiting() as (running, web):
        for _ in range(3):
            web.post("/v1/completions", json={"model": "mock", "prompt": "abc", "temperature": 0})
        web.post("/v1/completions", json={"model": "mock", "temperature": "warm"})
        for is_loaded in (True, False):
            time.sleep(max(0, 1.05 - time.perf_counter() % 1))  # the second has to be over
            with watching(web, "/stretto/live") as events:
                columns = first(events, "history")["columns"]
            assert {len(column) for column in columns.values()} == {900}
            assert sum(columns["tokens_per_second"]) == 3 * 16
            assert sum(columns["errors_4xx"]) == 1
            assert [n for n in columns["first_token_p50"] if n is not None]
            assert max(columns["hit_rate"], key=lambda n: n or 0) > 0
            assert abs(columns["time"][-1] - time.time()) < 60
            if is_loaded:
                unload = {"model": "mock", "prompt": "", "keep_alive": 0}
                assert web.post("/api/generate", json=unload).json()["done_reason"] == "unload"
        assert running.llm() is None


def test_log_lines_are_bounded_and_stay_lines():
    lines = LastLines(logging.Formatter("%(message)s"))
    logger = logging.getLogger("stretto.server.test")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        for number in range(2 * MAX_LINES):
            logger.info("line %d", number)
        logger.info("two\nlines\r\x1b[31m<b>\u2028 red \x00\u202e end")
        logger.info("x" * 10 * MAX_CHARACTERS)
    finally:
        logger.removeHandler(lines)
    last, kept = lines.since(0)
    assert (len(kept), last) == (MAX_LINES, 2 * MAX_LINES + 2)
    assert all(line.isprintable() and len(line) <= MAX_CHARACTERS + 1 for line in kept)
    assert kept[-2].startswith("two | lines | ")
    assert lines.since(last - 1) == (last, kept[-1:])
    assert lines.since(last) == (last, [])


def test_admins_see_the_log_and_others_do_not():
    with visiting(log="text", **KEYS) as (running, web):
        logging.getLogger("stretto.server").error("something\nhappened")
        with watching(web, "/stretto/live", "root") as events:
            assert any("something\\nhappened" in line for line in first(events, "logs"))
            logging.getLogger("stretto.server").error("again")
            assert first(events, "logs")[-1].endswith("again")
        with watching(web, "/stretto/live", "ann") as events:
            kinds = {kind for _, event in zip(range(5), events, strict=False) for kind in event}
        assert "stats" in kinds
        assert "logs" not in kinds
    assert running.live.lines not in logging.getLogger("stretto.server").handlers


@pytest.mark.parametrize("turns", range(8))
def test_a_client_that_leaves_in_any_moment_ends_its_stream(turns):
    async def run():
        left = asyncio.Event()

        async def send(message):
            if message["type"] == "http.response.body":
                left.set()
                for _ in range(turns):
                    await asyncio.sleep(0)

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        hub = Live(State(Settings((ModelEntry("mock", str(TINY)),))), LastLines(TextLines()))
        stream = asyncio.ensure_future(LiveStream(hub, Watcher(Caller()))({"type": "http"}, receive, send))
        await asyncio.wait([stream], timeout=20)
        assert stream.done()

    asyncio.run(run())
