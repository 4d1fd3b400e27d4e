"""The files of a repository on the Hub: which there are, how large, and which of them are a model.

listing = read_listing(Web.hub(), parse_reference("hf:org/repo"))
listing.choices                    # the GGUF models in it, with tags and sizes
listing.choose("")                 # Q4_K_M or the nearest
listing.folder_files()             # configuration and vocabulary, where it has safetensors
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from stretto.errors import PullError
from stretto.weights.files import part_name
from stretto.weights.hub.names import Reference
from stretto.weights.hub.web import Wait, Web

DEFAULT_TAG = "Q4_K_M"
MAX_FILES = 100_000
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_PATH = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._+-]{0,150}/){0,8}[A-Za-z0-9_][A-Za-z0-9._+-]{0,150}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_ID = re.compile(r"[0-9a-f]{40}")
_NOTICE = re.compile(r"(LICEN[SC]E|NOTICE|TERMS|COPYING|USE_POLICY)[A-Za-z0-9._-]{0,40}", re.IGNORECASE)
_MAX_NOTICES = 4
_TAG = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4(?:_MOE)?))$", re.IGNORECASE
)
_OTHER_GGUF = re.compile(r"(?:.*[-_.])?mmproj.*|.*imatrix.*|mtp-.*", re.IGNORECASE)
_PICKLE = re.compile(r".*\.(?:bin|pt|pth|ckpt|pkl|pickle)", re.IGNORECASE)
# What a folder is read from, beside its weights.
_FOLDER = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.(?:json|model)|tokenizer_config\.json|"
    r"special_tokens_map\.json|added_tokens\.json|vocab\.(?:json|txt)|merges\.txt|chat_template\.(?:jinja|json)|"
    r"modules\.json|config_sentence_transformers\.json|sentence_bert_config\.json|"
    r"model\.safetensors\.index\.json|\d_[A-Za-z]{1,20}/(?:config\.json|model\.safetensors)"
)
# Bits of a number beyond the digit in a format's name, roughly; for the nearest of several files.
_MORE_BITS = dict.fromkeys(("0", "K_S", "NL"), 0.5) | {
    "1": 1.0,
    "K": 0.56,
    "K_M": 0.85,
    "K_L": 1.0,
    "K_XL": 1.1,
    "XXS": 0.06,
    "XS": 0.3,
    "S": 0.4,
    "M": 0.7,
}


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository; `address` is where it is, `nbytes` and the hashes are what the server says."""

    path: str
    address: str
    nbytes: int | None = None
    sha256: str | None = None
    git_id: str | None = None  # of a small file: the SHA-1 of its Git object


@dataclass(frozen=True)
class Choice:
    """A GGUF model of a repository: one file, or all parts of a split one."""

    tag: str  # Q4_K_M; empty if the file's name has none
    files: tuple[RemoteFile, ...]

    @property
    def nbytes(self) -> int | None:
        """The size of all files together; None if the server does not say."""
        sizes = [file.nbytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def __str__(self) -> str:
        size = "unknown size" if self.nbytes is None else f"{self.nbytes / 1e6:,.1f} MB"
        return f"{self.files[0].path} ({size})"


@dataclass(frozen=True)
class Listing:
    """A repository at one commit."""

    repo: str
    commit: str
    license: str
    files: Mapping[str, RemoteFile]

    @property
    def choices(self) -> list[Choice]:
        """The GGUF models, the smallest first; image encoders, drafters and importance matrices left out."""
        made = []
        for path in self.files:
            folder, slash, name = path.rpartition("/")
            if not name.lower().endswith(".gguf") or _OTHER_GGUF.fullmatch(name):
                continue
            parts = part_name(name)
            if parts is not None and parts.number != 1:
                continue
            names = [folder + slash + one for one in parts.files] if parts else [path]
            if all(one in self.files for one in names):
                files = tuple(self.files[one] for one in names)
                made.append(Choice(_tag_of(parts.stem if parts else name[: -len(".gguf")]), files))
        return sorted(made, key=lambda one: (one.nbytes or 0, one.files[0].path))

    def choose(self, tag: str, *, exact: bool = True) -> Choice:
        """The model with a tag; of none, or if it need not be `exact`, the nearest."""
        choices = self.choices
        wanted = (tag or DEFAULT_TAG).upper()
        found = [one for one in choices if one.tag == wanted]
        found = found or [one for one in choices if one.tag == f"UD-{wanted}"]
        if not found and not (tag and exact) and choices:
            tagged = [one for one in choices if one.tag] or choices
            nearest = min(tagged, key=lambda one: abs(_bits(one.tag) - _bits(wanted)))
            found = [one for one in tagged if one.tag == nearest.tag]
        if not found:
            raise PullError(f"{self.repo} has no file of {tag}; it has {_names(choices)}")
        if len(found) > 1:
            raise PullError(
                f"{self.repo} has {len(found)} files of {found[0].tag or 'no known format'}; name one of "
                f"them, as hf:{self.repo}/{found[0].files[0].path}: {_names(found)}"
            )
        return found[0]

    def file(self, path: str) -> RemoteFile:
        """A file of the repository, by its path."""
        if path not in self.files:
            raise PullError(
                f"hf:{self.repo}/{path} could not be fetched: the repository has no such file, but "
                f"{_names(self.choices)}"
            )
        return self.files[path]

    @property
    def is_folder(self) -> bool:
        """Whether it is a Hugging Face folder with safetensors."""
        return "config.json" in self.files and (INDEX in self.files or SINGLE in self.files)

    def folder_files(self) -> list[RemoteFile]:
        """The files that a folder is read from, but for its weights."""
        return [file for path, file in self.files.items() if _FOLDER.fullmatch(path)]

    def notices(self) -> list[RemoteFile]:
        """The files with licence terms."""
        return [file for path, file in self.files.items() if _NOTICE.fullmatch(path)][:_MAX_NOTICES]

    def nothing(self) -> PullError:
        """The error for a repository without a model that can be read."""
        pickles = [path for path in self.files if _PICKLE.fullmatch(path)]
        if "adapter_config.json" in self.files:
            what = "is an adapter, the changes to a model and not the model; fetch its base model"
        elif pickles:
            what = (
                f"has its weights as pickle files only ({pickles[0]}), which may run code when they are read "
                "and are not fetched; take a repository with safetensors or GGUF files of the model"
            )
        else:
            what = "has neither GGUF files nor a config.json with safetensors"
        return PullError(f"hf:{self.repo} {what}")


def read_listing(web: Web, reference: Reference, wait: Wait = time.sleep) -> Listing:
    """Ask the Hub for the files of a repository at a revision."""
    revision = quote(reference.revision or "main", safe="")
    info = web.json(f"/api/models/{reference.repo}/revision/{revision}?blobs=true", wait)
    commit = str(info.get("sha") or "")
    if not _GIT_ID.fullmatch(commit):
        raise PullError(f"hf:{reference.repo}: the Hub names no commit; is HF_ENDPOINT a Hub?")
    siblings = info.get("siblings")
    files = {}
    for entry in siblings[:MAX_FILES] if isinstance(siblings, list) else ():
        path = entry.get("rfilename") if isinstance(entry, dict) else None
        # Names that no file of a model has are passed over, so that none can leave a folder.
        if isinstance(path, str) and _PATH.fullmatch(path):
            files[path] = _file(path, f"/{reference.repo}/resolve/{commit}/{quote(path)}", entry)
    card = info.get("cardData")
    card = card if isinstance(card, dict) else {}
    terms = card.get("license_name") or card.get("license") or ""
    return Listing(reference.repo, commit, str(terms)[:200], files)


def _file(path: str, address: str, entry: Mapping[str, Any]) -> RemoteFile:
    large = entry.get("lfs")
    large = large if isinstance(large, dict) else {}
    size = large.get("size", entry.get("size"))
    return RemoteFile(
        path,
        address,
        size if type(size) is int and 0 <= size < 1 << 60 else None,
        _matching(_SHA256, large.get("sha256") or large.get("oid")),
        None if large else _matching(_GIT_ID, entry.get("blobId")),
    )


def _matching(pattern: re.Pattern[str], value: object) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


def _tag_of(stem: str) -> str:
    """The format in a file's name, without its ending; empty if there is none."""
    match = _TAG.search(stem)
    return match[1].upper() if match else ""


def _bits(tag: str) -> float:
    """Bits of a number, by a format's name, as far as choosing the nearest needs them."""
    plain = tag.removeprefix("UD-")
    if plain.endswith(("F16", "FP16", "F32", "FP32")):
        return float(plain[-2:])
    if plain.startswith("MXFP4"):
        return 4.25
    match = re.fullmatch(r"(?:I?Q|TQ)(\d)(?:_(.+))?", plain)
    return 99.0 if match is None else int(match[1]) + _MORE_BITS.get(match[2] or "", 0.5)


def _names(choices: Iterable[Choice]) -> str:
    names = list(map(str, choices))
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return (", ".join(names[:20]) or "no GGUF files") + more
