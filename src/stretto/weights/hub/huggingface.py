"""Models of the Hugging Face Hub, and GGUF files behind links: chosen, looked at, fetched, verified.

    reference, listing = choose(web, parse_reference("hf:org/repo"), wait)
    fetch(make_source(web, reference, listing), store, work, progress, check)

The list of a repository's files has their sizes and hashes. Heads are read before bodies, and files behind
other links take the same way (links.py).
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stretto.errors import ModelError, PullError
from stretto.weights.files import MAX_PARTS, part_name
from stretto.weights.hub import links
from stretto.weights.hub.catalogue import CATALOGUE, CHAT, HubModel, fits
from stretto.weights.hub.names import Reference, link_file
from stretto.weights.hub.store import CONFIG, Check, Model, Progress, Store, require_space
from stretto.weights.json_file import read_object

CONNECTIONS = 8
LEAST_TOKENS_PER_SECOND = 8.0  # a little faster than people read
KNOWN_SECONDS = 5.0  # for an answer of the Hub, where there is another source
MAX_SMALL_BYTES = 256 << 20  # of configuration and vocabulary
_MAX_NOTICE_BYTES = 4 << 20
_MAX_INDEX_BYTES = 64 << 20
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


# -- what a repository has --


@dataclass(frozen=True)
class Choice:
    """A GGUF model of a repository: one file, or all parts of a split one."""

    tag: str  # Q4_K_M; empty if the file's name has none
    files: tuple[links.RemoteFile, ...]

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
    files: Mapping[str, links.RemoteFile]

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

    def file(self, path: str) -> links.RemoteFile:
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

    def folder_files(self) -> list[links.RemoteFile]:
        """The files that a folder is read from, but for its weights."""
        return [file for path, file in self.files.items() if _FOLDER.fullmatch(path)]

    def notices(self) -> list[links.RemoteFile]:
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


def read_listing(web: links.Web, reference: Reference, wait: links.Wait = time.sleep) -> Listing:
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


def _file(path: str, address: str, entry: Mapping[str, Any]) -> links.RemoteFile:
    large = entry.get("lfs")
    large = large if isinstance(large, dict) else {}
    size = large.get("size", entry.get("size"))
    return links.RemoteFile(
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


# -- what is fetched of it --


@dataclass(frozen=True)
class Source:
    """What is to be fetched. `files` are the model's, but for the weights of a folder, named by its index."""

    web: links.Web
    name: str
    origin: str  # where it comes from, for the record
    files: list[links.RemoteFile]
    is_folder: bool = False
    license: str = ""
    notices: list[links.RemoteFile] = field(default_factory=list)
    listing: Listing | None = None
    is_known: bool = False  # by its hash, before it was asked for: there is nothing to look at


def choose(web: links.Web, reference: Reference, exact: bool, wait: links.Wait) -> tuple[Reference, Listing]:
    """The file or folder that a reference means, and the repository's files."""
    listing = read_listing(web, reference, wait)
    if reference.file:
        return reference, listing
    if listing.choices:
        return reference.of(listing.choose(reference.tag, exact=exact).files[0].path), listing
    if not listing.is_folder:
        raise listing.nothing()
    if reference.tag and exact:
        raise PullError(
            f"hf:{reference.repo} has no GGUF files, and so none of {reference.tag}; hf:{reference.repo} is "
            "its safetensors folder, which quantize= turns into other formats when it is loaded"
        )
    return Reference(reference.repo, revision=reference.revision), listing


def make_source(web: links.Web, reference: Reference, listing: Listing) -> Source:
    """A file or a folder of a repository."""
    is_folder = not reference.file
    files = listing.folder_files() if is_folder else [listing.file(path) for path in reference.files]
    origin = f"{Reference(reference.repo, reference.file)}@{listing.commit}"
    terms = listing.notices()
    return Source(web, str(reference), origin, files, is_folder, listing.license, terms, listing)


def known_source(reference: Reference, name: str, sha256: str) -> Source | None:
    """A file with a hash that we know, under a name of ours; None if the Hub is not in reach or lacks it."""

    def stop(seconds: float) -> None:
        raise links.Unreachable("there is another source, so nothing is waited for")

    try:
        listing = read_listing(links.Web.hub(KNOWN_SECONDS), reference, stop)
        source = make_source(links.Web.hub(), reference, listing)
    except PullError:
        return None
    if [file.sha256 for file in source.files] != [sha256]:
        return None
    return replace(source, name=name, is_known=True)


def source_of_link(link: str) -> Source:
    """A GGUF file behind a link."""
    return Source(links.Web(link), link, link, [links.RemoteFile(link_file(link), link)])


def fetch(
    source: Source, store: Store, work: Path, progress: Progress, check: Check | None = None
) -> tuple[Model, Path]:
    """Fetch a model into a folder under `work`: first its head, which `check` may refuse, then the rest."""
    with name_in_errors(source.name):
        return _fetch(source, store, work, _Meter(progress), check)


@contextmanager
def name_in_errors(name: str) -> Iterator[None]:
    """A block whose errors name the model."""
    try:
        yield
    except PullError as error:
        if name in str(error) or error.path is not None:
            raise
        raise type(error)(f"{name} could not be fetched: {error}") from None


def _fetch(
    source: Source, store: Store, work: Path, meter: _Meter, check: Check | None
) -> tuple[Model, Path]:
    staged = work / "model"
    files = source.files if source.is_known else look_at(source, store, work / "head", meter.wait, check)
    notices = [
        links.with_facts(source.web, notice, meter.wait)
        for notice in source.notices
        if (notice.nbytes or 0) <= _MAX_NOTICE_BYTES
    ]
    meter.total = sum(file.nbytes or 0 for file in (*files, *notices))
    require_space(work, meter.total - sum(store.partial_bytes(links.make_key(file)) for file in files))
    staged.mkdir()
    whole, verified, digest = hashlib.sha256(), True, ""
    for notice in notices:  # the terms come first: without them the rest is not fetched
        _place(source, notice, staged / notice.path, store, meter, hashlib.sha256())
    for remote in files:
        digest = _place(source, remote, staged / _name(source, remote), store, meter, whole)
        verified = verified and bool(remote.sha256 or remote.git_id)
    paths = [staged / _name(source, remote) for remote in files]
    first = paths.pop(_first(source, files))
    model = Model(
        name=source.name,
        path=first,
        source=source.origin,
        nbytes=sum(file.nbytes or 0 for file in files),
        sha256=whole.hexdigest() if paths else digest,
        verified=verified,
        license=source.license,
        notices=tuple(staged / notice.path for notice in notices),
        parts=tuple(paths),
    )
    return model, staged


def look_at(
    source: Source, store: Store, folder: Path, wait: links.Wait, check: Check | None = None
) -> list[links.RemoteFile]:
    """Write the model's head to `folder`, let `check` look at it, and return all files with their sizes."""
    from stretto.weights.hub import heads  # reading formats needs the native core; downloads do not

    files = [links.with_facts(source.web, remote, wait) for remote in source.files]
    if source.is_folder:
        files += _write_small(source, files, store, folder, wait)
    for remote in files:
        if remote.path.endswith(".safetensors") or not source.is_folder:
            heads.write_head(source.web, remote, folder / _name(source, remote), wait)
    if check is not None:
        head = folder if source.is_folder else folder / _name(source, files[0])
        try:
            check(head)
        except ModelError as error:
            reason = str(error).replace(str(head), source.name).replace(f"{folder}/", "")
            raise PullError(f"{source.name} was not fetched: {reason}") from None
    return files


def _write_small(
    source: Source, files: list[links.RemoteFile], store: Store, folder: Path, wait: links.Wait
) -> list[links.RemoteFile]:
    """Write configuration and vocabulary of a folder; the weights that its index names, or its only ones."""
    small = [file for file in files if not file.path.endswith(".safetensors")]
    if sum(file.nbytes or 0 for file in small) > MAX_SMALL_BYTES:
        raise PullError(f"{source.name}: configuration and vocabulary take more than {MAX_SMALL_BYTES} bytes")
    for remote in small:
        target = folder / remote.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with store.partial(links.make_key(remote)) as place:
            part = links.download(source.web, remote, place, lambda done: None, wait)
            target.write_bytes(part.read_bytes())
    names = [SINGLE]
    if (folder / INDEX).exists():
        places = read_object(folder / INDEX, _MAX_INDEX_BYTES).object("weight_map")
        names = sorted(set(map(str, places.values())))
        if not 1 <= len(names) <= MAX_PARTS:
            raise PullError(f"{source.name}: {INDEX} names {len(names)} files; 1 to {MAX_PARTS} are possible")
    assert source.listing is not None
    for name in names:
        if name not in source.listing.files or not name.endswith(".safetensors"):
            raise PullError(f"{source.name}: {INDEX} names {name[:200]!r}, which the repository lacks")
    return [links.with_facts(source.web, source.listing.files[name], wait) for name in names]


def _place(
    source: Source, remote: links.RemoteFile, target: Path, store: Store, meter: _Meter, whole: hashlib._Hash
) -> str:
    """Fetch a file, verify it and move it to `target`; its SHA-256. A wrong one is not kept."""
    shown = source.name if len(source.files) == 1 else f"{source.origin.partition('@')[0]}: {remote.path}"
    with store.partial(links.make_key(remote)) as place:
        part = links.download(
            source.web, remote, place, lambda done: meter.show(done, "fetching"), meter.wait
        )
        try:
            digest = links.verify(part, remote, shown, whole, lambda done: meter.show(done, "verifying"))
        except PullError:
            links.discard_download(place)
            raise
        target.parent.mkdir(exist_ok=True)
        part.rename(target)
        links.discard_download(place)
    meter.done += remote.nbytes or 0
    return digest


def _name(source: Source, remote: links.RemoteFile) -> str:
    """The path of a file in the model's folder; GGUF files lie in it directly."""
    return remote.path if source.is_folder else remote.path.rpartition("/")[2]


def _first(source: Source, files: list[links.RemoteFile]) -> int:
    """The index of the file that stands for the model."""
    return [file.path for file in files].index(CONFIG) if source.is_folder else 0


class _Meter:
    """Adds up the bytes of several files, and keeps reporting while it waits."""

    def __init__(self, progress: Progress) -> None:
        self.done = self.total = 0
        self._progress = progress

    def show(self, more: int, what: str) -> None:
        """Report `more` bytes beyond those that are done."""
        self._progress(min(self.done + more, self.total), self.total, what)

    def wait(self, seconds: float) -> None:
        """Wait; a report may raise to stop it."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.show(0, "waiting for the server")
            time.sleep(min(left, 0.1))


# -- sizes of the catalogue's models --


@dataclass(frozen=True)
class Size:
    """A file of a repository, or all parts of a split one: its tag, such as Q4_K_M, its name, its bytes."""

    tag: str
    file: str
    nbytes: int
    is_chosen: bool = False  # the one that is fetched by the model's name


def file_sizes(model: HubModel) -> tuple[Size, ...] | None:
    """The files of its repository, asked from the Hub now; None if it cannot be reached, or has none."""
    try:
        return _ask_sizes(model)
    except PullError:
        return None


def ask_sizes(models: Iterable[HubModel]) -> dict[str, int | None]:
    """The bytes of each model's file by name, asked from the Hub, several at once; None where unknown."""
    waiting = list(models)
    sizes: dict[str, int | None] = dict.fromkeys(model.name for model in waiting)
    try:
        for model in waiting[:1]:  # without a network, one failure is enough
            sizes[model.name] = _chosen(_ask_sizes(model))
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            found = pool.map(file_sizes, waiting[1:])
            sizes |= {model.name: _chosen(one) for model, one in zip(waiting[1:], found, strict=True)}
    except PullError:
        pass
    return sizes


def best_fit(memory: int | None = None, bandwidth: float | None = None) -> HubModel | None:
    """The best model to chat with in `memory` bytes, read at `bandwidth` bytes/s.

    Sizes come from the Hub: None without it, or if nothing fits. Of unknown memory it is the smallest model.
    """
    for name in reversed(CHAT) if memory is not None else CHAT[:1]:
        model = CATALOGUE[name]
        try:
            nbytes = _chosen(_ask_sizes(model))
        except PullError:
            return None
        if nbytes is None or (memory is not None and not fits(nbytes, memory)):
            continue
        if bandwidth is None or model.is_mixture or bandwidth / nbytes >= LEAST_TOKENS_PER_SECOND:
            return model
    return None


def _ask_sizes(model: HubModel) -> tuple[Size, ...] | None:
    """The same; `Unreachable` if there is no server at all."""
    try:
        listing = read_listing(links.Web.hub(), model.reference)
        chosen = listing.choose(model.files, exact=False)
    except links.Unreachable:
        raise
    except PullError:
        return None
    return tuple(
        Size(one.tag, one.files[0].path, one.nbytes, one == chosen)
        for one in listing.choices
        if one.nbytes is not None
    )


def _chosen(sizes: tuple[Size, ...] | None) -> int | None:
    return next((size.nbytes for size in sizes or () if size.is_chosen), None)
