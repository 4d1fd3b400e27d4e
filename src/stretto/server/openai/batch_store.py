"""Files and batches of `/v1/files` and `/v1/batches`, on the disk: they outlive the server.

Each owner (a caller, by a keyed hash of its key) has a folder, and finds what is in it only. A file is
`ID.json` and `ID.data`; a batch is `ID.json`, and while it runs `ID.output` and `ID.error`, to which answers
are appended. Records are written atomically; a line that a crash has cut is cut off when a batch goes on.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import Any

from stretto.server.http.errors import ApiError, field_error
from stretto.server.settings import RequestLimits
from stretto.weights.files import atomic_write, read_records
from stretto.weights.hub.store import explain_disk_errors, require_space

DAY = 86400
FILE_SECONDS = 30 * DAY  # that a file is kept, unless its sender says otherwise
WINDOW_SECONDS = DAY  # that a batch has
BATCH_SECONDS = 30 * DAY  # that the record of a batch is kept
SPARE_BYTES = 64 << 20  # that must stay free on the disk
ENDED = ("completed", "failed", "expired", "cancelled")
ENDS = ("output", "error")  # the files of answers that a batch makes

_IDS = re.compile(r"(file|batch)-[0-9a-f]{24}")

Record = dict[str, Any]


class BatchStore:
    """The records of all owners, in a folder that is made when the first of them comes."""

    def __init__(self, home: Path, limits: RequestLimits) -> None:
        self.home = home
        self._limits = limits

    def secret(self) -> bytes:
        """The secret of the owners' names, made once."""
        path = self.home / "secret"
        with explain_disk_errors(self.home):
            if not path.is_file():
                self.home.mkdir(parents=True, exist_ok=True)
                self.home.chmod(0o700)  # it holds what callers have asked
                with atomic_write(path) as file:
                    file.write(token_bytes(32))
            return path.read_bytes()

    def owners(self) -> list[str]:
        """The owners that have any record."""
        return [path.name for path in self.home.iterdir() if path.is_dir()] if self.home.is_dir() else []

    def path(self, owner: str, name: str, kind: str) -> Path:
        """The file of a record or its data; raises for what is no id."""
        if not _IDS.fullmatch(name):
            raise missing(name)
        return self.home / owner / f"{name}.{kind}"

    def records(self, owner: str, kind: str) -> list[Record]:
        """The files or batches of an owner, the oldest first; what has expired is removed."""
        found = []
        for path in (self.home / owner).glob(f"{kind}-*.json"):
            with suppress(OSError, ValueError):
                record = read_records(path)
                if record.get("gone_at", record.get("expires_at") or 1e12) < time.time():
                    self._remove(owner, record["id"])
                else:
                    found.append(record)
        return sorted(found, key=lambda record: (record["created_at"], record["id"]))

    def find(self, owner: str, name: str) -> Record:
        """A record; raises if the owner has none with this id."""
        path = self.path(owner, name, "json")
        with suppress(OSError, ValueError):
            return read_records(path)
        raise missing(name)

    def write(self, owner: str, record: Record) -> None:
        """Write a record, which exists whole or not at all."""
        folder = self.home / owner
        with explain_disk_errors(self.home):
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path(owner, record["id"], "json"), durable=False) as file:
                file.write(json.dumps(record).encode())

    def add_file(
        self, owner: str, name: str, purpose: str, data: bytes | Path, seconds: float = FILE_SECONDS
    ) -> Record:
        """Keep a file; a path is moved. Raises if the owner has too many, or too much in them."""
        n_bytes = len(data) if isinstance(data, bytes) else data.stat().st_size
        if isinstance(data, bytes):  # answers of a batch are kept in any case
            own = self.records(owner, "file")
            for held, new, most, unit in (
                (len(own), 1, self._limits.files, "files"),
                (sum(one["bytes"] for one in own), n_bytes, self._limits.file_bytes, "bytes of files"),
            ):
                if held + new > most:
                    raise field_error(
                        "file",
                        f"{held:,} {unit} are kept, and at most {most:,} are; delete some first",
                        "over_quota",
                        status=413,
                    )
        now = int(time.time())
        record: Record = {
            "id": f"file-{token_hex(12)}",
            "object": "file",
            "bytes": n_bytes,
            "created_at": now,
            "expires_at": now + int(seconds),
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        }
        with explain_disk_errors(self.home):
            (self.home / owner).mkdir(parents=True, exist_ok=True)
            target = self.path(owner, record["id"], "data")
            if isinstance(data, bytes):
                require_space(self.home, n_bytes + SPARE_BYTES)
                with atomic_write(target) as file:
                    file.write(data)
            else:
                data.replace(target)
        self.write(owner, record)
        return record

    def delete(self, owner: str, name: str) -> None:
        """Remove a file, or a batch with its answers; raises where a batch still needs it."""
        record = self.find(owner, name)
        for batch in self.records(owner, "batch"):
            if batch["input_file_id"] == name and batch["status"] not in ENDED:
                message = f"{name} is the input of {batch['id']}, which has not ended; cancel that first"
                raise ApiError(409, message, code="in_use")
        for kind in ENDS:
            if answers := record.get(f"{kind}_file_id"):
                self._remove(owner, answers)
        self._remove(owner, name)

    def _remove(self, owner: str, name: str) -> None:
        for kind in ("json", "data", *ENDS):
            self.path(owner, name, kind).unlink(missing_ok=True)

    def read_answered(self, owner: str, batch: str) -> dict[str, set[str]]:
        """The custom ids of the answered lines of a batch, by `ENDS`; half a line at the end is cut off."""
        found: dict[str, set[str]] = {kind: set() for kind in ENDS}
        for kind in ENDS:
            path = self.path(owner, batch, kind)
            if not path.is_file():
                continue
            whole = 0
            with path.open("r+b") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    whole += len(line)
                    found[kind].add(json.loads(line)["custom_id"])
                file.truncate(whole)
        return found

    def append(self, owner: str, batch: str, kind: str, line: Record) -> None:
        """Add a line to the answers of a batch."""
        data = json.dumps(line).encode() + b"\n"
        with explain_disk_errors(self.home):
            require_space(self.home, SPARE_BYTES)
            with self.path(owner, batch, kind).open("ab") as file:
                file.write(data)


def missing(name: str) -> ApiError:
    """The error for an id that an owner does not have."""
    return ApiError(404, f"there is no {name[:64]!r} here; it may have expired", code="not_found")
