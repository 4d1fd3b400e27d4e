"""Servers as processes: ours, or a peer's."""

import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

OURS = [sys.executable, "-c", "from stretto.cli import main; main()", "serve"]


@contextmanager
def ours(*options):
    """`stretto serve` on a free port: its address and its process id."""
    command = [*OURS, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the server did not start")
            yield line.split()[-1], process.pid
        finally:
            end(process)


@contextmanager
def peer(command, address, seconds=120):
    """Another server, by its command line, ready when it answers; or one that runs already, by its address.

    The process id is None for one that somebody else has started.
    """
    if command.startswith("http://"):
        if not answers(command):
            raise SystemExit(f"nobody answers at {command}")
        yield command, None
        return
    with subprocess.Popen(
        shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + seconds
            while not answers(address):
                if time.monotonic() > deadline or process.poll() is not None:
                    raise SystemExit(f"{command} does not answer at {address}")
                time.sleep(0.2)
            yield address, process.pid
        finally:
            end(process)


def end(process):
    """Ask it to end, and see that it does."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answers(address):
    try:
        with urllib.request.urlopen(f"{address}/v1/models", timeout=2) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def cpu_seconds(pid):
    """What a process has used of the processors; 0 where that is not known."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid):
    """Bytes that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid):
    """How many files and connections a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
