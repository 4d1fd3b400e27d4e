"""Runs generated Python where it can do no harm: in namespaces of its own, or in bubblewrap, or not at all.

    verdict = run_python("assert 1 + 1 == 2")
    assert verdict.passed

A program has no network, an empty home, nothing of this machine's files but Python's and the system's
libraries (read-only), a /tmp of its own, and limits on CPU, time, memory, files and processes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, cast

from stretto.errors import Unsupported
from stretto.evaluation.jail import DEVICES, REFUSED

CPU_SECONDS = 10
WALL_SECONDS = 30.0  # a busy machine is no reason to fail
MEMORY_BYTES = 1 << 30  # of address space, each process
TMP_BYTES = 16 << 20
PROCESSES = 16
LIMITS = {
    "RLIMIT_CPU": CPU_SECONDS,
    "RLIMIT_AS": MEMORY_BYTES,
    "RLIMIT_FSIZE": TMP_BYTES,
    "RLIMIT_NOFILE": 64,
    "RLIMIT_NPROC": PROCESSES,
    "RLIMIT_CORE": 0,
}
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
MAX_VERDICT_BYTES = 2000
MAX_SAID_BYTES = 1 << 14  # that are read of a sandbox
PASSED = "passed"
# All processes together may take more memory than there is: then these are the first ones to be killed.
_KILLED_FIRST = ("/bin/sh", "-c", 'echo 1000 >/proc/self/oom_score_adj; exec "$@"', "sh")
_PROBE_SECONDS = 30.0

# Run within: limits itself, reads the program from stdin, and says on stdout how it ended. What the program
# prints is dropped, and what it replaces in `os` changes nothing.
_INSIDE = f"""
import os, resource, sys
source = sys.stdin.buffer.read().decode()
for name, value in {LIMITS!r}.items():
    resource.setrlimit(getattr(resource, name), (value, value))
verdict, null = os.dup(1), os.open("/dev/null", os.O_RDWR)
for number in range(3):
    os.dup2(null, number)
os.chdir("/tmp")
write, leave = os.write, os._exit
try:
    exec(compile(source, "program", "exec"), {{"__name__": "program"}})
    said = {PASSED!r}
except BaseException as error:
    said = f"{{type(error).__name__}}: {{error}}"
write(verdict, said.encode("utf-8", "replace")[:{MAX_VERDICT_BYTES}])
leave(0)
"""


@dataclass(frozen=True)
class Verdict:
    """How a program ended: `passed`, or the exception, limit or signal that ended it."""

    passed: bool
    reason: str


def run_python(source: str, seconds: float = WALL_SECONDS) -> Verdict:
    """Run a program in the sandbox; raises `Unsupported` where there is none.

    >>> run_python("assert False, 'no'")
    Verdict(passed=False, reason='AssertionError: no')
    """
    wrapper = require_sandbox()
    code, said, errors = _run(wrapper, source, seconds)
    if code is None:
        return Verdict(False, f"not done after {seconds:g} seconds")
    if len(said) > MAX_VERDICT_BYTES:
        return Verdict(False, "wrote more than a verdict to the pipe of it")
    if said:
        return Verdict(said == PASSED, said)
    if code == REFUSED and errors:  # which a program cannot write to
        raise Unsupported(f"the sandbox could not be made: {errors.strip()[-300:]}", param="allow_code")
    return Verdict(False, f"ended with code {code}: out of CPU time, killed, or left by itself")


@cache
def require_sandbox() -> str:
    """The kind of sandbox this machine has, "namespaces" or "bubblewrap"; raises if it has neither."""
    reasons = []
    for wrapper in ("namespaces", "bubblewrap"):
        if wrapper == "bubblewrap" and (shutil.which("bwrap") is None or os.geteuid() == 0):
            continue  # Linux limits no number of processes for root
        code, said, errors = _run(wrapper, "", _PROBE_SECONDS)
        if (code, said) == (0, PASSED):
            return wrapper
        reasons.append(f"{wrapper}: {errors.strip()[-300:] or f'code {code}'}")
    raise Unsupported(
        f"generated code runs only in a sandbox, and none can be made here ({'; '.join(reasons)}). It needs "
        "Linux 5.12 or newer with user namespaces (sysctl user.max_user_namespaces, and "
        "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu), or bubblewrap for a user other than root",
        param="allow_code",
    )


def _run(wrapper: str, source: str, seconds: float) -> tuple[int | None, str, str]:
    """The exit code (None: out of time), what was said, and the errors of one program."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    with tempfile.TemporaryDirectory(prefix="stretto-sandbox-") as folder:
        command = _in_bubblewrap() if wrapper == "bubblewrap" else _in_namespaces(folder)
        with subprocess.Popen(
            [*_KILLED_FIRST, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
        ) as process:
            timer = threading.Timer(seconds, stop)
            timer.start()
            try:
                said, errors = _exchange(process, source.encode("utf-8", "replace"))
            finally:
                timer.cancel()
                process.kill()  # and with it all that runs in the sandbox
    return None if late.is_set() else process.returncode, said, errors


def _exchange(process: subprocess.Popen[bytes], given: bytes) -> tuple[str, str]:
    """What a process says about what it is given, and its errors; no more of both is ever held."""
    stdin, *pipes = (cast(IO[bytes], pipe) for pipe in (process.stdin, process.stdout, process.stderr))
    with suppress(BrokenPipeError), stdin:  # it may have ended before
        stdin.write(given)
    found = []
    for pipe in pipes:
        found.append(pipe.read(MAX_SAID_BYTES))
        if len(found[-1]) == MAX_SAID_BYTES:  # a program writes to its pipe, for as long as it is read
            process.kill()
    said, errors = (one.decode("utf-8", "replace") for one in found)
    return said, errors


def _python() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(sys.executable)


def _paths() -> list[str]:
    """What a program sees of this machine's files."""
    prefix = os.path.realpath(sys.base_prefix)
    paths = [path for path in SYSTEM if os.path.lexists(path)]
    return paths if prefix.startswith("/usr") else [*paths, prefix]


def _inside() -> list[str]:
    return [_python(), "-I", "-S", "-B", "-c", _INSIDE]


def _in_namespaces(folder: str) -> list[str]:
    settings = {"folder": folder, "paths": _paths(), "tmp_bytes": TMP_BYTES, "command": _inside()}
    script = Path(__file__).with_name("jail.py")
    return [_python(), "-I", "-S", "-B", str(script), json.dumps(settings)]


def _in_bubblewrap() -> list[str]:
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--unshare-user", "--disable-userns"]
    command += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    command += ["--setenv", "HOME", "/home", "--setenv", "TMPDIR", "/tmp"]
    for path in _paths():
        is_link = Path(path).is_symlink()
        command += ["--symlink", str(Path(path).readlink()), path] if is_link else ["--ro-bind", path, path]
    for device in DEVICES:
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    command += ["--dir", "/home", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]
    return [*command, "--remount-ro", "/", "--", *_inside()]
