"""`stretto doctor`: what this machine has, what is broken, and what would make it faster."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from stretto.cli.output import clean

EXIT_PROBLEM = 1
MARKS = {"ok": ("ok", "green"), "advice": ("could be better", "yellow"), "problem": ("broken", "bold red")}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also compare the SHA-256 of every model; reads all of them.")
    ] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the speeds again.")] = False,
) -> None:
    """Check compiler, processor, memory, GPU, extras and models; say what would make it faster.

    The exit code is 1 if something is broken, 0 otherwise: advice is no failure.
    """
    from dataclasses import asdict

    from rich.text import Text

    from stretto import hardware
    from stretto.cli.checks import checks
    from stretto.cli.output import console, print_json, table
    from stretto.weights.hub import Store

    errors = console(stderr=True)
    with errors.status("measuring, a second or two") if sys.stderr.isatty() else nullcontext():
        found = list(checks(hardware.probe(refresh=refresh), Store.default(), verify))
    broken = any(check.state == "problem" for check in found)
    if as_json:
        print_json({"ok": not broken, "checks": [asdict(check) for check in found]})
    else:
        listing = table("", "", "found")
        for check in found:
            word, style = MARKS[check.state]
            listing.add_row(check.name, Text(word, style=style), _cell(check.found, check.advice))
        console().print(listing)
    if broken:
        raise typer.Exit(EXIT_PROBLEM)


def _cell(found: str, advice: str) -> str:
    """What was found, and on a line of its own what to do about it."""
    return "\n".join(clean(line) for line in ((found, f"→ {advice}") if advice else (found,)))
