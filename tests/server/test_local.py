"""The Unix socket of a server: commands of the same user get the same texts from it, and nobody else does."""

import asyncio
import errno
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import stretto
from serving import STRETTO, endless, serving
from strange_models import llama
from stretto.cli import main, remote, servers
from stretto.errors import InvalidRequest, StrettoError
from stretto.server import sockets
from stretto.server.settings import RequestLimits

MACHINE = {
    "backend": "auto",
    "device": "auto",
    "threads": None,
    "cells": 8192,
    "kv": "f16",
    "precision": "standard",
    "repack": "auto",
}
MODEL = Path(tempfile.gettempdir()) / f"stretto-test-{os.getpid()}.gguf"
RUN = ("run", "-m", str(MODEL), "--seed", "3", "-n", "12", "--no-stats")


@pytest.fixture(autouse=True)
def runtime(monkeypatch):
    """A short runtime directory: the paths of sockets may have a hundred characters."""
    folder = tempfile.mkdtemp(prefix="st-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """The mock backend counts as one that promises its bits."""
    monkeypatch.setattr("stretto.server.http.local.EXACT", ("native", "mock"))


@pytest.fixture(autouse=True, scope="module")
def model():
    """A model that can be loaded, for all tests here."""
    yield llama(MODEL)
    MODEL.unlink()


def really(**settings):
    """A server that loads the model."""
    models = (f"m={MODEL}",)
    return serving(lambda entry: stretto.load(entry.source), models=models, local=True, **settings)


def door(running):
    return running.server.local


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command here: its exit code, output and errors."""

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


def find(opened=None, model=MODEL, **options):
    """The model in a server; what has to be loaded here is counted in `opened`."""

    def open_here():
        opened.append(model)
        return stretto.load(model)

    return remote.find(str(model), vision=None, open_here=open_here, **{**MACHINE, **options})


# -- the same texts --


def test_run_asks_the_server_and_prints_the_same(command):
    with really() as running:
        assert command(*RUN, "Once upon") == command(*RUN, "--no-server", "Once upon")
        assert door(running).n_answered == 1


def test_json_is_the_same_but_for_times_and_the_cache(command):
    with really() as running:
        there, here = (
            json.loads(command(*RUN, "--json", *option, "Once upon")[1]) for option in ((), ("--no-server",))
        )
        assert door(running).n_answered == 1
    for found in (there, here):
        del found["timings"], found["usage"]["cached_tokens"]
    assert there == here


def test_a_grammar_and_stops_go_over_the_socket(command):
    with really() as running:
        options = ("--regex", "[ab]{12}", "--stop", "aaaa")
        assert command(*RUN, *options, "x") == command(*RUN, "--no-server", *options, "x")
        assert door(running).n_answered == 1


def test_an_error_is_the_same(command):
    with really():
        wrong = ("--temperature", "-1", "x")
        assert command(*RUN, *wrong) == command(*RUN, "--no-server", *wrong)


def test_a_chat_asks_the_server(command):
    chat = ("chat", "-m", str(MODEL), "--seed", "1", "-n", "8", "--no-stats")
    with really() as running:
        assert command(*chat, stdin="Hi\nAgain\n") == command(*chat, "--no-server", stdin="Hi\nAgain\n")
        assert door(running).n_answered == 2


# -- only if it is the same model, loaded in the same way --


def test_other_options_of_loading_load_here(command):
    with really() as running:
        for option in (("--cells", "512"), ("--threads", "1"), ("--precision", "high"), ("--repack", "no")):
            assert command(*RUN, *option, "x")[0] == 0
        assert door(running).n_answered == 0


def test_other_kernels_load_here(monkeypatch):
    with really():
        monkeypatch.setenv("STRETTO_KERNELS", "portable")
        assert find() is None


def test_a_file_that_was_written_to_is_another_one(tmp_path):
    file = tmp_path / "m.gguf"
    shutil.copy(MODEL, file)
    with serving(models=(f"m={file}",), local=True):
        with find(model=file) as there:
            assert there.context_length > 0
        os.utime(file)
        assert find(model=file) is None


@pytest.mark.parametrize("other", [{"vision": "sketch"}, {"template": "{{ messages[0].content }}"}])
def test_a_model_that_run_would_not_load_so_is_not_offered(other, monkeypatch):
    from dataclasses import replace

    from stretto.server.settings import ModelEntry

    parse = ModelEntry.parse
    monkeypatch.setattr(ModelEntry, "parse", lambda text: replace(parse(text), **other))
    with serving(models=(f"mock={MODEL}",), local=True):
        assert find() is None


def test_a_backend_that_does_not_promise_its_bits_is_not_asked(monkeypatch):
    monkeypatch.setattr("stretto.server.http.local.EXACT", ("native",))
    with serving(models=(f"m={MODEL}",), local=True):
        assert find() is None


def test_what_has_no_json_is_computed_here():
    opened = []
    with really(), find(opened) as llm:
        said = llm.generate("x", max_tokens=4, seed=1).tokens
        assert not opened
        watched = llm.generate("x", max_tokens=4, seed=1, hooks=[lambda logits, tokens: None])
        assert (watched.tokens, opened) == (said, [MODEL])
        assert llm.generate("x", max_tokens=4, seed=1).tokens == said
        assert llm.tokenizer.n_vocab == llm.spec.n_vocab


def test_a_server_that_refuses_lets_the_model_be_loaded_here():
    opened = []
    with really() as running, find(opened) as llm:
        running.state.traffic.stopping = True
        assert llm.generate("x", max_tokens=2).tokens
        assert opened == [MODEL]


# -- streams that end early --


def wait_until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_cancel_ends_the_stream_and_keeps_what_came():
    with serving(endless(), models=(f"m={MODEL}",), local=True) as running, find() as llm:
        with llm.stream("x") as stream:
            tokens = iter(stream)
            first = next(tokens)
            stream.cancel()
            rest = list(tokens)
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.text.startswith(first.text)
        assert rest[-1].finish_reason == "cancelled"
        wait_until(lambda: not running.state.generations)
        with llm.stream("y", max_tokens=2) as again:  # the connection goes on
            assert again.result.finish_reason == "length"


def test_a_client_that_goes_cancels_its_stream():
    with serving(endless(), models=(f"m={MODEL}",), local=True) as running:
        llm = find()
        next(iter(llm.stream("x")))
        assert running.state.generations
        llm.close()
        wait_until(lambda: not running.state.generations)


def test_the_end_of_the_server_ends_streams_with_a_reason():
    with serving(endless(), models=(f"m={MODEL}",), local=True) as running:
        llm = find()
        stream = llm.stream("x")
        next(iter(stream))
        running.server.end()
        assert stream.result.finish_reason == "cancelled"
        llm.close()
    assert not sockets.sockets()


def test_a_client_that_reads_nothing_does_not_hold_up_the_end_of_the_server(monkeypatch):
    stuck = threading.Event()

    async def block(talk, answer):
        stuck.set()
        await asyncio.Event().wait()  # as a full buffer does

    monkeypatch.setattr("stretto.server.http.local.LAST_BYTES_SECONDS", 0.0)
    with serving(endless(), models=(f"m={MODEL}",), local=True, grace_seconds=0.1):
        llm = find()
        monkeypatch.setattr("stretto.server.http.local.Talk.send", block)
        llm.connection.send({"verb": "stream", "model": "m", "prompt": "x", "options": {}})
        assert stuck.wait(60)
    llm.close()
    assert not sockets.sockets()


# -- others who listen there --


class Pretender:
    """A socket in the folder that says what a test wants: lines, one for each request, then it closes."""

    def __init__(self, *lines, number=1, about=None):
        where = sockets.folder()
        where.mkdir(0o700, exist_ok=True)
        self.path = where / f"{number}{sockets.SUFFIX}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(self.path))
        self._listening.listen()
        models = [{"name": "m", "loaded": True, "loading": sockets.loading(MODEL, **MACHINE)}]
        known = {"protocol": sockets.PROTOCOL, "pid": os.getpid(), "models": models, **(about or {})}
        facts = {"has_template": False, "context_length": 9, "backend": "x", "placement": None, "end_ids": []}
        self.lines = [known, facts, *lines]
        self._thread = threading.Thread(target=self._talk)
        self._thread.start()

    def _talk(self):
        connected, _ = self._listening.accept()
        # A client that has read enough goes; closing the file would write the rest to it.
        with suppress(OSError), connected, connected.makefile("rwb") as file:
            for line in self.lines:
                if not file.readline():
                    return
                file.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
                file.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._thread.join(60)
        self._listening.close()


TOKEN = {"token": [1, "a", None, [], None, False]}


def test_a_server_that_dies_in_the_middle_is_an_error():
    with Pretender(TOKEN), find() as llm:
        stream = llm.stream("x")
        with pytest.raises(StrettoError, match=r"the answer was cut: .*--no-server"):
            list(stream)


def test_one_that_dies_before_the_first_token_is_not_missed():
    opened = []
    with Pretender(), find(opened) as llm:
        assert llm.generate("x", max_tokens=2).tokens
    assert opened == [MODEL]


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"[" * 100_000 + b"\n", b""])
def test_nonsense_is_no_server(line):
    with Pretender() as fake:
        fake.lines[0] = line
        assert list(sockets.servers()) == []


def test_a_line_without_an_end_is_no_server(monkeypatch):
    monkeypatch.setattr(sockets, "MAX_LINE_BYTES", 1 << 16)
    with Pretender() as fake:
        fake.lines[0] = b"x" * (1 << 18)
        assert list(sockets.servers()) == []


def test_another_protocol_is_no_server():
    with Pretender(about={"protocol": 99}):
        assert list(sockets.servers()) == []


def test_a_server_of_another_user_is_not_asked(monkeypatch):
    with Pretender(), monkeypatch.context() as patch:
        patch.setattr(sockets, "find_peer", lambda connected: sockets.Peer(1, os.geteuid() + 1))
        assert list(sockets.servers()) == []


def test_a_client_of_another_user_is_not_answered(monkeypatch):
    with serving(models=(f"mock={MODEL}",), local=True) as running:
        path = door(running).path
        monkeypatch.setattr(sockets, "find_peer", lambda connected: sockets.Peer(1, os.geteuid() + 1))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(path))
            with suppress(BrokenPipeError, ConnectionResetError):  # where the server was quicker
                client.sendall(b'{"verb": "about"}\n')
            assert client.recv(100) == b""


def test_the_socket_and_its_folder_are_the_users_own(runtime):
    with serving(models=(f"mock={MODEL}",), local=True) as running:
        assert door(running).path.stat().st_mode & 0o777 == 0o600
        assert (runtime / "stretto").stat().st_mode & 0o777 == 0o700
    assert not list((runtime / "stretto").iterdir())


@pytest.mark.parametrize("make", ["open", "link", "file"])
def test_a_folder_that_others_may_use_is_not_used(runtime, make, caplog):
    where = runtime / "stretto"
    if make == "open":
        where.mkdir()
        where.chmod(0o755)
    elif make == "link":
        (runtime / "other").mkdir(0o700)
        where.symlink_to(runtime / "other")
    else:
        where.touch(0o600)
    with serving(models=(f"mock={MODEL}",), local=True) as running:
        assert door(running) is None
        assert sockets.sockets() == []
    assert "nobody else may look into" in caplog.text


def test_without_a_private_runtime_directory_it_is_in_tmp(runtime):
    runtime.chmod(0o755)
    assert sockets.folder() == Path(f"/tmp/stretto-{os.geteuid()}")


def test_sockets_that_nobody_listens_on_are_removed(runtime):
    (runtime / "stretto").mkdir(0o700)
    for name in ("12.sock", "note.txt", "x.sock"):
        path = runtime / "stretto" / name
        if name == "note.txt":
            path.touch()
        else:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
    assert list(sockets.servers()) == []
    assert {path.name for path in (runtime / "stretto").iterdir()} == {"note.txt", "x.sock"}


def test_requests_that_are_none_are_refused_or_end_the_connection():
    with (
        serving(models=(f"mock={MODEL}",), local=True),
        sockets.Connection(sockets.sockets()[0]) as connection,
    ):
        for request in ({"verb": "fly", "model": "mock"}, {"verb": "stream", "model": "mock"}):
            assert connection.ask(request)["error"]["kind"] == "InvalidRequest"
        assert connection.ask({"verb": "open", "model": "no"})["error"]["unavailable"]
        assert connection.ask({"verb": "open", "model": "mock"})["context_length"] > 0
        connection.socket.sendall(b"nonsense\n")
        with pytest.raises(sockets.Gone):
            connection.receive()


def test_a_line_that_is_too_long_ends_the_connection():
    limits = RequestLimits(body=1 << 12)
    with serving(models=(f"mock={MODEL}",), limits=limits, local=True) as running:
        for _ in range(2):
            with sockets.Connection(sockets.sockets()[0]) as connection:
                connection.socket.sendall(b"x" * (1 << 14))
                with pytest.raises(sockets.Gone):
                    connection.receive()
        wait_until(lambda: not door(running).tasks)


# -- ps and stop --


def test_ps_lists_servers(command):
    assert command("ps") == (0, "no server of yours is running; stretto serve starts one\n", "")
    with serving(models=(f"mock={MODEL}",), local=True) as running:
        code, out, _ = command("ps")
        assert code == 0
        assert "mock (not loaded)" in out
        assert running.url in out
        (found,) = json.loads(command("ps", "--json")[1])
        assert found["pid"] == os.getpid()
        assert found["models"] == [{"name": "mock", "loaded": False}]
        assert found["memory"] > 0


def test_stop_says_what_there_is(command):
    assert "no server of yours is running" in command("stop")[2]
    assert command("stop", "--all")[0] == 0
    assert "not both" in command("stop", "x", "--all")[2]
    with serving(models=(f"mock={MODEL}",), local=True):
        assert f"there is {os.getpid()} (mock)" in command("stop", "other")[2]


def test_stop_signals_only_the_process_of_the_socket(monkeypatch):
    for module, name in ((os, "kill"), (os, "pidfd_open")):
        monkeypatch.setattr(module, name, lambda *args: pytest.fail("a signal was sent"), raising=False)
    with Pretender(about={"pid": 1}), pytest.raises(InvalidRequest, match="it is not stopped"):
        servers.stop()


@pytest.mark.parametrize("error", [PermissionError, OSError(errno.ENOSYS, "not here"), AttributeError])
def test_stop_needs_no_descriptors_of_processes(monkeypatch, error):
    def refuse(pid):
        raise error

    signals = []
    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    monkeypatch.setattr(servers, "PATIENCE_SECONDS", 0.0)
    with Pretender(about={"pid": os.getpid()}), pytest.raises(InvalidRequest, match="still runs"):
        servers.stop()
    assert signals == [(os.getpid(), signal.SIGTERM)]


def test_a_server_that_has_ended_meanwhile_is_stopped(monkeypatch, capsys):
    def refuse(pid):
        raise ProcessLookupError

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    with Pretender(about={"pid": os.getpid()}):
        servers.stop()
    assert capsys.readouterr().out.startswith(f"stopped {os.getpid()}")


def test_a_server_is_started_found_and_stopped(runtime):
    server = subprocess.Popen(
        [*STRETTO, "serve", "-m", f"tiny={MODEL}", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout.readline().startswith("serving tiny")
        wait_until(sockets.sockets)
        code = (
            "import sys\nfrom stretto.cli import main\n"
            "try:\n    main(sys.argv[1:])\nfinally:\n"
            "    print({'numpy', 'rich', 'pydantic', 'asyncio', 'stretto.llm'} & sys.modules.keys())\n"
        )
        done = subprocess.run([sys.executable, "-c", code, *RUN, "Once"], capture_output=True, text=True)
        assert done.stdout.endswith("set()\n"), done.stderr
        done = subprocess.run([*STRETTO, "stop", "tiny"], capture_output=True, text=True)
        assert done.stdout == f"stopped {server.pid} (tiny)\n", done.stderr
        assert server.wait(60) == 0
        assert not sockets.sockets()
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGKILL)
        server.communicate()
