"""`stretto cache`: the prompts that are kept on disk, shown, limited and removed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.commands import Command, Group, refuse_options
from stretto.cli.options import size as read_size
from stretto.cli.output import print_json, size
from stretto.errors import InvalidRequest

cache = typer.Typer(cls=Group, invoke_without_command=True)

Folder = Annotated[
    Path | None,
    typer.Option("--cache-dir", metavar="FOLDER", help="Another folder than prefixes in ~/.cache/stretto."),
]


@cache.callback()
def show(
    context: typer.Context,
    cache_dir: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object.")] = False,
) -> None:
    """Show the prompts that `stretto serve` keeps on disk: their folder and size; limit and remove them.

    Files hold the KV cache of prompts and answers, from which the texts can be told.
    """
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    from stretto.loading.disk_cache import open_store

    folder = _folder(cache_dir)
    usage = open_store(folder).usage() if folder.exists() else None
    numbers = {"blocks": 0, "keys": 0, "bytes": 0, "written_today": 0}
    limits: dict[str, int | None] = {"limit": None, "write_limit": None}
    if usage is not None:
        numbers = dict(zip(numbers, (usage.blocks, usage.owners, usage.nbytes, usage.written), strict=True))
        limits = {"limit": usage.limit, "write_limit": usage.write_limit}
    if as_json:
        print_json({"folder": str(folder), **numbers, **limits})
        return
    typer.echo(f"{folder}: {numbers['blocks']:,} blocks, {size(numbers['bytes'])}")
    typer.echo(f"written today: {size(numbers['written_today'])}")
    for name, value in limits.items():
        if value is not None:
            typer.echo(f"{name.replace('_', ' ')} for all servers: {size(value)}")


@cache.command(cls=Command)
def limit(
    nbytes: Annotated[str, typer.Argument(metavar="SIZE|none", help="As 1GB; none: no limit of its own.")],
    writes: Annotated[
        str | None,
        typer.Option("--writes", metavar="SIZE|none", help="What may be written in a day; else as it was."),
    ] = None,
    cache_dir: Folder = None,
) -> None:
    """Limit the folder for all servers, whatever theirs allow, and remove now what is beyond that."""
    from stretto.loading.disk_cache import open_store

    store = open_store(_folder(cache_dir))
    most = None if nbytes == "none" else read_size("SIZE", nbytes)
    if writes is None:
        written = store.usage().write_limit
    else:
        written = None if writes == "none" else read_size("--writes", writes)
    store.limit(most, written)
    usage = store.usage()
    typer.echo(f"{usage.folder}: {usage.blocks:,} blocks, {size(usage.nbytes)}")


@cache.command(cls=Command)
def clear(
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", help="Remove what was kept for this key of a server alone."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", metavar="FILE", help="The same for keys, one a line.")
    ] = None,
    cache_dir: Folder = None,
) -> None:
    """Remove the prompts that are kept on disk: all of them, or those of a key."""
    from stretto.loading.disk_cache import open_store

    lines = [] if api_key is None else [api_key]
    if api_key_file is not None:
        try:
            lines += api_key_file.read_text().splitlines()
        except (OSError, UnicodeError) as error:
            raise InvalidRequest(f"--api-key-file {api_key_file}: {error}", param="api_key_file") from None
    keys = [words[0] for line in lines if (words := line.split())]
    is_everything = api_key is None and api_key_file is None
    if not keys and not is_everything:
        name, option = ("api_key", "--api-key") if api_key_file is None else ("api_key_file", api_key_file)
        raise InvalidRequest(
            f"{option} has no key; give one, or leave it out to remove what is kept for all", param=name
        )
    folder = _folder(cache_dir)
    if not folder.exists():
        typer.echo(f"{folder}: nothing is kept")
        return
    store = open_store(folder)
    removed = (
        store.clear(everything=True) if is_everything else sum(store.clear(store.salt(key)) for key in keys)
    )
    typer.echo(f"removed {size(removed)}")


def _folder(given: Path | None) -> Path:
    if given is not None:
        return given.expanduser()
    from stretto.loading.disk_cache import default_folder

    return default_folder()
