"""Who takes part: the backends here that can run the model, packages in other Pythons, servers by URL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.errors import InvalidRequest
from stretto.loading.open import list_alternatives
from stretto.weights import hub

ASK_SECONDS = 60
GENAI = "genai_config.json"
PROGRAM = (
    "import importlib.util as u, json; "
    "print(json.dumps([n for n in {names!r} if all(u.find_spec(p) for p in n.split('+'))]))"
)


@dataclass(frozen=True)
class Contestant:
    """An engine: the Python that runs it, its worker, the model it loads, and further options of its load."""

    name: str
    python: str
    worker: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_remote(self) -> bool:
        """Whether it is a server: its load and memory are not seen from here."""
        return self.worker == "worker_http"


@dataclass(frozen=True)
class Skipped:
    """An engine that does not take part, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Found:
    """The contestants, the first of which the others' tokens are compared with."""

    contestants: list[Contestant]
    skipped: list[Skipped]


@dataclass(frozen=True)
class Peer:
    """A package that may run the model: what must be importable, its worker, and the files it takes."""

    name: str
    packages: str  # joined by +
    worker: str
    wants: str  # "gguf", "weights" (a GGUF file or a Hugging Face folder) or "genai"


PEERS = (
    Peer("llama.cpp", "llama_cpp", "worker_llamacpp", "gguf"),
    Peer("transformers", "transformers+torch", "worker_transformers", "weights"),
    Peer("onnxruntime-genai", "onnxruntime_genai", "worker_genai", "genai"),
)


def find(
    model: str,
    *,
    backends: Iterable[str] = (),
    peer_pythons: Iterable[str] = (),
    urls: Iterable[str] = (),
    onnx: str | None = None,
    url_key: str = "",
) -> Found:
    """Everything that can run a model here. `onnx` is a folder with the same model for ONNX Runtime."""
    path = Path(model).expanduser()
    path = path if path.is_dir() else hub.resolve(model)
    folder = Path(onnx).expanduser() if onnx else path
    contestants, skipped = _own(str(path), list(backends))
    if onnx:
        options = {"backend": "onnx"}
        contestants.append(Contestant("stretto onnx", sys.executable, "worker_stretto", str(folder), options))
    for python in dict.fromkeys((sys.executable, *peer_pythons)):
        for peer in _installed(python, skipped):
            reason = _mismatch(peer, path, folder)
            if reason:
                skipped.append(Skipped(peer.name, reason))
                continue
            which = str(folder if peer.wants == "genai" else path)
            contestants.append(Contestant(peer.name, python, peer.worker, which))
    for url in urls:
        options = {"url": url} | ({"key": url_key} if url_key else {})
        contestants.append(Contestant(url, sys.executable, "worker_http", str(path), options))
    return Found(_unique(contestants), skipped)


def _own(path: str, wanted: list[str]) -> tuple[list[Contestant], list[Skipped]]:
    """Stretto on each of its backends; the oracle only if it is asked for."""
    usable = list_alternatives(path)
    unknown = [name for name in wanted if name not in {each.backend for each in usable}]
    if unknown:
        known = ", ".join(dict.fromkeys(each.backend for each in usable))
        raise InvalidRequest(f"backend must be one of {known}, not {unknown[0]!r}", param="backend")
    contestants, skipped = [], []
    for each in usable:
        if each.backend not in wanted if wanted else each.backend == "reference":
            continue
        name = f"stretto {each.backend}" + (f" on {each.device}" if each.device != "cpu" else "")
        if each.state == "refused":
            skipped.append(Skipped(name, each.reason))
        else:
            options = {"backend": each.backend, "device": each.device}
            contestants.append(Contestant(name, sys.executable, "worker_stretto", path, options))
    return contestants, skipped


def _installed(python: str, skipped: list[Skipped]) -> list[Peer]:
    """The packages that a Python has."""
    program = PROGRAM.format(names=[peer.packages for peer in PEERS])
    try:
        run = subprocess.run([python, "-c", program], capture_output=True, timeout=ASK_SECONDS, check=True)
        names = json.loads(run.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        skipped.append(Skipped(python, f"it cannot be asked for its packages: {error}"))
        return []
    return [peer for peer in PEERS if peer.packages in names]


def _mismatch(peer: Peer, path: Path, folder: Path) -> str:
    """Why a package cannot take the model, "" if it can."""
    if peer.wants == "gguf" and not path.is_file():
        return "it takes GGUF files"
    if peer.wants == "weights" and path.is_dir() and not any(path.glob("*.safetensors")):
        return "it takes GGUF files and folders with safetensors"
    if peer.wants == "genai" and not (folder / GENAI).is_file():
        return f"it takes folders with {GENAI}: stretto export onnx MODEL FOLDER, then --onnx FOLDER"
    return ""


def _unique(contestants: list[Contestant]) -> list[Contestant]:
    """Names that differ: a package may be in several Pythons."""
    made: list[Contestant] = []
    for each in contestants:
        name, number = each.name, 1
        while any(other.name == name for other in made):
            number += 1
            name = f"{each.name} {number}"
        made.append(Contestant(name, each.python, each.worker, each.model, each.options))
    return made
