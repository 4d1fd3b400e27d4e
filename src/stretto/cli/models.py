"""`stretto models`: list models."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


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
        from stretto.cli.first_run import default_model

        name = default_model()
        print(json.dumps({"name": name}) if as_json else name)
        return
    from stretto.cli.output import clean, console, print_json, size, table
    from stretto.weights import hub

    if catalogue:
        from stretto.cli.catalogue import show_catalogue

        show_catalogue(as_json)
        return

    known = hub.known()
    rows: list[dict[str, Any]] = [
        {
            "name": model.name,
            "verbs": list(known[model.name].verbs) if model.name in known else None,
            "path": str(model.path),
            "bytes": model.nbytes,
            "sha256": model.sha256,
            "verified": model.verified,
            "source": model.source,
            "license": model.license,
            "license_url": model.license_url,
            "notices": [str(notice) for notice in model.notices],
        }
        for model in hub.models()
    ]
    here = {row["name"] for row in rows}
    rows += [
        {
            "name": entry.name,
            "verbs": list(entry.verbs),
            "path": None,
            "bytes": entry.nbytes,
            "sha256": entry.sha256,
            "verified": False,
            "source": entry.source,
            "license": entry.license,
            "license_url": entry.license_url,
            "notices": [],
        }
        for entry in known.values()
        if entry.name not in here
    ]
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
