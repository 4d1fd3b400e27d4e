"""`stretto serve`: models over HTTP; `stretto ps` and `stretto stop`: the servers of this user here."""

from __future__ import annotations

import os
import select
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.first_run import default_model
from stretto.cli.output import clean, console, print_json, size, table
from stretto.cli.pull import pull_missing
from stretto.errors import InvalidRequest, StrettoError

if TYPE_CHECKING:
    from stretto.server.settings import Settings
    from stretto.server.sockets import Connection


# `stretto ps`: the servers of this user on this machine.


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of servers.")] = False,
) -> None:
    """Show your running servers: models, process, address, time, memory and requests.

    Servers that were started with --no-socket, or by another user, are not listed.
    """
    from stretto.server.sockets import servers

    found = []
    for connection in servers():
        with connection:
            found.append(check_facts(connection.about))
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
        up = format_uptime(one["uptime"])
        listing.add_row(
            str(one["pid"]),
            clean(names),
            clean(one["address"]),
            up,
            memory,
            *map(str, (one["running"], one["answered"])),
        )
    console().print(listing)


def check_facts(about: dict[str, Any]) -> dict[str, Any]:
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


def format_uptime(seconds: int) -> str:
    """A time for people.

    >>> format_uptime(59), format_uptime(3660), format_uptime(200_000)
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


# `stretto stop`: end servers of this user on this machine.

PATIENCE_SECONDS = 30.0  # running requests have ten by default
POLL_SECONDS = 0.05


def stop(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|PID]", help="A model that the server serves, or its process id."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop all servers of yours.")] = False,
) -> None:
    """Stop a running server of yours, as Ctrl-C does: requests that run may finish first.

    Without a name there has to be one server alone; stretto ps lists them.
    """
    from stretto.server.sockets import servers

    if name is not None and everything:
        raise InvalidRequest("give a name or a process id, or --all, not both")
    found = list(servers())
    try:
        chosen = [
            one for one in found if everything or name is None or _is_meant(check_facts(one.about), name)
        ]
        if not chosen and not (everything and not found):
            listed = ", ".join(_label(check_facts(one.about)) for one in found)
            which = f"of {name!r} " if name else "of yours "
            raise InvalidRequest(f"no server {which}is running{f'; there is {listed}' if listed else ''}")
        if len(chosen) > 1 and not everything:
            listed = ", ".join(_label(check_facts(one.about)) for one in chosen)
            raise InvalidRequest(f"there are {len(chosen)}: {listed}; give a process id, or --all")
        for one in chosen:
            _end(one)
            typer.echo(f"stopped {_label(check_facts(one.about))}")
    finally:
        for one in found:
            one.close()


def _is_meant(about: dict[str, Any], name: str) -> bool:
    names = [model["name"] for model in about["models"]]
    return name == str(about["pid"]) or name in names


def _label(about: dict[str, Any]) -> str:
    names = ", ".join(model["name"] for model in about["models"])
    return clean(f"{about['pid']} ({names})")


def _end(connection: Connection) -> None:
    """Send the signal to the process that holds the socket, and wait until it has ended."""
    pid = connection.peer.pid
    if pid <= 1 or pid != connection.about.get("pid"):
        raise InvalidRequest(
            f"process {pid} holds the socket {connection.path}, and says that it is "
            f"{connection.about.get('pid')!r}; it is not stopped"
        )
    try:
        handle = _handle(pid)
        try:
            if handle is None:
                os.kill(pid, signal.SIGTERM)
            else:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
            connection.close()
            has_ended = _has_ended(pid, handle)
        finally:
            if handle is not None:
                os.close(handle)
    except ProcessLookupError:  # it has ended by itself meanwhile
        return
    if not has_ended:
        raise InvalidRequest(f"process {pid} still runs after {PATIENCE_SECONDS:g} s; kill {pid} ends it")


def _handle(pid: int) -> int | None:
    """A descriptor that stays that process, whoever gets its number; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):  # not Linux, an older kernel, or a sandbox that does not let it
        return None


def _has_ended(pid: int, handle: int | None) -> bool:
    """Wait until a process has ended; False if it still runs after the patience."""
    if handle is not None:
        return bool(select.select([handle], [], [], PATIENCE_SECONDS)[0])
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(POLL_SECONDS)
    return False


# `stretto serve`: models over HTTP, for clients of OpenAI, of Ollama, and for programs of your own.


@o.flags("serve", local=True, repeat_guard=True, cache="disk")
def serve(models: o.Served = None, model: o.ServedModels = None, **options: Any) -> None:
    """Serve models over HTTP: OpenAI's and Ollama's clients use them unchanged.

    Listens on this machine only, unless --host says otherwise; then --api-key is needed.
    Point a client at it: OPENAI_BASE_URL=http://localhost:8080/v1, or OLLAMA_HOST=localhost:8080.
    """
    try:
        from stretto.server.http.registry import with_adapters
        from stretto.server.serve import serve as run
        from stretto.server.settings import ModelEntry, Settings, api_keys, parse_arguments, parse_defaults
    except ImportError as error:
        raise StrettoError(
            f"{error.name} is missing; the server needs: pip install 'stretto[server]'"
        ) from None
    named = [o.resolve_served(one) for one in (*(models or ()), *(model or ()))] or [default_model()]
    entries = tuple(ModelEntry.parse(text) for text in named)
    entries = with_adapters(ModelEntry.with_vision(entries, options["vision"]), options["adapter"])
    entries = ModelEntry.with_templates(entries, options["chat_template"])
    settings = Settings.of(
        options,
        models=entries,
        api_keys=api_keys(options["api_key"], options["api_key_file"]),
        admin_keys=api_keys(options["admin_key"], options["admin_key_file"], "admin"),
        defaults=parse_defaults(options["default"]),
        template_arguments=parse_arguments(options["chat_template_kwargs"]),
    )
    settings, kept = _check_disk_cache(settings)
    for entry in entries:
        pull_missing(entry.source)
    names = ", ".join(entry.name for entry in entries)

    def waiting(n_running: int) -> None:
        requests = "1 running request" if n_running == 1 else f"{n_running} running requests"
        print(
            f"waiting up to {settings.grace_seconds:g} s for {requests}; Ctrl-C again to stop at once",
            flush=True,
        )

    def started(address: str) -> None:
        print(f"serving {names} on {address}\n{kept}".rstrip(), flush=True)

    run(settings, started, waiting)


def _check_disk_cache(settings: Settings) -> tuple[Settings, str]:
    """Whether prompts can be kept on disk, and what the operator should know about it.

    A default folder that cannot be used keeps no server from starting; one that was asked for does.
    """
    from stretto.loading.disk_cache import open_store

    if settings.cache != "disk" or not settings.cache_size:
        return settings, ""
    try:
        store = open_store(settings.cache_dir, settings.cache_size, settings.cache_writes)
    except StrettoError as error:
        if settings.cache_dir is not None:
            raise
        return replace(settings, cache="memory"), f"prompts are kept in memory alone: {error}"
    return settings, (
        f"prompts are kept on disk too, in {store.folder}, up to {size(settings.cache_size)}; "
        "--cache memory switches that off, stretto cache clear removes them"
    )
