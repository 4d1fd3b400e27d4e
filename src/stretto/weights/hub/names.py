"""Names of models, and their folders in the store.

    >>> folder("smollm2")
    'smollm2'
    >>> folder("hf:org/repo/model.gguf")
    'hf~org~repo~model.gguf'
    >>> canonical("https://huggingface.co/org/repo/blob/main/model.gguf")
    'hf:org/repo/model.gguf'

Names become file names, so what may stand in one is listed here rather than what may not: every part begins
with a letter or a digit, and neither a separator nor `~` can be in it. Two names never share a folder.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stretto.errors import InvalidRequest
from stretto.weights.files import part_name

if TYPE_CHECKING:
    from urllib.parse import SplitResult

HF_PREFIX = "hf:"
LINKS = ("https://", "http://")

_MAX_FOLDER_BYTES = 200  # most filesystems allow 255, and a suffix has to fit
_MAX_LINK_CHARS = 2000
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,150}\.gguf", re.IGNORECASE)
_TAG = re.compile(r"(?!.*\.gguf$)[A-Za-z0-9][A-Za-z0-9._-]{0,47}", re.IGNORECASE)
_IS_FILE = re.compile(r".*\.(gguf|onnx|safetensors|json|bin|txt|py)", re.IGNORECASE)


@dataclass(frozen=True)
class Reference:
    """A model on the Hugging Face Hub: a file of a repository, or the one that fits a tag, or the usual one.

    Of a split model `file` is the first part, which stands for all of them.
    """

    repo: str  # org/repo
    file: str = ""  # may lie in folders: sub/file.gguf; empty: chosen by the tag
    revision: str | None = None
    tag: str = ""  # Q4_K_M; empty: Q4_K_M or the nearest

    def __str__(self) -> str:
        what = f"/{self.file}" if self.file else f":{self.tag}" if self.tag else ""
        return f"{HF_PREFIX}{self.repo}{what}" + (f"@{self.revision}" if self.revision else "")

    def of(self, file: str) -> Reference:
        """The reference to a file of the same repository and revision."""
        return replace(self, file=file, tag="")

    @property
    def files(self) -> list[str]:
        """The file, or all parts of a split model."""
        folder, slash, name = self.file.rpartition("/")
        parts = part_name(name)
        return [folder + slash + file for file in parts.files] if parts else [self.file]


def parse_reference(name: str) -> Reference:
    """The parts of `hf:org/repo`, `hf:org/repo:tag` or `hf:org/repo/file.gguf`, with `@revision` if given.

    >>> parse_reference("hf:org/repo/sub/model.gguf@v2")
    Reference(repo='org/repo', file='sub/model.gguf', revision='v2', tag='')
    """
    location, at, revision = name.removeprefix(HF_PREFIX).partition("@")
    location, colon, tag = location.partition(":")
    *folders, file = location.split("/")
    is_whole = len(folders) == 1 and not _IS_FILE.fullmatch(file)
    if is_whole:
        folders, file = [*folders, file], ""
    words = folders + (revision.split("/") if at else [])
    good = len(folders) >= 2 and all(map(_PART.fullmatch, words))
    good = good and (is_whole or _FILE.fullmatch(file) is not None)
    good = good and (not colon or (is_whole and _TAG.fullmatch(tag) is not None))
    if not good or not name.startswith(HF_PREFIX) or len(name) > _MAX_FOLDER_BYTES:
        raise InvalidRequest(
            f"{name!r} does not name a model on the Hub; write hf:org/repo, hf:org/repo:Q4_K_M or "
            "hf:org/repo/file.gguf, with @revision at the end if you want a certain one"
        )
    parts = part_name(file)
    file = parts.file(1) if parts else file
    path = "/".join([*folders[2:], file]) if file else ""
    return Reference("/".join(folders[:2]), path, revision or None, tag)


def is_repository(text: str) -> bool:
    """Whether `text` could be `org/repo`, maybe with `:tag` or `@revision`; a path of two names could too.

    >>> is_repository("Qwen/Qwen3-0.6B"), is_repository("./Qwen3-0.6B"), is_repository("models/my.gguf")
    (True, False, False)
    """
    try:
        return text.count("/") >= 1 and not parse_reference(HF_PREFIX + text).file
    except InvalidRequest:
        return False


def is_remote(name: str) -> bool:
    """Whether `name` says itself that it is on the network: `hf:…` or a link."""
    return name.startswith((HF_PREFIX, *LINKS))


def canonical(name: str) -> str:
    """The name under which a model is stored: any part of a split one names all of it, links to the Hub too.

    >>> canonical("hf:org/repo/model-00002-of-00003.gguf")
    'hf:org/repo/model-00001-of-00003.gguf'
    """
    if name.startswith(HF_PREFIX):
        return str(parse_reference(name))
    return _canonical_link(name) if name.startswith(LINKS) else name


def _canonical_link(name: str) -> str:
    """A link to a file; one to the Hub as an `hf:` name."""
    parts = _split(name)
    from urllib.parse import unquote, urlsplit

    hosts = {*_HUB_HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname}
    words = unquote(parts.path).strip("/").split("/")
    if parts.hostname in hosts and len(words) >= 2:
        if len(words) >= 5 and words[2] in ("blob", "resolve"):
            at = "" if words[3] == "main" else f"@{words[3]}"
            return str(parse_reference(f"{HF_PREFIX}{'/'.join([*words[:2], *words[4:]])}{at}"))
        if len(words) == 2 or words[2:] in ([], ["tree", "main"]):
            return str(parse_reference(HF_PREFIX + "/".join(words[:2])))
        raise InvalidRequest(f"{name[:200]!r} leads to no model of the Hub; write hf:org/repo/file.gguf")
    if not _FILE.fullmatch(words[-1]) or len(name) > _MAX_LINK_CHARS or not name.isprintable():
        raise InvalidRequest(f"{name[:200]!r} is no link to a .gguf file")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidRequest(f"{name[:200]!r}: links with a user name, a password or a fragment are refused")
    if parts.scheme == "http" and parts.hostname not in _LOCAL_HOSTS:
        raise InvalidRequest(f"{name[:200]!r} is not encrypted; use https://")
    return name


def _split(link: str) -> SplitResult:
    try:
        from urllib.parse import urlsplit

        parts = urlsplit(link)
        if parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise InvalidRequest(f"{link[:200]!r} is no address")


def link_file(link: str) -> str:
    """The name of the file that a link leads to."""
    from urllib.parse import unquote

    return unquote(_split(link).path).rpartition("/")[2]


def is_name(name: str) -> bool:
    """Whether `name` could be that of a model in the catalogue: lower-case letters, digits, `.`, `_`, `-`."""
    return _NAME.fullmatch(name) is not None


def folder(name: str) -> str:
    """The folder of the store that belongs to a model; raises `InvalidRequest` for a name that is unsafe."""
    if name.startswith(HF_PREFIX):
        return str(parse_reference(name)).replace(":", "~").replace("/", "~")
    if name.startswith(LINKS):
        link = _canonical_link(name)
        if link.startswith(HF_PREFIX):
            return folder(link)
        # The address may be long: its hash tells it from others, and the file's name from nothing else.
        return f"link~{hashlib.sha256(link.encode()).hexdigest()[:24]}~{link_file(link)}"
    if not is_name(name):
        raise InvalidRequest(
            f"{name!r} is not a model's name; names are made of a-z, 0-9, '.', '_' and '-', "
            "or have the form hf:org/repo, hf:org/repo:Q4_K_M or hf:org/repo/file.gguf"
        )
    return name
