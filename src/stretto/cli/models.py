"""`stretto models`: list models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from stretto.cli.first_run import default_model
from stretto.cli.options import model_names
from stretto.cli.output import clean, console, print_json, size, table
from stretto.weights import hub
from stretto.weights.hub.catalogue import CATALOGUE, HubModel, PackagedModel, fits


def models(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a list of objects; with --default one.")
    ] = False,
    catalogue: Annotated[
        bool,
        typer.Option(
            "--catalogue", help="List well-known models of the Hub: licence, size, whether each fits here."
        ),
    ] = False,
    default: Annotated[
        bool,
        typer.Option("--default", help="Print the name of the model that is used when none is named."),
    ] = False,
) -> None:
    """List the models that are here, and the names that can be pulled."""
    if default:
        name = default_model()
        print(json.dumps({"name": name}) if as_json else name)
        return

    if catalogue:
        show_catalogue(as_json)
        return

    known = hub.packaged_models()
    here = {model.name: model for model in hub.models()}
    rows = [_describe(model, known.get(name)) for name, model in here.items()]
    rows += [_describe(entry, entry) for name, entry in known.items() if name not in here]
    if as_json:
        print_json(rows)
        return
    listing = table("name", "can", "size", "licence", "where", right=("size",))
    for row in rows:
        where = row["path"] or f"not here; stretto pull {row['name']}"
        can = ", ".join(row["verbs"] or ())
        cells = (row["name"], can, size(row["bytes"]), row["license"] or "not stated", where)
        listing.add_row(*map(clean, cells), style=None if row["path"] else "dim")
    console().print(listing)
    console().print("Well-known models of the Hugging Face Hub: stretto models --catalogue", style="dim")


def _describe(model: Any, entry: PackagedModel | None) -> dict[str, Any]:
    """A model that is here, or one that can be pulled, which has no path; `entry` is the latter."""
    is_here = not isinstance(model, PackagedModel)
    return {
        "name": model.name,
        "verbs": None if entry is None else list(entry.verbs),
        "path": str(model.path) if is_here else None,
        "bytes": model.nbytes,
        "sha256": model.sha256,
        "verified": is_here and model.verified,
        "source": model.source,
        "license": model.license,
        "license_url": model.license_url,
        "notices": [str(notice) for notice in model.notices] if is_here else [],
    }


# `stretto models --catalogue`: well-known models of the Hub, their sizes, and how they would run here.
#
# Speeds are bounds: each token reads all weights once, at the bandwidth that `stretto devices` has
# measured.


@dataclass(frozen=True)
class Row:
    """A model with what is known of it here; None: not known."""

    entry: HubModel
    nbytes: int | None  # as the Hub says
    about: int | None  # that, or an estimate
    fits: bool | None
    tokens_per_second: float | None


def show_catalogue(as_json: bool) -> None:
    """Print the catalogue, asking the Hub for sizes; without it they are estimates."""

    rows = _rows()
    if as_json:
        print_json([_document(row) for row in rows])
        return
    columns = ("name", "from", "licence", "size", "fits here", "tokens/s")
    listing = table(*columns, right=("size", "tokens/s"))
    for row in rows:
        bound = "≥" if row.entry.is_mixture else "≤"  # a mixture reads only some of its experts
        listing.add_row(
            row.entry.name,
            f"hf:{row.entry.repo}",
            row.entry.licence,
            "unknown" if row.about is None else f"{'' if row.nbytes else '≈ '}{size(row.about)}",
            {True: "yes", False: "no", None: "unknown"}[row.fits],
            "unknown" if row.tokens_per_second is None else f"{bound} {row.tokens_per_second:,.0f}",
        )
    console().print(listing)
    if not any(row.nbytes for row in rows):
        note = "The Hub cannot be reached: sizes with ≈ are estimates, by parameters and format."
        console(stderr=True).print(note)


def _rows() -> list[Row]:
    from stretto import hardware
    from stretto.weights.hub.huggingface import ask_sizes

    memory, bandwidth = hardware.free_memory(), hardware.probe().bandwidth
    rows = []
    for name, nbytes in ask_sizes(CATALOGUE.values()).items():
        about = nbytes or CATALOGUE[name].about_nbytes
        is_fitting = None if about is None or memory is None else fits(about, memory)
        rate = bandwidth.memory.all * 1e9 / about if bandwidth and about else None
        rows.append(Row(CATALOGUE[name], nbytes, about, is_fitting, rate))
    return rows


def _document(row: Row) -> dict[str, object]:
    entry = row.entry
    return {
        "name": entry.name,
        "summary": entry.summary,
        "architecture": entry.architecture,
        "repo": entry.repo,
        "source": entry.source,
        "license": entry.licence,
        "license_url": entry.licence_url,
        "is_mixture": entry.is_mixture,
        "verbs": list(entry.verbs),
        "bytes": row.nbytes,
        "bytes_about": row.about,
        "fits": row.fits,
        "tokens_per_second": row.tokens_per_second,
    }


# `stretto rm`: remove models.


def rm(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Names as `stretto models` has them.", autocompletion=model_names
        ),
    ],
) -> None:
    """Remove models from this machine."""

    for name in models:
        hub.remove(name)
        typer.echo(f"removed {name}")
