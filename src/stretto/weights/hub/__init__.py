"""Models by name: downloaded, verified, stored, listed and removed.

    hub.pull("smollm2")                          # from the package index, through pip
    hub.pull("hf:org/repo:Q4_K_M")               # from the Hugging Face Hub
    hub.pull("qwen3-0.6b")                       # from there too, by a short name
    hub.listing("hf:org/repo").choices           # its files and their sizes
    hub.resolve("smollm2"), hub.resolve("./model.gguf")
    hub.models()
    hub.remove("smollm2")

A model is in the store whole and verified, or it is not there. Downloads that are interrupted are continued
by the next pull.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.errors import InvalidRequest, ModelError, PullError, Unsupported
from stretto.weights.hub.names import (
    HF_PREFIX,
    LINKS,
    canonical,
    is_name,
    is_remote,
    is_repository,
    parse_reference,
)
from stretto.weights.hub.store import CONFIG, Check, Model, Progress, Store

if TYPE_CHECKING:  # catalogues are read where they are needed: a model that is here needs none
    from stretto.weights.hub.catalogue import HubModel, ModelDefaults, PackagedModel
    from stretto.weights.hub.huggingface import Choice, Listing, Source

__all__ = [
    "Check",
    "Model",
    "Progress",
    "Store",
    "can",
    "choose_file",
    "defaults",
    "head",
    "is_online",
    "is_task",
    "listing",
    "look_up",
    "models",
    "packaged_models",
    "pull",
    "remove",
    "require",
    "resolve",
]


def pull(
    name: str,
    *,
    progress: Progress | None = None,
    force: bool = False,
    store: Store | None = None,
    check: Check | None = None,
) -> Model:
    """Fetch a model unless it is here already; `force` fetches it again.

    `progress(done, total, what)` is called with bytes, several times a second; an exception in it stops
    the pull. `total` is 0 while it is not known. `check` is given the head of a model of the Hub, a file or
    folder to open, before the rest is fetched; it raises for one that is not wanted.

    >>> pull("smollm2").path.name
    'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    store = store or Store.default()
    report = progress or _silent
    name = _canonical(name)
    if not is_online(name):
        _entry(name)  # an unknown name fails before anything is touched
    if not force and (model := store.find(name)):
        return model
    if is_online(name):
        return _pull_online(name, store, report, force, check)
    with store.fetching(name, lambda: report(0, 0, WAITING)) as work:
        if not force and (model := store.find(name)):  # another process has fetched it meanwhile
            return model
        from stretto.weights.hub import packages

        entry = _entry(name)
        if source := _repository(entry, store, report):
            from stretto.weights.hub import huggingface

            model, staged = huggingface.fetch(source, store, work, report)
            model = replace(model, license=entry.license, license_url=entry.license_url)
            return store.publish(model, staged)
        return store.publish(*packages.fetch(entry, store, work, report))


def _repository(entry: PackagedModel, store: Store, report: Progress) -> Source | None:
    """Its file on the Hub, if that can be reached now; none if packages have been fetched already."""
    from stretto.weights.hub import packages

    if entry.repository is None or store.partial_bytes(packages.partial_key(entry)):
        return None
    from stretto.weights.hub import huggingface

    report(0, 0, "asking the Hub")
    return huggingface.known_source(entry.repository, entry.name, entry.sha256)


def is_online(name: str) -> bool:
    """Whether a name is looked up on the Hub or is a link, and no path of this machine."""
    return is_remote(name) or name in hub_models() or (is_repository(name) and not _exists(name))


def _pull_online(name: str, store: Store, report: Progress, force: bool, check: Check | None) -> Model:
    """Fetch a model of the Hub, or behind a link, under the name of its file; `name` stands for that one."""
    from stretto.weights.hub import huggingface

    report(0, 0, "asking the server")
    source = _source(name)
    model = None if force else store.find(source.name)
    if model is None:
        with store.fetching(source.name, lambda: report(0, 0, WAITING)) as work:
            model = None if force else store.find(source.name)
            model = model or store.publish(*huggingface.fetch(source, store, work, report, check))
    if source.name != name:
        store.remember(name, source.name)
    return model


def _source(name: str) -> Source:
    """Where a model of the network is, asked from the server."""
    from stretto.weights.hub import huggingface
    from stretto.weights.hub.links import Web

    if name.startswith(LINKS):
        return huggingface.source_of_link(name)
    web = Web.hub()
    entry = hub_models().get(name)
    reference = entry.reference if entry else parse_reference(name)
    with huggingface.name_in_errors(str(reference)):
        return huggingface.make_source(web, *huggingface.choose(web, reference, entry is None, time.sleep))


def listing(name: str) -> Listing:
    """The files of a repository on the Hub, asked now, by `hf:org/repo`, `org/repo` or a short name."""
    from stretto.weights.hub import huggingface
    from stretto.weights.hub.links import Web

    entry = hub_models().get(name)
    reference = entry.reference if entry else parse_reference(_canonical(name))
    with huggingface.name_in_errors(str(reference)):
        return huggingface.read_listing(Web.hub(), reference)


def choose_file(name: str, files: Listing) -> Choice | None:
    """The GGUF model of a repository that a name leads to; None if it leads to its folder, or to nothing."""
    entry = hub_models().get(name)
    reference = entry.reference if entry else parse_reference(_canonical(name))
    if reference.file:
        return next((one for one in files.choices if one.files[0].path == reference.file), None)
    return files.choose(reference.tag, exact=entry is None) if files.choices else None


def _canonical(name: str) -> str:
    """The name as it is stored, where it cannot be a path."""
    return canonical(HF_PREFIX + name if is_repository(name) else name)


@contextmanager
def head(name: str, store: Store | None = None) -> Iterator[Path]:
    """The head of a model on the network, as a file or folder to open while the block lasts; no weights.

    >>> with head("hf:org/repo:Q4_K_M") as path, open_weights(path) as file:
    ...     file.metadata["general.architecture"]
    'qwen3'
    """
    import tempfile

    from stretto.weights.hub import huggingface

    source = _source(_canonical(name))
    with tempfile.TemporaryDirectory(prefix="stretto-") as folder:
        huggingface.look_at(source, Store(folder), Path(folder) / "head", time.sleep)
        files = Path(folder) / "head"
        yield files if source.is_folder else files / source.files[0].path.rpartition("/")[2]


WAITING = "waiting for another pull of it"
_pull = pull  # `resolve` has a parameter of that name


def resolve(
    name_or_path: str | os.PathLike[str],
    *,
    pull: bool = True,
    progress: Progress | None = None,
    store: Store | None = None,
    check: Check | None = None,
) -> Path:
    """The path of a model, a file or a folder, that is given by name, by `hf:…`, by a link or by path.

    A name is fetched if it is not here, unless `pull` is false. A name of the catalogue wins over a file of
    that name in the working directory: write `./smollm2` for the file. A path is returned as it is, there
    or not; opening it says what is wrong with it. `org/repo` is a path if there is one, else a repository.

    >>> resolve("models/mine.gguf")
    PosixPath('models/mine.gguf')
    """
    store = store or Store.default()
    name = os.fspath(name_or_path)
    if not isinstance(name_or_path, str):
        return Path(name)
    if is_repository(name) and not _exists(name):
        return _resolve_guessed(name, pull, progress, store, check)
    name = canonical(name)
    if (is_name(name) or is_remote(name)) and (model := store.find(name)):
        return _location(model)
    if not is_remote(name) and name not in hub_models():
        if name not in packaged_models() and _is_path(name):
            return Path(name).expanduser()
        _entry(name)
    if pull:
        return _location(_pull(name, progress=progress, store=store, check=check))
    raise ModelError(f"{name} is not on this machine yet; fetch it with: stretto pull {name}")


def _resolve_guessed(
    text: str, pull: bool, progress: Progress | None, store: Store, check: Check | None
) -> Path:
    """The path of `org/repo`, which may have been meant as a path."""
    try:
        return resolve(HF_PREFIX + text, pull=pull, progress=progress, store=store, check=check)
    except PullError as error:
        raise PullError(f"there is no path {text!r} here; as a repository of the Hub: {error}") from None
    except ModelError as error:
        raise ModelError(f"there is no path {text!r} here; as a repository of the Hub: {error}") from None


def models(store: Store | None = None) -> list[Model]:
    """The models that are here, by name."""
    return (store or Store.default()).models()


def remove(name: str, store: Store | None = None) -> None:
    """Delete a model from the store, its notices included."""
    (store or Store.default()).remove(_canonical(name))


def _location(model: Model) -> Path:
    """The model's file, or the folder that is the model."""
    if model.path.suffix == ".gguf":
        return model.path
    packaged = packaged_models().get(model.name)
    is_folder = packaged.kind == "folder" if packaged else model.path.name == CONFIG
    return model.path.parent if is_folder else model.path


def is_task(model: str | os.PathLike[str]) -> bool:
    """Whether a model is one of `stretto.tasks`: by its name in the catalogue, or an ONNX file."""
    name = os.fspath(model)
    if name.lower().endswith(".onnx"):
        from stretto.weights.onnx.folder import is_decoder_file

        return not is_decoder_file(Path(name).expanduser())
    if not isinstance(model, str) or not is_name(name):
        return False
    stored = Store.default().find(name)
    if stored is not None and stored.path.suffix == ".gguf":
        return False
    return name in packaged_models() and packaged_models()[name].kind == "task"


def packaged_models() -> Mapping[str, PackagedModel]:
    """The models of packages, by name."""
    from stretto.weights.hub import catalogue

    return catalogue.PACKAGED


def hub_models() -> Mapping[str, HubModel]:
    """The models of the Hub that have a short name, by name."""
    from stretto.weights.hub import catalogue

    return catalogue.CATALOGUE


def look_up(model: str | os.PathLike[str], store: Store | None = None) -> PackagedModel | HubModel | None:
    """What the catalogues say of a model that is given by a name, or by its path in the store; or None.

    A model of the store is recognised by its SHA-256 or its repository, whatever name it has there.
    """
    name = os.fspath(model)
    if isinstance(model, str) and (entry := packaged_models().get(name) or hub_models().get(name)):
        return entry
    stored = (store or Store.default()).holding(model)
    if stored is None:
        return None
    if entry := packaged_models().get(stored.name):
        return entry
    same = (one for one in packaged_models().values() if one.sha256 == stored.sha256)
    origins = (one for one in hub_models().values() if stored.source.startswith(f"hf:{one.repo}/"))
    return next(same, None) or next(origins, None)


def defaults(model: str | os.PathLike[str], store: Store | None = None) -> ModelDefaults:
    """What the commands `run` and `chat` give a model where the user does not say.

    >>> defaults("smollm2").system
    'You are a helpful assistant. Answer in one short sentence.'
    """
    from stretto.weights.hub.catalogue import NO_DEFAULTS

    entry = look_up(model, store)
    return NO_DEFAULTS if entry is None else entry.defaults


def can(model: str, verb: str) -> bool:
    """Whether a model may have a verb, as far as the catalogues know."""
    entry = look_up(model)
    return entry is None or verb in entry.verbs


EXTRAS = {"onnx": ("onnx", "onnxruntime")}  # the modules of each extra of Stretto's package
COMMANDS = {"generate": "run"}  # where a command has another name than its verb


def require(model: str | os.PathLike[str], verb: str | None) -> None:
    """Raise `Unsupported` if a model of the catalogues lacks a verb or a package; nothing is fetched.

    A model that no catalogue describes passes: opening it says what it can do.
    """
    entry = look_up(model)
    if entry is None:
        return
    if verb is not None and verb not in entry.verbs:
        has = [one for one in packaged_models().values() if verb in one.verbs]
        # The one that is made for it; a text is asked of a model that chats, too.
        other = min(
            has,
            key=lambda one: (verb == "generate" and "chat" not in one.verbs, len(one.verbs)),
            default=None,
        )
        uses = ", ".join(f"stretto {COMMANDS.get(one, one)} -m {entry.name}" for one in entry.verbs)
        hint = f"; a model that can: {other.name}" if other else ""
        raise Unsupported(
            f"{entry.name} cannot {verb}; it can {' and '.join(entry.verbs)} ({uses}){hint}",
            param="model",
            value=entry.name,
        )
    missing = [name for name in EXTRAS.get(entry.extra, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise Unsupported(
            f"{entry.name} needs {' and '.join(missing)}: pip install 'stretto[{entry.extra}]'",
            param="model",
            value=entry.name,
        )


def _entry(name: str) -> PackagedModel:
    """The catalogue's entry; raises with similar names if there is none."""
    names = packaged_models()
    if name in names:
        return names[name]
    import difflib

    near = difflib.get_close_matches(name.lower(), [*names, *hub_models()], n=2)
    hint = f"did you mean {' or '.join(near)}? Names" if near else "names"
    raise InvalidRequest(
        f"there is no model {name!r}; {hint} are {', '.join(sorted(names))} and those that `stretto "
        "models --catalogue` lists; hf:org/repo:Q4_K_M fetches from the Hugging Face Hub"
        + ("" if is_name(name) else ", and a file that you have needs no pull")
    )


def _is_path(text: str) -> bool:
    return "/" in text or os.sep in text or text.lower().endswith(".gguf") or _exists(text)


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long, or with a NUL in it
        return False


def _silent(done: int, total: int, what: str) -> None:
    """Report nothing."""
