"""Fetches a file from the Hugging Face Hub through `huggingface_hub`, if that is installed.

fetch(parse_reference("hf:org/repo/model.gguf"), work, lambda done, total, what: None)
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from stretto.errors import PullError, Unsupported
from stretto.weights.hub import fetch as program
from stretto.weights.hub.disk import require_space
from stretto.weights.hub.fetch import Progress
from stretto.weights.hub.names import HF_PREFIX, Reference
from stretto.weights.hub.store import Model

_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1 << 20

# Exceptions of the client, most specific first, and their remedies.
_REMEDIES = (
    ("GatedRepoError", "its owner asks for consent: accept the terms on its page, then run `hf auth login`"),
    (
        "RepositoryNotFoundError",
        "no such repository, or a private one: check the name, or run `hf auth login`",
    ),
    ("RevisionNotFoundError", "the repository has no such revision"),
    ("OfflineModeIsEnabled", "HF_HUB_OFFLINE is set"),
    ("LocalEntryNotFoundError", "the Hub cannot be reached; check the network and the proxy"),
    ("EntryNotFoundError", "the repository has no such file; look at its list of files"),
    ("ConnectError", "the Hub cannot be reached; check the network and the proxy"),
    ("ConnectionError", "the Hub cannot be reached; check the network and the proxy"),
    ("TimeoutException", "the Hub did not answer in time; try again"),
    ("Timeout", "the Hub did not answer in time; try again"),
)


def fetch(reference: Reference, work: Path, progress: Progress) -> tuple[Model, Path]:
    """Fetch the file, or all parts, and the licence terms into a folder under `work`, hashes compared."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise Unsupported(
            f"{reference} needs the Hub's client; install it with: "
            f"{sys.executable} -m pip install 'stretto[hub]'"
        )
    folder = work / "hub"
    folder.mkdir()
    request = {
        "repo": reference.repo,
        "files": reference.files,
        "revision": reference.revision,
        "folder": str(folder),
    }
    progress(0, 0, "fetching")
    outcome = program.run(
        [sys.executable, "-m", "stretto.weights.hub.hf_client", json.dumps(request)],
        folder=folder,
        tick=lambda nbytes: _tick(nbytes, folder, progress),
        env={"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )
    answer = _answer(outcome)
    if outcome.code != 0:
        raise _error(reference, answer, outcome)
    return _accept(reference, answer, work, progress)


def _tick(nbytes: int, folder: Path, progress: Progress) -> None:
    """Show the progress; the client writes the size to a file, and then the free space is checked."""
    total = 0
    with suppress(OSError, ValueError, TypeError):
        total = int(json.loads((folder / "info.json").read_text())["size"])
    require_space(folder, total - nbytes)
    progress(min(nbytes, total), total, "fetching")


def _answer(outcome: program.Outcome) -> dict[str, Any]:
    with suppress(ValueError, IndexError):
        answer = json.loads(outcome.output.splitlines()[-1])
        if isinstance(answer, dict):
            return answer
    return {}


def _error(reference: Reference, answer: dict[str, Any], outcome: program.Outcome) -> PullError:
    lines = [line for line in outcome.errors.splitlines() if line.strip()] or [f"exit code {outcome.code}"]
    message = str(answer.get("message") or lines[-1]).strip()
    if answer.get("errno") == 28 or "No space left on device" in message:
        message = "the disk filled up; make room or set STRETTO_HOME to a folder on another disk"
    for kind, remedy in _REMEDIES:
        if kind in answer.get("kinds", ()):
            message = remedy
            break
    return PullError(f"{reference} could not be fetched: {message.splitlines()[0]}")


def _accept(
    reference: Reference, answer: dict[str, Any], work: Path, progress: Progress
) -> tuple[Model, Path]:
    """Verify the download, and lay out the model's folder."""
    staged = work / "model"
    staged.mkdir()
    total = sum(Path(fetched["path"]).stat().st_size for fetched in answer["files"])
    is_split = len(reference.files) > 1
    whole = hashlib.sha256()  # over all parts
    files: list[Path] = []
    done, verified, digest = 0, True, ""
    for name, fetched in zip(reference.files, answer["files"], strict=True):
        files.append(staged / name.rpartition("/")[2])
        Path(fetched["path"]).rename(files[-1])
        shown = f"{HF_PREFIX}{reference.repo}/{name}" if is_split else str(reference)
        _check_file(shown, files[-1], fetched["size"])
        digest = _hash(files[-1], whole if is_split else None, partial(_verifying, progress, done, total))
        done += files[-1].stat().st_size
        published = str(fetched["etag"]).lower()
        has_hash = _SHA256.fullmatch(published) is not None
        if has_hash and digest != published:
            raise PullError(f"{shown} arrived with SHA-256 {digest} instead of {published}; pull it again")
        verified = verified and has_hash
    notices = []
    for notice in answer["notices"]:
        notices.append(staged / Path(notice).name)
        Path(notice).rename(notices[-1])
    model = Model(
        name=str(reference),
        path=files[0],
        source=f"hf:{reference.repo}/{reference.file}@{answer['commit']}",
        nbytes=total,
        sha256=whole.hexdigest() if is_split else digest,
        verified=verified,
        license=answer["license"],
        notices=tuple(notices),
        parts=tuple(files[1:]),
    )
    return model, staged


def _verifying(progress: Progress, before: int, total: int, nbytes: int) -> None:
    progress(before + nbytes, total, "verifying")


def _check_file(shown: str, file: Path, announced: int | None) -> None:
    """Raise unless the file is complete and a GGUF file."""
    size = file.stat().st_size
    if announced is not None and size != announced:
        raise PullError(f"{shown} arrived with {size} of {announced} bytes; pull it again")
    with file.open("rb") as source:
        if source.read(4) != b"GGUF":
            raise PullError(f"{shown} is not a GGUF file, whatever its name says; it was not kept")


def _hash(file: Path, whole: hashlib._Hash | None, progress: Callable[[int], None]) -> str:
    """The SHA-256 of a file, whose bytes are added to `whole` too."""
    digest = hashlib.sha256()
    with file.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            if whole is not None:
                whole.update(chunk)
            progress(source.tell())
    return digest.hexdigest()
