"""`llm stretto`: names for models of your own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from llm_stretto.names import PREFIX, named, own_names, write_own_names


@click.group()
def stretto() -> None:
    """Models that run in Stretto."""


@stretto.command(name="list")
def listed() -> None:
    """List the models, and what they can do."""
    for model in named().values():
        click.echo(f"{model.id}: {', '.join(model.verbs)}")


@stretto.command()
@click.argument("name")
@click.argument("model")
@click.option("--vision", metavar="FILE", help="The mmproj file that lets the model see images.")
@click.option(
    "options",
    "-o",
    "--option",
    type=(str, str),
    multiple=True,
    metavar="NAME VALUE",
    help="Another option of stretto.load, such as cells 16384.",
)
def add(name: str, model: str, vision: str | None, options: tuple[tuple[str, str], ...]) -> None:
    """Give a model a name: a file, a folder, or hf:org/repo/file.gguf."""
    made: dict[str, Any] = {"model": _whole(model)}
    if vision:
        made["vision"] = _whole(vision)
    made |= {key: _value(text) for key, text in options}
    write_own_names({**own_names(), name: made})
    click.echo(f"llm -m {PREFIX}{name} runs it")


@stretto.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forget a name; the model's files stay."""
    names = own_names()
    if name not in names:
        raise click.ClickException(f"{name} is no name of your own; there are {', '.join(names) or 'none'}")
    write_own_names({key: value for key, value in names.items() if key != name})


def _whole(path: str) -> str:
    """An absolute path where there is such a file, or the name as it is."""
    found = Path(path).expanduser()
    return str(found.resolve()) if found.exists() else path


def _value(text: str) -> Any:
    """A number or a truth value, as JSON has them, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
