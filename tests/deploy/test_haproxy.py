"""examples/server/haproxy.cfg before two servers: conversations stay where they began."""

import http.client
import json
import shutil
import socket
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from serving import endless, serving, until

CONFIG = Path(__file__).parent.parent.parent / "examples" / "server" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed (apt install haproxy)")

SYSTEM = {"role": "system", "content": "Answer in plain words."}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def settled(text, port, ports):
    """The file with addresses of this test."""
    for old, new in ((8080, port), (8081, ports[0]), (8082, ports[1])):
        assert f"127.0.0.1:{old}" in text
        text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    return text


class Balanced:
    """Two servers behind HAProxy, and a client."""

    def __init__(self, servers, web, port):
        self.servers, self.web, self.port = servers, web, port

    def place(self, path="/v1/chat/completions", headers=(), **body):
        answer = self.web.post(path, json={"model": "mock", "max_tokens": 2, **body}, headers=dict(headers))
        assert answer.status_code == 200, answer.text
        return answer.headers["x-server"]


@pytest.fixture(scope="module")
def balanced(tmp_path_factory):
    with ExitStack() as stack:
        servers = [stack.enter_context(serving()) for _ in range(2)]
        yield stack.enter_context(balancing(tmp_path_factory.mktemp("haproxy"), servers))


@contextmanager
def balancing(folder, servers):
    """HAProxy with the file, before these servers."""
    port = free_port()
    file = folder / "haproxy.cfg"
    file.write_text(settled(CONFIG.read_text(), port, [server.port for server in servers]))
    checked = subprocess.run([HAPROXY, "-c", "-f", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen([HAPROXY, "-db", "-f", file], stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as web:
            until(lambda: is_up(web))
            yield Balanced(servers, web, port)
    finally:
        process.terminate()
        process.wait(60)


def is_up(web):
    try:
        return web.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def said(n, system=True):
    """The messages of a conversation, turn by turn."""
    messages = [SYSTEM] if system else []
    for turn in range(3):
        messages = [*messages, {"role": "user", "content": f"Tell me about the number {n}, part {turn}."}]
        yield messages
        messages = [*messages, {"role": "assistant", "content": f"It is a fine number, {turn}."}]


@pytest.mark.parametrize("system", [True, False])
def test_conversations_stay_on_their_server(balanced, system):
    places = [{balanced.place(messages=messages) for messages in said(n, system)} for n in range(12)]
    assert all(len(place) == 1 for place in places)
    assert len(set.union(*places)) == 2


def test_later_turns_find_their_prefix(balanced):
    found = []
    for messages in said(777):
        body = {"model": "mock", "messages": messages, "max_tokens": 1}
        used = balanced.web.post("/v1/chat/completions", json=body).json()["usage"]
        found.append(used["prompt_tokens_details"]["cached_tokens"])
    assert 0 <= found[0] < found[1] < found[2]


def test_anthropics_messages_and_parts_stay_too(balanced):
    for n in range(6):
        first, *later = said(n, system=False)
        body = {"system": "Be brief.", "max_tokens": 2}
        place = balanced.place("/v1/messages", messages=first, **body)
        assert {balanced.place("/v1/messages", messages=turn, **body) for turn in later} == {place}
        parts = {"role": "user", "content": [{"type": "text", "text": f"Number {n}?"}]}
        more = [parts, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And now?"}]
        assert balanced.place(messages=[parts]) == balanced.place(messages=more)


def test_prompts_and_sessions_stay(balanced):
    for n in range(6):
        prompt = f"{n} is a number, and it is said to be"
        assert len({balanced.place("/v1/completions", prompt=prompt) for _ in range(3)}) == 1
        header = {"x-session-id": f"session {n}"}
        assert len({balanced.place("/v1/completions", header, prompt=f"{i}") for i in range(4)}) == 1


def test_a_body_longer_than_the_buffer_passes(balanced):
    body = {"model": "mock", "input": ["x" * 900] * 400}
    answers = [balanced.web.post("/v1/embeddings", json=body) for _ in range(2)]
    assert {answer.status_code for answer in answers} <= {400, 404, 501}  # the mock has no embeddings
    assert len({answer.headers["x-server"] for answer in answers}) == 1


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'{"messages": 5}', b'{"prompt": [1, [2]]}', b"\xff\x00"]
)
def test_strange_bodies_get_the_servers_answer(balanced, body):
    answer = balanced.web.post("/v1/completions", content=body)
    assert 400 <= answer.status_code < 500
    assert "error" in answer.json()


def test_a_client_that_leaves_frees_its_server(tmp_path):
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(endless())) for _ in range(2)]
        balanced = stack.enter_context(balancing(tmp_path, servers))
        web = http.client.HTTPConnection("127.0.0.1", balanced.port, timeout=60)
        body = {"model": "mock", "prompt": "Go on", "max_tokens": 900, "stream": True}
        web.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = web.getresponse()
        assert answer.readline().startswith(b"data: ")
        assert sum(len(server.state.generations) for server in servers) == 1
        answer.close()
        web.close()
        until(lambda: not any(server.state.generations for server in servers))


def test_a_dead_server_is_replaced_by_the_other(tmp_path):
    with ExitStack() as stack:
        stay = stack.enter_context(serving())
        with serving() as goes:
            balanced = stack.enter_context(balancing(tmp_path, [stay, goes]))
            places = {n: balanced.place(messages=next(said(n))) for n in range(12)}
            assert set(places.values()) == {"one", "two"}
        after = {n: balanced.place(messages=next(said(n))) for n in range(12)}
        assert set(after.values()) == {"one"}
        assert all(balanced.web.get("/health").status_code == 200 for _ in range(4))
