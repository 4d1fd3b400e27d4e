"""NVIDIA's devices, as its own program lists them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

_FIELDS = "name,memory.total,memory.free,driver_version"
_COMMAND = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
_TIMEOUT_SECONDS = 2.0  # a hung driver never answers


@dataclass(frozen=True)
class Gpu:
    """A device. Memory in bytes; None where it has none of its own."""

    name: str
    memory_total: int | None
    memory_free: int | None
    driver: str


def find(command: tuple[str, ...] = _COMMAND, patience: float = _TIMEOUT_SECONDS) -> tuple[Gpu, ...]:
    """The devices of this machine; none if the program is missing, fails or is too slow."""
    import subprocess

    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError):
        return ()
    try:
        output, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        # Hung in the driver it cannot even be killed: it is abandoned, not waited for.
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        if process.stdout:
            process.stdout.close()
        return ()
    return parse(output.decode("utf-8", "replace")) if process.returncode == 0 else ()


def parse(output: str) -> tuple[Gpu, ...]:
    """Parse one device a line; other lines are skipped."""
    gpus = []
    for line in output.splitlines():
        words = [word.strip() for word in line.rsplit(",", 3)]
        if len(words) == 4 and words[0]:
            name, total, free, driver = words
            gpus.append(Gpu(name, _mebibytes(total), _mebibytes(free), driver))
    return tuple(gpus)


def _mebibytes(word: str) -> int | None:
    return int(word) * 2**20 if word.isascii() and word.isdigit() and len(word) < 12 else None
