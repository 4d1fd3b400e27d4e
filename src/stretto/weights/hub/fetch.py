"""Runs download programs, one or several side by side, and measures their progress.

Downloads happen in a process of their own: pip and npm bring their settings, retries and
certificates along, whatever version is installed, and a Ctrl-C here ends them at once. How far they are is
read from the sizes of the files, so that no version's progress output has to be parsed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stretto.weights.hub.store import Progress as Progress

POLL_SECONDS = 0.1
_TERMINATE_SECONDS = 2.0  # until a process that got SIGTERM is killed


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a program."""

    code: int
    output: str
    errors: str


class Program:
    """A program that runs, with its temporary files under `folder`. `end_all` has to be called in the end."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        places = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(temporary))
        self._output = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by `end_all`
        self._errors = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            # Modules are not imported from the working directory, which may contain a pip.py.
            env={**os.environ, **places, "PYTHONSAFEPATH": "1", **(env or {})},
            start_new_session=True,  # the terminal's Ctrl-C reaches only us, and we end the whole group
        )

    @property
    def nbytes(self) -> int:
        """The bytes that lie in its folder."""
        return bytes_under(self.folder)

    def wait(self, seconds: float = 0.0) -> Outcome | None:
        """How it ended, once it has; None if it still runs after so long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return Outcome(
                self._process.returncode, _text(self._output.fileno()), _text(self._errors.fileno())
            )
        return None

    @staticmethod
    def end_all(programs: Iterable[Program]) -> None:
        """End programs and what they started, all at once, gently first."""
        left = list(programs)
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = [program._process for program in left if program._process.poll() is None]
            for process in running:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_TERMINATE_SECONDS)
        for program in left:
            program._output.close()
            program._errors.close()


def run(
    command: Sequence[str], *, folder: Path, tick: Callable[[int], None], env: Mapping[str, str] | None = None
) -> Outcome:
    """Run `command` with its temporary files under `folder`; call `tick` with the bytes that lie there.

    An exception in `tick`, as any other, ends the program and is raised again.
    """
    program = Program(command, folder, env)
    try:
        while (outcome := program.wait(POLL_SECONDS)) is None:
            tick(program.nbytes)
        return outcome
    finally:
        Program.end_all([program])


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


def _text(descriptor: int) -> str:
    """The text of the file, its last part if it is long."""
    size = os.fstat(descriptor).st_size
    limit = 1 << 20
    return os.pread(descriptor, limit, max(0, size - limit)).decode("utf-8", "replace")
