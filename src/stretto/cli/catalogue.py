"""`stretto models --catalogue`: well-known models of the Hub, their sizes, and how they would run here.

Speeds are bounds: each token reads all weights once, at the bandwidth that `stretto devices` has measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.weights.hub.catalogue import CATALOGUE, HubModel, fits


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
    from stretto.cli.output import console, print_json, size, table

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
