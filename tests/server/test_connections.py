"""Connections: each has a timer, heads and trailers are bounded, and a full server says so."""

import asyncio
import json
import resource
import socket
from contextlib import ExitStack

import pytest
import uvicorn
from uvicorn.server import ServerState

from serving import endless, serving, until
from stretto.server.http import protocol as descriptors
from stretto.server.http.protocol import MAX_PIPELINED, protocol
from stretto.server.settings import RequestLimits

LIMITS = RequestLimits(head=2_000, head_seconds=0.5, body_seconds=20.0)
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"model": "mock", "prompt": "Hi", "max_tokens": 2}).encode()
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
WHOLE = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)  # but for its trailers


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A refused client may be as slow as it likes, as on a busy machine."""
    monkeypatch.setattr("stretto.server.http.protocol.LINGER_SECONDS", 60.0)


@pytest.fixture(scope="module")
def server():
    with serving(limits=LIMITS) as running:
        yield running


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def rest(link):
    """What comes until the server closes."""
    pieces = []
    while piece := link.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def raw(server, *parts):
    with connect(server) as link:
        for part in parts:
            link.sendall(part)
        return rest(link)


def test_the_limit_of_the_head_holds_however_it_arrives(server):
    long = b"X: " + b"x" * 2_500 + b"\r\n"
    many = b"".join(b"X%d: y\r\n" % number for number in range(400))
    for lines in (long, many):
        assert raw(server, GET + lines + b"\r\n").startswith(b"HTTP/1.1 431")  # in one piece
        assert raw(server, GET, *[lines[i : i + 500] for i in range(0, 2_500, 500)]).startswith(
            b"HTTP/1.1 431"
        )
    path = b"GET /" + b"x" * 3_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert raw(server, path).startswith(b"HTTP/1.1 431")
    second = GET + b"\r\n" + GET + long + b"\r\n"
    assert b"HTTP/1.1 431" in raw(server, second)
    assert raw(server, GET + b"Connection: close\r\nX: " + b"x" * 1_500 + b"\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )


def test_trailers_are_dropped(server, monkeypatch):
    heads = []
    guard = server.server.guard
    app = guard.app

    async def watching(scope, receive, send):
        await app(scope, receive, send)
        heads.append(dict(scope["headers"]))

    monkeypatch.setattr(guard, "app", watching)
    head = CHUNKED + b"Connection: close\r\n\r\n"
    answer = raw(server, head + WHOLE + b"Extra: 1\r\nHost: evil.example\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"extra" not in heads[0]
    assert heads[0][b"host"] == b"localhost"


@pytest.mark.parametrize("line", [b"A: b\r\n" * 100, b"x" * 600])
def test_trailers_without_end_are_refused(server, line):
    answer = raw(server, CHUNKED + b"\r\n" + WHOLE + b"Name: ", *[line * 100] * 8)
    assert answer.startswith(b"HTTP/1.1 431")


def test_a_chunk_with_an_endless_extension_is_refused(server):
    answer = raw(server, CHUNKED + b"\r\n5;", *[b"x" * 70_000] * 8)
    assert answer.startswith(b"HTTP/1.1 431")


def test_an_answer_before_the_body_closes_the_connection_whatever_the_method(server):
    """A timer that is stopped by the next byte would leave the connection open for good."""
    with connect(server) as link:
        link.settimeout(20)  # less than an idle connection is kept
        link.sendall(GET + b"Content-Length: 1000\r\n\r\n")
        assert rest(link).startswith(b"HTTP/1.1 200")


def test_requests_that_wait_on_one_connection_are_bounded(server):
    few = raw(server, (GET + b"\r\n") * 5 + GET + b"Connection: close\r\n\r\n")
    assert few.count(b"HTTP/1.1 200") == 6
    with connect(server) as link:
        link.sendall((GET + b"\r\n") * 40)
        assert rest(link).count(b"HTTP/1.1 200") <= MAX_PIPELINED + 1


def test_bytes_behind_a_request_do_not_cut_its_answer():
    """Some clients send a line too many."""
    with serving(endless(0.02), limits=LIMITS) as server, connect(server) as link:
        body = json.dumps({"model": "mock", "prompt": "Hi", "max_tokens": 60, "stream": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        link.sendall(head % len(body) + body)
        until(lambda: server.state.generations)
        link.sendall(b"\r\n")
        answer = rest(link)  # it takes longer than a head may
        assert answer.endswith(b"0\r\n\r\n")
        assert b"[DONE]" in answer
        assert b" 408 " not in answer


def test_far_over_the_limit_connections_are_told_at_once(monkeypatch):
    monkeypatch.setattr("stretto.server.http.protocol.SPARE_CONNECTIONS", 2)
    with serving(limits=RequestLimits(connections=2)) as server, ExitStack() as idle:
        for _ in range(4):
            idle.enter_context(connect(server))
        until(lambda: len(server.server.server_state.connections) == 4)
        for _ in range(3):
            with connect(server) as link:
                answer = rest(link)  # without a word from us
                assert answer.startswith(b"HTTP/1.1 429")
                assert b"retry-after: 1" in answer
                assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "too_many_connections"
        with connect(server) as link:
            link.sendall(GET + b"\r\n")
            assert rest(link).startswith(b"HTTP/1.1 429")


class Transport:
    """A connection whose client does not read."""

    unsent = closing = aborted = False

    def get_extra_info(self, name):
        return None

    def is_closing(self):
        return self.closing

    def get_write_buffer_size(self):
        return 10 if self.unsent else 0

    def abort(self):
        self.aborted = True

    def close(self):
        self.closing = True


@pytest.fixture
def connection():
    """A protocol with a transport of ours, and a function that lets time pass."""
    loop = asyncio.new_event_loop()
    kind = protocol(RequestLimits(read_seconds=0.05))
    made = kind(uvicorn.Config(lambda: None, http=kind), ServerState(), {}, loop)
    made.connection_made(Transport())
    yield made, lambda: loop.run_until_complete(asyncio.sleep(0.2))
    made.stop()
    made.stop_unread()
    loop.close()


def test_a_client_that_does_not_read_is_given_up(connection):
    made, wait = connection
    made.pause_writing()
    made.resume_writing()
    wait()
    assert not made.transport.aborted  # it has read
    made.pause_writing()
    wait()
    assert made.transport.aborted


def test_the_last_bytes_have_to_be_read_too(connection):
    made, wait = connection
    made.pause_writing()
    made.transport.closing = True
    made.resume_writing()
    wait()
    assert made.transport.aborted


def test_an_idle_connection_with_unread_bytes_is_given_up(connection):
    made, _ = connection
    made.transport.unsent = True
    made.timeout_keep_alive_handler()
    assert made.transport.aborted


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [(1024, 4096, 1280, 1024), (2048, 2048, None, 1024), (256, 700, 700, 444), (64, 64, None, 16)],
)
def test_descriptors_are_kept_in_reserve(monkeypatch, soft, hard, raised, connections):
    now = [soft]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (now[0], hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: now.append(both[0]))
    found = descriptors.with_descriptors(RequestLimits(connections=1024))
    assert found.connections == connections
    if raised is not None:
        assert now[-1] == raised
