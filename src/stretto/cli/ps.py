"""`stretto ps`: the servers of this user on this machine."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of servers.")] = False,
) -> None:
    """Show your running servers: models, process, address, time, memory and requests.

    Servers that were started with --no-socket, or by another user, are not listed.
    """
    from stretto.cli.output import clean, console, print_json, size, table
    from stretto.local import servers

    found = []
    for connection in servers():
        with connection:
            found.append(shown(connection.about))
    if as_json:
        print_json(found)
        return
    if not found:
        typer.echo("no server of yours is running; stretto serve starts one")
        return
    listing = table("pid", "models", "address", "up", "memory", "running", "answered", right=("memory",))
    for one in found:
        names = ", ".join(f"{m['name']}{'' if m['loaded'] else ' (not loaded)'}" for m in one["models"])
        memory = "" if one["memory"] is None else size(one["memory"])
        up = since(one["uptime"])
        listing.add_row(
            str(one["pid"]),
            clean(names),
            clean(one["address"]),
            up,
            memory,
            *map(str, (one["running"], one["answered"])),
        )
    console().print(listing)


def shown(about: dict[str, Any]) -> dict[str, Any]:
    """What a server says of itself, checked, as `ps` shows it."""
    models = about.get("models")
    memory = about.get("memory")
    return {
        "pid": _integer(about.get("pid")),
        "models": [
            {"name": str(model.get("name")), "loaded": bool(model.get("loaded"))}
            for model in (models if isinstance(models, list) else [])
            if isinstance(model, dict)
        ],
        "address": str(about.get("address")),
        "version": str(about.get("version")),
        "uptime": max(0, int(time.time() - _integer(about.get("started")))),
        "memory": None if memory is None else _integer(memory),
        "running": _integer(about.get("running")),
        "answered": _integer(about.get("answered")),
    }


def since(seconds: int) -> str:
    """A time for people.

    >>> since(59), since(3660), since(200_000)
    ('59 s', '1 h 1 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"


def _integer(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) and abs(value) < 1 << 62 else 0
