"""Names that Ollama's clients give to models: served models, and models made from them (`/api/create`).

A made model is a name with a system message, parameters, a template and messages of its own, on a model that
is served. It is a small file of JSON in the model store; no weights are copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from stretto.server.http.errors import field_error
from stretto.server.http.registry import Registry
from stretto.server.http.served_model import ServedModel
from stretto.weights.hub.store import Store, explain_disk_errors, require_space

TAG = ":latest"
MAX_MADE = 256
MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?")


@dataclass(frozen=True)
class Made:
    """A model that was made from another."""

    name: str
    base: str
    system: str = ""
    template: str = ""
    license: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)


class MadeModels:
    """The made models of a store, read when they are first needed. Thread-safe."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._made: dict[str, Made] | None = None
        self._lock = threading.Lock()

    def all(self) -> dict[str, Made]:
        """The made models by name."""
        with self._lock:
            if self._made is None:
                self._made = _read_all(self._folder())
            return dict(self._made)

    def add(self, made: Made) -> None:
        """Keep a model; one of the same name is replaced."""
        text = self.check(made)
        with self._lock:
            folder = self._folder()
            folder.mkdir(parents=True, exist_ok=True)
            path = _path(folder, made.name)
            staged = path.with_suffix(".new")
            staged.write_text(text, "utf-8")
            staged.replace(path)
            self._made = {**(self._made or {}), made.name: made}

    def check(self, made: Made) -> str:
        """The text of a model's file; raises for a model that cannot be kept."""
        check_name(made.name)
        text = json.dumps(asdict(made))
        known = self.all()
        if len(text) > MAX_BYTES:
            message = f"the model's texts have {len(text):,} bytes as JSON; at most {MAX_BYTES:,} are kept"
            raise field_error("model", message, "over_limit")
        if len(known) >= MAX_MADE and made.name not in known:
            message = f"{MAX_MADE} models have been made already; delete one with /api/delete"
            raise field_error("model", message, "over_limit")
        return text

    def remove(self, name: str) -> bool:
        """Forget a model; False if there is none of that name."""
        if name not in self.all():
            return False
        with self._lock:
            _path(self._folder(), name).unlink(missing_ok=True)
            self._made = {key: made for key, made in (self._made or {}).items() if key != name}
        return True

    def resolve(self, name: str, registry: Registry) -> tuple[ServedModel, Made]:
        """The served model behind a name, and what is to be added to requests for it."""
        name = plain(name)
        made = self.all().get(name)
        if made is None:
            served = registry.find(name)
            return served, Made(name, name)
        return registry.find(made.base), made

    def _folder(self) -> Path:
        if self._home is None:
            self._home = Store.default().home
        return self._home / "made"


def check_name(name: str) -> None:
    """Raise for a name that no model can be given."""
    if not _NAME.fullmatch(name):
        raise field_error("model", f"{name[:100]!r} is no name for a model: letters, digits, . _ - and a tag")


def plain(model: str) -> str:
    """A model's name without the tag that Ollama's clients append."""
    return model.removesuffix(TAG)


def add_tag(name: str) -> str:
    """A model's name as Ollama's clients show it."""
    return name if ":" in name else name + TAG


def rebase(made: Made, name: str, base: Made) -> Made:
    """A model made from one that was made itself: what it does not say comes from that."""
    return replace(
        made,
        name=name,
        base=base.base,
        system=made.system or base.system,
        template=made.template or base.template,
        license=made.license or base.license,
        parameters={**base.parameters, **made.parameters},
        messages=made.messages or base.messages,
    )


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(':', '%3A')}.json"


def _read_all(folder: Path) -> dict[str, Made]:
    found: dict[str, Made] = {}
    paths = sorted(folder.glob("*.json"))[:MAX_MADE] if folder.is_dir() else []
    for path in paths:
        with suppress(OSError, ValueError, TypeError):  # a damaged one is none
            if path.stat().st_size <= MAX_BYTES:
                made = Made(**json.loads(path.read_text("utf-8")))
                if isinstance(made.name, str) and _path(folder, made.name) == path:
                    found[made.name] = made
    return found


# Files that Ollama's clients send to make models from: `blobs/` in the model store, named by their SHA-256.
#
# A file is written under another name, and renamed when all of it is there and its hash is right. Models
# that are made from it are hard links to it. Files that no model uses are removed after some days.

UNUSED_DAYS = 14
SPARE_BYTES = 64 << 20  # that must be free while a file of unknown size is written
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def read_digest(digest: str, field: str = "digest") -> str:
    """The hexadecimal digits of `sha256:…`, which a field has; raises for anything else."""
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise field_error(
            field, f"{field}: {digest[:100]!r} is no digest: sha256: and 64 digits of 0-9 and a-f"
        )
    return found[1]


class Blobs:
    """The files of a store, by hash."""

    def __init__(self) -> None:
        self.n_uploads = 0

    def find(self, digest: str) -> Path | None:
        """The file with this hash, if it is here."""
        path = _folder() / f"sha256-{read_digest(digest)}"
        return path if path.is_file() else None

    def begin(self, digest: str, nbytes: int | None) -> Upload:
        """A file to write `nbytes` into, None if nobody knows how many."""
        folder = _folder()
        with explain_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _sweep(folder)
            require_space(folder, SPARE_BYTES if nbytes is None else nbytes)
            return Upload(folder, read_digest(digest))


class Upload:
    """A file that is being written: `write` its pieces, then `finish`; `discard` in any case."""

    def __init__(self, folder: Path, expected: str) -> None:
        self._target = folder / f"sha256-{expected}"
        self._expected = expected
        self._hash = hashlib.sha256()
        self._part = folder / f".{expected}.{token_hex(8)}.part"
        self._file = self._part.open("xb")
        self._unchecked = 0  # bytes since the disk was looked at

    def write(self, piece: bytes) -> None:
        """Append a piece."""
        self._hash.update(piece)
        self._unchecked += len(piece)
        with explain_disk_errors(self._target.parent):
            if self._unchecked >= SPARE_BYTES // 2:
                require_space(self._part.parent, SPARE_BYTES)
                self._unchecked = 0
            self._file.write(piece)

    def finish(self) -> None:
        """Give the file its name; raises if its hash is another one."""
        found = self._hash.hexdigest()
        if found != self._expected:
            raise field_error(
                "digest",
                f"the digest of the body is sha256:{found}, not sha256:{self._expected}; send it again",
                "digest_mismatch",
            )
        with explain_disk_errors(self._target.parent):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self._target)

    def discard(self) -> None:
        """Remove the file, unless it is finished."""
        with suppress(OSError):
            self._file.close()
        self._part.unlink(missing_ok=True)


def _folder() -> Path:
    return Store.default().home / "blobs"


def _sweep(folder: Path) -> None:
    """Remove files that no model has been made from, and what is left of uploads that were killed."""
    oldest = time.time() - UNUSED_DAYS * 86400
    for path in folder.iterdir():
        with suppress(OSError):
            about = path.stat()
            if about.st_nlink == 1 and about.st_mtime < oldest:
                path.unlink()
