"""A web app under gunicorn: its workers refuse a model loaded before the fork, and use their own models."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from serving import PLAIN, until

pytest.importorskip("gunicorn", reason="the test extra has gunicorn")
pytest.importorskip("uvicorn_worker", reason="the test extra has uvicorn-worker")
TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama.gguf"
SECONDS = 120  # a hang is the failure; a busy machine is not
WORKERS = 2

APP = """
import os, sys, warnings
warnings.simplefilter("ignore")
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.models import read_spec
from stretto.testing import byte_tokenizer
from stretto.weights.gguf import GGUF

file = GGUF(os.environ["TINY"])
llm = LLM(NativeBackend(file, read_spec(file), 64, 2), byte_tokenizer())
first = llm.generate([1, 2, 3], max_tokens=4, temperature=0).tokens  # its threads have run
fields = dict(max_tokens=4, temperature=0)
"""
WSGI = """
def app(environ, start_response):
    try:
        answer = "200 OK", repr(llm.generate([1, 2, 3], **fields).tokens == first)
    except InvalidRequest as error:
        answer = "503 Service Unavailable", str(error)
    status, text = answer
    start_response(status, [("content-type", "text/plain"), ("x-pid", str(os.getpid()))])
    return [text.encode()]
"""
ASGI = """
async def app(scope, receive, send):
    assert scope["type"] == "http", "there is no lifespan"
    try:
        answer = 200, repr((await llm.agenerate([1, 2, 3], **fields)).tokens == first)
    except InvalidRequest as error:
        answer = 503, str(error)
    status, text = answer
    head = [(b"content-type", b"text/plain"), (b"x-pid", str(os.getpid()).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": text.encode()})
"""
KINDS = {"sync": WSGI, "uvicorn_worker.UvicornWorker": ASGI}


class Gunicorn:
    """gunicorn with an app, and what it logs."""

    def __init__(self, folder, kind, preload):
        (folder / "web.py").write_text(APP + KINDS[kind])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, "-W", "ignore", "-m", "gunicorn", "web:app", "--bind", self.address,
                   "--workers", str(WORKERS), "--worker-class", kind, "--no-control-socket",
                   "--timeout", str(SECONDS), "--graceful-timeout", str(2 * SECONDS)]  # fmt: skip
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--preload"] if preload else command,
                cwd=folder,
                env=os.environ | {"TINY": str(TINY)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def answers(self):
        """A status and a text of each worker, by its process."""
        found, close = {}, {"connection": "close"}  # so that any worker may get the next request

        def ask():
            assert self.process.poll() is None, self.log.read_text()
            try:
                answer = client.get(f"http://{self.address}/", headers=close)
            except httpx.TransportError:  # it has not begun to listen
                return False
            pid = int(answer.headers["x-pid"])
            found[pid] = answer.status_code, answer.text
            return len(found) == WORKERS

        with httpx.Client(timeout=SECONDS, verify=PLAIN) as client:
            until(ask, SECONDS)
        return found

    def end(self):
        """The exit status. A worker that hangs is killed later than this waits."""
        self.process.terminate()
        return self.process.wait(SECONDS)

    def kill(self):
        """End all processes of a test that failed."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def started(tmp_path):
    """Start gunicorn; it does not outlive the test."""
    running = []

    def start(kind, preload):
        running.append(Gunicorn(tmp_path, kind, preload))
        return running[-1]

    yield start
    for one in running:
        one.kill()


def ended_cleanly(gunicorn, pids):
    """No worker failed, hung or was killed, and none is left."""
    assert gunicorn.end() == 0, gunicorn.log.read_text()
    log = gunicorn.log.read_text()
    assert not any(word in log for word in ("[ERROR]", "[CRITICAL]", "SIGKILL", "Traceback")), log
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_loaded_before_the_fork_is_refused_in_every_worker(started, kind):
    gunicorn = started(kind, preload=True)
    answers = gunicorn.answers()
    for status, text in answers.values():
        assert status == 503
        assert "forked" in text
        assert "load" in text
    ended_cleanly(gunicorn, answers)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_each_worker_loads_works_in_all(started, kind):
    gunicorn = started(kind, preload=False)
    answers = gunicorn.answers()
    assert set(answers.values()) == {(200, "True")}
    ended_cleanly(gunicorn, answers)
