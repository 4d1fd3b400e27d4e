"""`resumable`: a stream goes on without its connection, for its key alone, and not for long."""

import json

import httpx
import pytest

from serving import endless, serving, until, visiting
from stretto.server.generation.streams import get_streams
from stretto.server.settings import RequestLimits

CHAT = "/v1/chat/completions"
TALK = {"model": "mock", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 120}
TEXTS = {"model": "mock", "prompt": "Hi", "temperature": 0, "n": 2, "max_tokens": 60}
PATHS = [(CHAT, TALK), ("/v1/completions", TEXTS)]
ASKED = {"stream": True, "resumable": True, "stream_options": {"include_usage": True}}
FOREVER = {**TALK, **ASKED, "max_tokens": 1 << 14}


def events(text):
    """The numbers and the data of events, whole ones only."""
    found = []
    for part in text.split("\n\n")[:-1]:
        number, data = part.split("\n")
        found.append((int(number.removeprefix("id: ")), data.removeprefix("data: ")))
    return found


def begin(web, body=FOREVER, path=CHAT, enough=3):
    """Ask, read so many events, and leave: the stream's id and what was read."""
    with web.stream("POST", path, json={**body, **ASKED}) as answer:
        assert answer.status_code == 200, answer.read()
        text = ""
        for piece in answer.iter_text():
            text += piece
            if text.count("\n\n") >= enough:
                break
        return answer.headers["x-stretto-stream"], text[: text.rindex("\n\n") + 2]


def choices_of(chunks, index):
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


def end_all(web):
    for one in web.get("/stretto/requests").json()["requests"]:
        web.delete(f"/stretto/requests/{one['id']}")


@pytest.fixture(scope="module")
def running():
    with serving(endless()) as server:
        yield server


@pytest.fixture
def web(running):
    with httpx.Client(base_url=running.url, timeout=60) as client:
        yield client
        end_all(client)
        until(lambda: not running.state.generations)


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_what_comes_later_is_exactly_the_rest(web, path, body):
    name, begun = begin(web, body, path)
    last = events(begun)[-1][0]
    rest = web.get(f"/stretto/streams/{name}?after={last}").text
    whole = events(begun + rest)
    assert [number for number, _ in whole] == list(range(1, len(whole) + 1))
    assert whole[-1][1] == "[DONE]"
    again = web.get(f"/stretto/streams/{name}")  # it is kept for a while behind its end
    assert again.text == begun + rest
    assert again.headers["x-stretto-stream"] == name
    assert web.get(f"/stretto/streams/{name}", headers={"last-event-id": str(last)}).text == rest
    assert web.get(f"/stretto/streams/{name}?after={len(whole)}").text == ""
    plain = web.post(path, json={**body, **ASKED, "resumable": None}).text
    chunks = [json.loads(data) for _, data in whole[:-1]]
    others = [json.loads(part[6:]) for part in plain.split("\n\n")[:-2]]
    assert [choices_of(chunks, n) for n in range(2)] == [choices_of(others, n) for n in range(2)]
    assert chunks[-1]["usage"]["completion_tokens"] == others[-1]["usage"]["completion_tokens"] > 100


def test_a_stream_without_the_field_ends_with_its_connection(running, web):
    with web.stream("POST", CHAT, json={**FOREVER, "resumable": False}) as answer:
        assert "x-stretto-stream" not in answer.headers
        next(answer.iter_text())
    until(lambda: not running.state.generations)


def test_a_stream_that_nobody_reads_is_a_running_request(running, web):
    name, begun = begin(web)
    (listed,) = web.get("/stretto/requests").json()["requests"]
    until(lambda: web.get("/stretto/requests").json()["requests"][0]["tokens"] > listed["tokens"] + 5)
    web.delete(f"/stretto/requests/{listed['id']}")
    rest = events(web.get(f"/stretto/streams/{name}?after={events(begun)[-1][0]}").text)
    assert json.loads(rest[-1][1])["error"]["code"] == "cancelled"
    until(lambda: not running.state.generations)


def test_it_can_be_ended_while_it_is_read(running, web):
    with web.stream("POST", CHAT, json=FOREVER) as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        ended = web.delete(f"/stretto/streams/{answer.headers['x-stretto-stream']}")
        assert ended.json() == {"ended": answer.headers["x-stretto-stream"]}
        text += "".join(pieces)
    assert json.loads(events(text)[-1][1])["error"]["code"] == "cancelled"
    until(lambda: not running.state.generations)
    assert web.get(f"/stretto/streams/{answer.headers['x-stretto-stream']}").status_code == 404


def test_one_that_nobody_reads_can_be_ended(running, web):
    name, _ = begin(web)
    assert web.delete(f"/stretto/streams/{name}").status_code == 200
    until(lambda: not running.state.generations)
    assert web.delete(f"/stretto/streams/{name}").status_code == 404


def test_a_second_connection_takes_it_over(web):
    with web.stream("POST", CHAT, json=FOREVER) as answer:
        pieces = answer.iter_text()
        text = next(pieces)
        name = answer.headers["x-stretto-stream"]
        with web.stream("GET", f"/stretto/streams/{name}") as other:
            more = other.iter_text()
            assert events(next(more))[0][0] == 1
            text += "".join(pieces)
            assert json.loads(text.rstrip().rpartition("data: ")[2])["error"]["code"] == "taken_over"
            assert next(more)  # the other one goes on


HOSTILE = ["x", "..", "%2e%2e%2fx", "%00", "a" * 9000, "%F0%9F%92%A9", "' OR 1=1", "0", "%0d%0aa: b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ids_are_not_found(web, name):
    begin(web)
    for method in ("GET", "DELETE"):
        answer = web.request(method, f"/stretto/streams/{name}")
        assert answer.status_code == 404
        assert len(answer.content) < 500
    assert len(web.get("/stretto/requests").json()["requests"]) == 1


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "9" * 40, "1000000000", "%00"])
def test_numbers_that_no_event_has_are_refused(web, after):
    name, _ = begin(web)
    answer = web.get(f"/stretto/streams/{name}?after={after}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
    given = web.get(f"/stretto/streams/{name}", headers={"last-event-id": after})
    assert given.status_code == 400


def test_a_stream_is_looked_for_without_reading_it(web):
    with web.stream("POST", CHAT, json=FOREVER) as answer:
        path, pieces = f"/stretto/streams/{answer.headers['x-stretto-stream']}", answer.iter_text()
        next(pieces)
        found = web.head(path)
        assert (found.status_code, found.content) == (200, b"")
        assert next(pieces)  # nobody has taken it over
        assert web.head(path + "x").status_code == 404


def test_the_field_is_for_streams(web):
    answer = web.post(CHAT, json={**TALK, "resumable": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "resumable")


def test_another_key_finds_nothing():
    with serving(endless(), api_keys=("ann", "bob"), admin_keys=("boss",)) as server:
        ann, bob, boss, nobody = (
            httpx.Client(base_url=server.url, timeout=60, headers=headers)
            for headers in (*({"x-api-key": key} for key in ("ann", "bob", "boss")), {})
        )
        name, begun = begin(ann)
        for other, status in ((bob, 404), (boss, 404), (nobody, 401)):
            assert other.get(f"/stretto/streams/{name}").status_code == status
            assert other.delete(f"/stretto/streams/{name}").status_code == status
        with ann.stream("GET", f"/stretto/streams/{name}") as answer:
            assert next(answer.iter_text()).startswith(begun)
        for client in (ann, bob, boss, nobody):
            client.close()


def test_it_is_kept_for_a_while():
    with visiting(endless(), limits=RequestLimits(stream_seconds=0.05)) as (server, web):
        name, _ = begin(web)
        until(lambda: not server.state.generations)
        assert web.get(f"/stretto/streams/{name}").status_code == 404
        name, _ = begin(web, {**TALK, "max_tokens": 10}, enough=12)
        until(lambda: not get_streams(server.state))
        assert web.get(f"/stretto/streams/{name}").status_code == 404


def test_a_key_has_only_so_many_that_nobody_reads():
    with visiting(endless(), limits=RequestLimits(streams=2)) as (server, web):
        names = [begin(web)[0] for _ in range(4)]
        until(lambda: len(server.state.generations) == 2)
        for name, status in zip(names, (404, 404, 200, 200), strict=True):
            with web.stream("GET", f"/stretto/streams/{name}") as answer:
                assert answer.status_code == status


def test_kept_events_are_bounded():
    with visiting(endless(), limits=RequestLimits(stream_bytes=5000)) as (server, web):
        name, _ = begin(web)
        until(lambda: not server.state.generations)  # nobody reads: there is no room for more
        assert web.get(f"/stretto/streams/{name}").status_code == 404
        with web.stream("POST", CHAT, json=FOREVER) as answer:  # a reader gets all of them
            name, text = answer.headers["x-stretto-stream"], ""
            for piece in answer.iter_text():
                text += piece
                if len(text) > 50_000:
                    break
        numbers = [number for number, _ in events(text)]
        assert numbers == list(range(1, len(numbers) + 1))
        gone = web.get(f"/stretto/streams/{name}?after=1")
        assert (gone.status_code, gone.json()["error"]["code"]) in ((410, "events_gone"), (404, "not_found"))


def test_the_servers_end_does_not_wait_for_them():
    with visiting(endless()) as (server, web):
        begin(web)
        assert len(server.state.generations) == 1
    assert not server.state.generations
