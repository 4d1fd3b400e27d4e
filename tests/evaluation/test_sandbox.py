"""Generated programs can reach nothing of this machine; tried where it has namespaces or bubblewrap."""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stretto.errors import Unsupported
from stretto.evaluation import sandbox
from stretto.evaluation.sandbox import MEMORY_BYTES, PROCESSES, TMP_BYTES, require_sandbox, run_python


@pytest.fixture
def said():
    """Runs a program that fails: what it says. Skips where there is no sandbox."""
    try:
        require_sandbox()
    except Unsupported as error:
        pytest.skip(f"this machine has no namespaces: {error}")

    def run(source, seconds=30.0):
        verdict = run_python(source, seconds)
        assert not verdict.passed
        return verdict.reason

    return run


def test_a_program_passes_or_says_why_not(said):
    assert run_python("import math, re, collections\nassert math.sqrt(4) == 2").passed
    assert said("assert 1 == 2, 'no'") == "AssertionError: no"
    assert said("def f(:").startswith("SyntaxError")


def test_a_program_that_leaves_early_has_not_passed(said):
    assert said("import sys; sys.exit(0)") == "SystemExit: 0"
    assert "ended with code 0" in said("import os; os._exit(0)")
    assert "ended with code 125" in said("import os; os._exit(125)")


def test_a_program_that_writes_to_the_pipe_of_its_verdict_is_ended(said):
    flood = """
import os
for number in range(3, 64):
    try:
        while True:
            os.write(number, bytes(65536))
    except OSError:
        pass
"""
    assert said(flood) == "wrote more than a verdict to the pipe of it"


def test_a_program_is_killed_before_others_where_memory_ends(said, monkeypatch):
    score = ["/bin/cat", "/proc/self/oom_score_adj"]
    monkeypatch.setattr(sandbox, "_in_namespaces", lambda folder: score)
    monkeypatch.setattr(sandbox, "_in_bubblewrap", lambda: score)
    assert said("pass") == "1000\n"


def test_files_of_this_machine_are_not_there(said, tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    hidden = [str(path) for path in Path.home().iterdir() if path.name != ".pyenv"]
    seen = f"import os; assert 0, [path for path in {hidden!r} if os.path.lexists(path)]"
    assert said(seen) == "AssertionError: []"
    monkeypatch.setenv("STRETTO_TEST_SECRET", "secret")
    assert "STRETTO" not in said("import os; assert 0, dict(os.environ)")


def test_nothing_can_be_written_but_a_small_tmp(said, tmp_path):
    for path in ("/made", "/usr/made", "/home/made", os.path.realpath(os.__file__)):
        assert said(f"open({path!r}, 'a')").startswith(("OSError", "PermissionError"))
    kept = tmp_path / "made"
    assert "FileNotFoundError" in said(f"open({str(kept)!r}, 'w')")
    assert run_python("open('/tmp/made', 'w').write('x')").passed
    assert not Path("/tmp/made").exists()
    fill = f"for i in range(9): open(f'/tmp/{{i}}', 'wb').write(bytes({TMP_BYTES // 4}))"
    assert "No space left" in said(fill)


def test_there_is_no_network(said):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert said(f"import socket; socket.create_connection({address!r}, 2)").startswith(
            ("OSError", "ConnectionRefusedError")
        )
    assert said("import socket; socket.create_connection(('192.0.2.1', 80), 2)").startswith("OSError")


def test_processes_memory_and_time_are_limited(said):
    forks = "import os\nn = 0\nwhile True:\n    if os.fork() == 0:\n        import time; time.sleep(60)\n"
    started = time.monotonic()
    assert "BlockingIOError" in said(forks + "    n += 1\n    assert n <= " + str(PROCESSES))
    assert said(f"bytearray({2 * MEMORY_BYTES})").startswith("MemoryError")
    assert time.monotonic() - started < 30  # the forked ones do not live on
    assert said("import time; time.sleep(60)", 1.0) == "not done after 1 seconds"


def test_what_a_killed_program_had_started_ends_with_it(said, monkeypatch):
    mark = f"# {time.monotonic_ns()}"
    monkeypatch.setattr(sandbox, "_INSIDE", sandbox._INSIDE + mark)
    assert "not done" in said("import os, time\nfor _ in range(3): os.fork()\ntime.sleep(60)", 1.0)
    deadline = time.monotonic() + 10
    while any(mark in command for command in commands()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def commands():
    """The command lines of all processes here."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().decode("utf-8", "replace")


def test_no_privileges_can_be_had(said):
    call = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); assert 0, "
    assert said(call + "libc.unshare(0x10000000)") == "AssertionError: -1"  # a user namespace
    assert said(call + "libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0)") == "AssertionError: -1"
    alive = said("import os; os.kill(1, 9); assert 0, 'alive'")  # of one's own user, but the first process
    assert alive.startswith(("PermissionError", "AssertionError: alive"))
    raised = "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
    assert said(raised).startswith(("ValueError", "PermissionError"))


def test_without_namespaces_nothing_is_run(monkeypatch):
    require_sandbox.cache_clear()
    monkeypatch.setattr(sandbox, "_in_namespaces", lambda folder: ["/bin/sh", "-c", "echo no >&2; exit 125"])
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    try:
        with pytest.raises(Unsupported, match="only in a sandbox, and none can be made here"):
            run_python("pass")
    finally:
        require_sandbox.cache_clear()
