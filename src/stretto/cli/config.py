"""`stretto config`: choices that stay, in a file of the user's."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from stretto.cli import config_file as settings
from stretto.cli.commands import Command, Group, refuse_options
from stretto.cli.first_run import ENVIRONMENT_VARIABLE, read_choice
from stretto.cli.options import aliases, model_names, setting_names
from stretto.cli.output import clean, console, print_json, table
from stretto.errors import InvalidRequest, ModelError
from stretto.weights import hub
from stretto.weights.hub.catalogue import CATALOGUE

config = typer.Typer(cls=Group, invoke_without_command=True)

Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="As `stretto config` lists them, such as sampling.temperature or alias.NAME.",
        autocompletion=setting_names,
    ),
]


@config.callback()
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object.")] = False,
) -> None:
    """Show the settings that commands go by, and where each value comes from; set and unset them.

    Options of a command win over settings, and settings over what a model recommends.
    """
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return

    found = {one.key: one for one in settings.read_values()}
    wrong = [one for one in found.values() if one.problem]
    if as_json:
        rows: list[dict[str, Any]] = [
            {"key": one.key, "value": _as_json(one.value), "line": one.line, "problem": one.problem or None}
            for one in found.values()
        ]
        print_json({"path": str(settings.path()), "settings": rows})
    else:
        listing = table("setting", "value", "from")
        for key in dict.fromkeys((*settings.SETTINGS, *sorted(found))):
            if key == "model" and (named := os.environ.get(ENVIRONMENT_VARIABLE)):
                listing.add_row(key, clean(named), f"the environment: {ENVIRONMENT_VARIABLE}")
            elif key in found:
                one = found[key]
                place = "the file" if one.line is None else f"line {one.line}"
                place += f": {one.problem}" if one.problem else ""
                listing.add_row(*map(clean, (key, _shown(one.value), place)))
            else:
                listing.add_row(key, *_default(key), style="dim")
        screen = console()
        screen.print(f"{clean(str(settings.path()))}{'' if found else ' (no settings yet)'}", soft_wrap=True)
        screen.print(listing)
    if wrong:
        keys = ", ".join(one.key for one in wrong)
        raise InvalidRequest(
            f"{settings.path()}: {len(wrong)} wrong: {keys}; stretto config unset KEY removes a setting"
        )


@config.command("set", cls=Command, context_settings={"ignore_unknown_options": True})  # -1 is a value
def set_(
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Its value.", autocompletion=model_names)],
) -> None:
    """Set a value: it holds until it is unset, in every command that it concerns."""

    section, _, name = key.partition(".")
    if section == "alias":
        check_alias(name)
    if section in ("alias", "model"):
        check_model(value, may_be_alias=section == "model")
    made = settings.set_value(key, value)
    typer.echo(f"{clean(key)} = {clean(_shown(made))} in {clean(str(settings.path()))}")


@config.command(cls=Command)
def unset(key: Key) -> None:
    """Remove a value from the file, also a wrong one."""

    settings.unset(key)
    typer.echo(f"{clean(key)} is not set any more")


@config.command(cls=Command)
def path() -> None:
    """Print where the file is, or would be."""

    typer.echo(str(settings.path()))


def check_alias(name: str) -> None:
    """Raise for an alias that would hide a model."""

    if name in hub.packaged_models() or name in CATALOGUE:
        raise InvalidRequest(f"{name} is the name of a model; choose another for the alias", param="alias")


def check_model(name: str, may_be_alias: bool) -> None:
    """Raise for a name that no model has; one that is not here yet is fetched when it is used."""

    try:
        if not (may_be_alias and name in aliases()):
            hub.resolve(name, pull=False)
    except ModelError:
        return


def _as_json(value: Any) -> Any:
    """A value of the file for JSON, which has no dates: only wrong values have them."""
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    if isinstance(value, dict):
        return {key: _as_json(one) for key, one in value.items()}
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _default(key: str) -> tuple[str, str]:
    """What holds while a setting is not set, and whose choice that is."""
    from stretto.options.generating import BY_NAME

    if key.startswith("sampling."):
        return f"{BY_NAME[key.removeprefix('sampling.')].default:g}", "the default, or the model"
    return {
        "model": (read_choice() or "not chosen yet", "the first start"),
        "system": ("", "the model"),
        "max_tokens": ("", "the command"),
        "threads": ("", "the machine"),
        "logs": ("true", "the default"),
    }[key]
