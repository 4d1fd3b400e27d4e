"""Ends: clients that go away free their cells, and a server that ends lets its requests finish."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from serving import STRETTO, TINY, endless, mock, serving, until, visiting
from stretto import Limits
from stretto.cli import main

TEXT = {"model": "mock", "prompt": "Say it: ", "temperature": 0, "max_tokens": 900}


def ask(server, path, body):
    """A request on a connection of its own, and no answer read."""
    data = json.dumps(body).encode()
    link = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    link.sendall(head.encode() + data)
    return link


def running(server):
    return server.llm().metrics.running if server.llm() else 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_away_frees_its_cells_within_a_step(stream, n):
    with serving(endless(0.02)) as server:
        link = ask(server, "/v1/completions", {**TEXT, "stream": stream, "n": n})
        until(lambda: running(server) == n)
        link.close()
        until(lambda: not server.state.generations)
        steps = server.llm().metrics.steps
        until(lambda: not server.llm().cache.stats().held)
        assert server.llm().metrics.steps - steps <= 2
        assert server.llm().metrics.finished == {"cancelled": n}
        assert server.state.registry.models["mock"].users == 0


def test_a_client_that_goes_away_while_it_waits_is_forgotten():
    with serving(endless(0.01, limits=Limits(max_running=1))) as server:
        first = ask(server, "/v1/completions", TEXT)
        until(lambda: running(server) == 1)
        second = ask(server, "/v1/completions", {**TEXT, "stream": True})
        until(lambda: server.llm().metrics.waiting == 1)
        second.close()
        until(lambda: len(server.state.generations) == 1)
        until(lambda: server.llm().metrics.waiting == 0)
        first.close()
        until(lambda: not server.state.generations)


@pytest.mark.parametrize("path", ["/api/generate", "/stretto/parallel"])
def test_clients_of_other_endpoints_may_go_away_too(path):
    body = {"model": "mock", "prompt": "a", "stream": True}
    with serving(endless(0.01)) as server:
        link = ask(server, path, body)
        until(lambda: running(server) == 1)
        link.close()
        until(lambda: not server.state.generations)
        until(lambda: not server.llm().cache.stats().held)


def test_a_client_that_does_not_read_holds_up_nobody():
    with serving(endless(0)) as server:
        slow = ask(server, "/v1/completions", {**TEXT, "stream": True})
        with httpx.Client(base_url=server.url, timeout=60) as web:
            for _ in range(5):
                assert web.post("/v1/completions", json={**TEXT, "max_tokens": 20}).status_code == 200
        until(lambda: not server.llm().cache.stats().held)  # its text is done, read or not
        slow.close()


def test_an_ending_server_lets_requests_finish_and_takes_no_more():
    with serving(mock("x" * 50, 0.02), grace_seconds=60) as server:
        found = []
        web = httpx.Client(base_url=server.url, timeout=60)
        kept = httpx.Client(base_url=server.url, timeout=60)
        assert kept.get("/health").status_code == 200
        thread = threading.Thread(target=lambda: found.append(web.post("/v1/completions", json=TEXT)))
        thread.start()
        until(lambda: running(server) == 1)
        server.server.end()
        with pytest.raises(httpx.HTTPError):  # its connection is closed, and there is no new one
            until(lambda: kept.get("/health").status_code == 0)
        thread.join()
        assert found[0].json()["choices"][0]["text"] == "x" * 50
        web.close()
        kept.close()


def test_what_does_not_finish_in_time_is_told_so():
    with (
        visiting(endless(0.02), grace_seconds=0.3) as (server, web),
        web.stream("POST", "/v1/completions", json={**TEXT, "stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        server.server.end()
        last = [line for line in lines if line][-1]
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("shutting_down", "server_error")


def start(*options):
    """`stretto serve` as a process, and its address."""
    command = [*STRETTO, "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    return process, line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_in_order(number, smollm2_path):
    process, line = start("--model", f"small={smollm2_path}", "--log", "json", "--grace", "900")
    try:
        assert line.startswith("serving small on http://127.0.0.1:")
        assert process.stdout.readline().startswith("prompts are kept on disk too")
        address = line.split()[-1]
        assert httpx.get(f"{address}/health").json()["status"] == "ok"
        process.send_signal(number)
        rest, errors = process.communicate(timeout=300)  # there is nobody to wait for
        assert process.returncode == 0, errors
        assert rest == ""
        (entry,) = [json.loads(text) for text in errors.splitlines()]
        assert (entry["path"], entry["status"]) == ("/health", 200)
    finally:
        process.kill()
        process.communicate()


def test_waiting_for_running_requests_is_told_and_a_second_signal_ends_it(smollm2_path):
    endlessly = ("--default", "overflow=shift", "--cache", "memory")
    process, line = start("--model", f"small={smollm2_path}", "--grace", "900", *endlessly)
    body = {"model": "small", "prompt": "x", "max_tokens": 1_000_000, "ignore_eos": True, "stream": True}
    try:
        with (
            httpx.Client(base_url=line.split()[-1], timeout=60) as web,
            web.stream("POST", "/v1/completions", json=body) as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGINT)
            told = process.stdout.readline()
            assert told == "waiting up to 900 s for 1 running request; Ctrl-C again to stop at once\n"
            process.send_signal(signal.SIGINT)
            last = [text for text in lines if text][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        rest, errors = process.communicate(timeout=300)
        assert (process.returncode, rest, errors) == (0, "", "")
    finally:
        process.kill()
        process.communicate()


STUCK = """
import threading, time
from serving import TINY, mock
from stretto.server import serve as process
from stretto.server.settings import ModelEntry, Settings

process.NOTIFY_SECONDS = process.EXIT_SECONDS = 0.3

def opener(entry):
    llm = mock()(entry)
    llm.backend.forward = lambda batch: time.sleep(600)  # as if it would compute forever
    return llm

settings = Settings((ModelEntry("mock", str(TINY)),), port=0, grace_seconds=0.3, memory=1 << 40)
server = process.Server(settings, opener)
server.run_until_ended(lambda address: print(address, flush=True))
"""


def test_after_its_grace_period_the_process_ends_whatever_runs():
    command = [sys.executable, "-c", STUCK]
    folder = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=folder)
    try:
        address = process.stdout.readline().strip()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/v1/completions", json=TEXT, timeout=1.0)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "most recent call first" in errors  # where the threads were
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "set --api-key"),
        (["--model", "missing/no.gguf"], "no.gguf"),
        (["--model", str(TINY), "--memory", "1MB"], "cannot fit"),
        (["--model", str(TINY), "--memory", "lots"], "--memory takes a size"),
        (["--model", str(TINY), "--port", "99999"], "--port must be"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(options, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", *options])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in told
    assert len(told.splitlines()) == 1


def test_a_port_that_is_taken_is_said(capsys):
    with serving() as server, pytest.raises(SystemExit):
        main(["serve", "--model", str(TINY), "--port", str(server.port)])
    assert "cannot listen on 127.0.0.1:" in capsys.readouterr().err


def test_the_help_can_be_read(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    for word in ("Access", "Models and memory", "Limits", "OPENAI_BASE_URL", "--api-key-file"):
        assert word in shown
