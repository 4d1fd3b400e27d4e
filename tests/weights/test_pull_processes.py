"""Pulls that are killed, and pulls that meet: real processes, the real pip, a server that waits."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from stretto.weights import hub
from stretto.weights.hub import packages
from stretto.weights.hub.store import Store

TESTS = Path(__file__).parent.parent

PULL = """
import sys, local_index
local_index.install(sys.argv[1])
from stretto.cli import main
main(["pull", "tiny"])
"""

REPORT = """
import sys, local_index
local_index.install(sys.argv[1])
from stretto.weights import hub
print(hub.pull("tiny", progress=lambda done, total, what: print(what, flush=True)).sha256)
"""


@pytest.fixture
def start():
    """Starts a process that ends with the test at the latest."""
    with ExitStack() as stack:

        def start(code, entry):
            command = [sys.executable, "-c", code, repr(entry)]
            environment = {**os.environ, "PYTHONPATH": str(TESTS)}
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_pull_and_leaves_nothing(start, tiny, index, store_home, number, code):
    index.stall = True
    process = start(PULL, tiny)
    assert index.asked.wait(120)
    until(lambda: packages.bytes_under(store_home) > 0)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert files(store_home) == []


def test_what_a_killed_process_left_is_cleared_away(start, tiny, index, store_home):
    index.stall = True
    process = start(PULL, tiny)
    assert index.asked.wait(120)
    until(lambda: files(store_home))
    process.kill()
    process.communicate()
    assert hub.models() == []
    # A pull of any other model sweeps; one of this model does too, and succeeds.
    with Store(store_home).fetching("other"):
        assert files(store_home) == []
    index.stall = False
    index.go.set()
    assert hub.pull("tiny").sha256 == tiny.sha256
    assert len(files(store_home)) == 3


def test_the_second_of_two_pulls_waits_and_finds_it_there(start, tiny, index, store_home):
    index.stall = True
    first = start(REPORT, tiny)
    assert index.asked.wait(120)
    second = start(REPORT, tiny)
    assert second.stdout.readline() == "waiting for another pull of it\n"
    index.go.set()
    for process in (first, second):
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
        assert output.splitlines()[-1] == tiny.sha256
    assert [request for request in index.requests if "/wheels/" in request and "GET" in request] == [
        "GET /wheels/stretto_tiny_part0-1.0-py3-none-any.whl"
    ]
    assert len(files(store_home)) == 3


def test_progress_follows_the_bytes_that_arrive(tiny, index):
    index.stall = True
    seen = []

    def watch(done, total, what):
        seen.append(done)
        if done:
            index.go.set()

    hub.pull("tiny", progress=watch)
    assert any(0 < done < tiny.packages[0].nbytes for done in seen)


def test_a_program_ends_with_its_children(tmp_path):
    script = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {script!r}])"

    program = packages.Program([sys.executable, "-c", code], tmp_path)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    packages.Program.end_all([program])
    child = int((tmp_path / "pid").read_text())
    until(lambda: not alive(child))


def alive(pid):
    """Whether a process still runs; one that ended and was not collected yet does not."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_and_code_come_back(tmp_path):
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    program = packages.Program([sys.executable, "-c", code], tmp_path)
    try:
        assert program.wait(120) == packages.Outcome(3, "out\n", "err\n")
    finally:
        packages.Program.end_all([program])
