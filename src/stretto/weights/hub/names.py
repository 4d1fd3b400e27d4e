"""Names of models, and their folders in the store.

    >>> folder("smollm2")
    'smollm2'
    >>> folder("hf:org/repo/model.gguf")
    'hf~org~repo~model.gguf'

Names become file names, so what may stand in one is listed here rather than what may not: every part begins
with a letter or a digit, and neither a separator nor `~` can be in it. Two names never share a folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stretto.errors import InvalidRequest
from stretto.weights.part_names import part_name

HF_PREFIX = "hf:"

_MAX_FOLDER_BYTES = 200  # most filesystems allow 255, and a suffix has to fit
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,150}\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class Reference:
    """A file on the Hugging Face Hub: `hf:repo/file`, with `@revision` where one was given.

    Of a split model it is the first part, which stands for all of them.
    """

    repo: str  # org/repo
    file: str  # may lie in folders: sub/file.gguf
    revision: str | None = None

    def __str__(self) -> str:
        return f"{HF_PREFIX}{self.repo}/{self.file}" + (f"@{self.revision}" if self.revision else "")

    @property
    def files(self) -> list[str]:
        """The file, or all parts of a split model."""
        folder, slash, name = self.file.rpartition("/")
        parts = part_name(name)
        return [folder + slash + file for file in parts.files] if parts else [self.file]


def parse_reference(name: str) -> Reference:
    """The parts of `hf:org/repo/file.gguf[@revision]`.

    >>> parse_reference("hf:org/repo/sub/model.gguf@v2")
    Reference(repo='org/repo', file='sub/model.gguf', revision='v2')
    """
    location, at, revision = name.removeprefix(HF_PREFIX).partition("@")
    *folders, file = location.split("/")
    words = folders + (revision.split("/") if at else [])
    good = len(folders) >= 2 and all(map(_PART.fullmatch, words)) and _FILE.fullmatch(file)
    if not good or not name.startswith(HF_PREFIX) or len(name) > _MAX_FOLDER_BYTES:
        raise InvalidRequest(
            f"{name!r} does not name a file on the Hub; write hf:org/repo/file.gguf, "
            "with @revision at the end if you want a certain one"
        )
    parts = part_name(file)
    file = parts.file(1) if parts else file
    return Reference("/".join(folders[:2]), "/".join([*folders[2:], file]), revision or None)


def canonical(name: str) -> str:
    """The name under which a model is stored: any part of a split one names all of it.

    >>> canonical("hf:org/repo/model-00002-of-00003.gguf")
    'hf:org/repo/model-00001-of-00003.gguf'
    """
    return str(parse_reference(name)) if name.startswith(HF_PREFIX) else name


def is_name(name: str) -> bool:
    """Whether `name` could be that of a model in the catalogue: lower-case letters, digits, `.`, `_`, `-`."""
    return _NAME.fullmatch(name) is not None


def folder(name: str) -> str:
    """The folder of the store that belongs to a model; raises `InvalidRequest` for a name that is unsafe."""
    if name.startswith(HF_PREFIX):
        return str(parse_reference(name)).replace(":", "~").replace("/", "~")
    if not is_name(name):
        raise InvalidRequest(
            f"{name!r} is not a model's name; names are made of a-z, 0-9, '.', '_' and '-', "
            "or have the form hf:org/repo/file.gguf"
        )
    return name
