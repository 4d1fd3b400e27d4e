"""Runs the download program, and measures its progress.

Downloads happen in a process of their own: pip and npm bring their settings, retries and
certificates along, whatever version is installed, and a Ctrl-C here ends them at once. How far they are is
read from the sizes of the files, so that no version's progress output has to be parsed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[int, int, str], None]  # bytes done, bytes in all (0: not known), what is happening

_POLL_SECONDS = 0.1
_TERMINATE_SECONDS = 2.0  # until a process that got SIGTERM is killed


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a program."""

    code: int
    output: str
    errors: str


def run(
    command: Sequence[str], *, folder: Path, tick: Callable[[int], None], env: Mapping[str, str] | None = None
) -> Outcome:
    """Run `command` with its temporary files under `folder`; call `tick` with the bytes that lie there.

    An exception in `tick`, as any other, ends the program and is raised again.
    """
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    places = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(temporary))
    # Modules are not imported from the working directory, which may contain a pip.py.
    environment = {**os.environ, **places, "PYTHONSAFEPATH": "1", **(env or {})}
    with tempfile.TemporaryFile(dir=folder) as output, tempfile.TemporaryFile(dir=folder) as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            start_new_session=True,  # the terminal's Ctrl-C reaches only us, and we end the whole group
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
                    break
                tick(bytes_under(folder))
        finally:
            _end(process)
        return Outcome(process.returncode, _text(output.fileno()), _text(errors.fileno()))


def bytes_under(folder: Path) -> int:
    """The sizes of all files under `folder`, which may come and go meanwhile."""
    total = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    total += bytes_under(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started, gently first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_SECONDS)


def _text(descriptor: int) -> str:
    """The text of the file, its last part if it is long."""
    size = os.fstat(descriptor).st_size
    limit = 1 << 20
    return os.pread(descriptor, limit, max(0, size - limit)).decode("utf-8", "replace")
