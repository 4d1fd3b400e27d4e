"""The store of models on this machine. Models are added and removed atomically.

    home/models/<folder>/   the .gguf, its licence terms, model.json
    home/staging/<folder>/  what is being fetched; moved to models/ by one rename when it is complete
    home/partial/           downloads that can be continued: what has come, and its ETag
    home/names/             names that stand for others: hf:org/repo for the file that was chosen of it
    home/locks/             one file a model, so that two processes do not fetch the same one at once

`home` is $STRETTO_HOME, or `stretto` in $XDG_CACHE_HOME, or ~/.cache/stretto.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stretto.errors import InvalidRequest, PullError
from stretto.weights.files import atomic_write, read_records
from stretto.weights.hub.names import folder

Progress = Callable[[int, int, str], None]  # bytes done, bytes in all (0: not known), what is happening
Check = Callable[[Path], None]  # is given the head of a model, and raises if it cannot be used

CONFIG = "config.json"  # of a Hugging Face folder
RECORD = "model.json"
PARTIAL_DAYS = 14  # after which a download that nobody continued is removed


@dataclass(frozen=True)
class Model:
    """A model in the store.

    `verified` says whether its SHA-256 was compared with one that the source had published; `notices` are
    the licence terms stored with it. Of a split model `path` is the first part and `parts` are the others;
    its size and its hash are those of all parts, one after the other. Of a Hugging Face folder `path` is its
    config.json.
    """

    name: str
    path: Path
    source: str
    nbytes: int
    sha256: str
    verified: bool
    license: str = ""
    license_url: str = ""
    notices: tuple[Path, ...] = ()
    parts: tuple[Path, ...] = ()


class Store:
    """The models under one folder.

    >>> Store("/tmp/models-of-mine").models()
    []
    """

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self.home = Path(home).absolute()

    @classmethod
    def default(cls) -> Store:
        """The store in the folder that the environment sets."""
        home, cache = os.environ.get("STRETTO_HOME"), os.environ.get("XDG_CACHE_HOME", "")
        try:
            if home:
                return cls(Path(home).expanduser())
            # A relative XDG_CACHE_HOME is to be ignored, says its specification.
            return cls((Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "stretto")
        except RuntimeError:
            raise PullError("there is no home directory to keep models in; set STRETTO_HOME") from None

    # -- reading --

    def find(self, name: str) -> Model | None:
        """The model of that name, if it is here and its file has the size it had when it was stored."""
        name = self.target(name)
        return self._read(self.home / "models" / folder(name), name)

    def holding(self, name_or_path: str | os.PathLike[str]) -> Model | None:
        """The model of that name, or the one whose file or folder that path is."""
        with suppress(InvalidRequest):
            if isinstance(name_or_path, str) and (model := self.find(name_or_path)):
                return model
        try:
            path = Path(name_or_path).expanduser().resolve(strict=True)
            place = (self.home / "models").resolve()
        except (OSError, ValueError, RuntimeError):
            return None
        inside = path.relative_to(place).parts if path.is_relative_to(place) else ()
        return self._read(place / inside[0]) if inside else None

    def target(self, name: str) -> str:
        """The name of the model that a name stands for: itself, unless `remember` was told another."""
        try:
            record = read_records(self._note(name))
            return str(record["target"]) if record["name"] == name and folder(record["target"]) else name
        except (OSError, ValueError, KeyError, TypeError, AttributeError, InvalidRequest):
            return name

    def models(self) -> list[Model]:
        """All models, by name."""
        models: list[Model] = []
        with explain_disk_errors(self.home), suppress(FileNotFoundError, NotADirectoryError):
            for path in sorted((self.home / "models").iterdir()):
                if model := self._read(path):
                    models.append(model)
        return sorted(models, key=lambda model: model.name)

    def _read(self, path: Path, name: str | None = None) -> Model | None:
        """The model in `path`; None for a damaged one, so that pulling again replaces it."""
        try:
            record = read_records(path / RECORD)
            file = path / Path(record["file"]).name
            notices = tuple(path / Path(notice).name for notice in record["notices"])
            parts = tuple(path / _inside(part) for part in record.get("parts", ()))
            model = Model(
                name=str(record["name"]),
                path=file,
                source=str(record["source"]),
                nbytes=int(record["nbytes"]),
                sha256=str(record["sha256"]),
                verified=record["verified"] is True,
                license=str(record["license"]),
                license_url=str(record["license_url"]),
                notices=tuple(notice for notice in notices if notice.is_file()),
                parts=parts,
            )
            whole = sum(one.stat().st_size for one in (file, *parts) if one.is_file()) == model.nbytes
            return model if whole and folder(model.name) == path.name and name in (None, model.name) else None
        except (OSError, ValueError, KeyError, TypeError, InvalidRequest):
            return None

    # -- writing --

    @contextmanager
    def fetching(self, name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[Path]:
        """An empty folder to fetch `name` into, of this process only; removed when the block ends.

        If another process is fetching the same model, call `waiting` and wait for it.
        """
        staging = self.home / "staging" / folder(name)
        with explain_disk_errors(self.home):
            for place in ("locks", "models", "staging"):
                (self.home / place).mkdir(parents=True, exist_ok=True)
            with self._lock(folder(name), waiting):
                discard(staging)
                self._sweep()
                try:
                    staging.mkdir(exist_ok=True)
                    # The name is new each time: a download that outlived its killed parent cannot meddle.
                    import tempfile

                    yield Path(tempfile.mkdtemp(dir=staging))
                finally:
                    discard(staging)

    def publish(self, model: Model, staged: Path) -> Model:
        """Make the files in `staged` the model, by one rename. Only within `fetching`."""
        record = {
            "name": model.name,
            "file": model.path.name,
            "source": model.source,
            "nbytes": model.nbytes,
            "sha256": model.sha256,
            "verified": model.verified,
            "license": model.license,
            "license_url": model.license_url,
            "notices": [notice.name for notice in model.notices],
            "parts": [part.relative_to(staged).as_posix() for part in model.parts],
        }
        (staged / RECORD).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        for path in (*staged.rglob("*"), staged):
            sync(path)
        target = self.home / "models" / folder(model.name)
        old = staged.with_name("replaced")
        if os.path.lexists(target):
            target.rename(old)
        try:
            staged.rename(target)
        except BaseException:
            if os.path.lexists(old):
                old.rename(target)
            raise
        sync(target.parent)
        published = self._read(target, model.name)
        if published is None:
            raise PullError("the model was changed while it was stored; pull it again", path=target)
        return published

    def remember(self, name: str, target: str) -> None:
        """Let a name stand for another one from now on."""
        with explain_disk_errors(self.home):
            note = self._note(name)
            note.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(note) as file:
                file.write(json.dumps({"name": name, "target": target}).encode())

    def _note(self, name: str) -> Path:
        return self.home / "names" / f"{folder(name)}.json"

    @contextmanager
    def partial(self, key: str) -> Iterator[Path]:
        """The place of a download that can be continued, of this process only while the block lasts."""
        place = self.home / "partial"
        with explain_disk_errors(self.home):
            for needed in (place, self.home / "locks"):
                needed.mkdir(parents=True, exist_ok=True)
            with self._lock(f"part~{key}", lambda: None):
                yield place / key

    def partial_bytes(self, key: str) -> int:
        """The bytes of a download that are here."""
        try:
            return (self.home / "partial" / f"{key}.part").stat().st_size
        except OSError:
            return 0

    def remove(self, name: str) -> None:
        """Remove a model: first renamed, in one step, then deleted."""
        given, name = name, self.target(name)
        if given != name:
            self._note(given).unlink(missing_ok=True)
        target = self.home / "models" / folder(name)
        with explain_disk_errors(self.home):
            if not os.path.lexists(target):
                here = ", ".join(model.name for model in self.models()) or "none"
                raise InvalidRequest(f"there is no model {name!r} in {self.home}; here are: {here}")
            with self.fetching(name) as staging, suppress(FileNotFoundError):
                if target.is_symlink():  # what it points to is not ours
                    target.unlink()
                else:
                    target.rename(staging / "removed")

    @contextmanager
    def _lock(self, name: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold the model's lock file; if another process does, call `waiting`, then wait.

        The file stays when all is done: deleting it would let two processes in.
        """
        with (self.home / "locks" / f"{name}.lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _sweep(self) -> None:
        """Remove partial downloads of killed processes; locked ones are in use."""
        for path in (self.home / "staging").iterdir():
            with suppress(BlockingIOError), self._lock(path.name, _busy):
                discard(path)
        oldest = time.time() - PARTIAL_DAYS * 86400
        with suppress(FileNotFoundError):
            for path in (self.home / "partial").iterdir():
                key = path.name.partition(".")[0]
                with suppress(BlockingIOError, OSError), self._lock(f"part~{key}", _busy):
                    if path.stat().st_mtime < oldest:
                        discard(path)


def _inside(part: str) -> Path:
    """A relative path of plain names; `ValueError` for one that may lead out of the model's folder."""
    path = PurePosixPath(part)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(part)
    return Path(path)


def _busy() -> None:
    raise BlockingIOError


# -- the disk --


def require_space(path: Path, nbytes: int) -> None:
    """Raise `PullError` unless `nbytes` are free where `path` is."""
    import shutil

    free = shutil.disk_usage(path).free
    if free < nbytes:
        raise PullError(
            f"{nbytes / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free; "
            "make room or set STRETTO_HOME to a folder on another disk",
            path=path,
        )


@contextmanager
def explain_disk_errors(home: Path) -> Iterator[None]:
    """Turn the block's errors of the operating system into `PullError` with a remedy."""
    remedy = "set STRETTO_HOME to a folder"
    try:
        yield
    except BrokenPipeError:  # the caller's progress bar, not the disk
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"the disk is full; make room or {remedy} on another disk"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = f"no permission to write there; check its owner or {remedy} of yours"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            reason = f"not a folder that models can be kept in; {remedy}"
        else:
            reason = f"cannot be used: {error}"
        raise PullError(reason, path=home) from error


def discard(path: Path) -> None:
    """Remove `path`, never the target of a link; on failure the next pull removes it."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            import shutil

            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
