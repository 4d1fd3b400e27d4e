"""All commands as one typer app, each imported when it runs; the help page imports all of them.

`stretto.cli.main` builds the app for the command that it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from stretto.errors import InvalidRequest
from stretto.options.names import OURS

# Help pages in words: no names of Python's types, and nothing beside a switch that takes no value.
#
# Values are read here where they are plain: newer versions of typer import pydantic for each of them, which
# takes longer than everything else before a model is loaded.


WORDS = {"str": "TEXT", "int": "N", "float": "NUMBER", "path": "PATH", "file": "FILE", "directory": "FOLDER"}


class Command(TyperCommand):
    """A command whose help page names values in words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, and --help."""
        return [_in_words(param, ctx) for param in super().get_params(ctx)]


class Group(TyperGroup):
    """The same for a command that has commands; alone it says which ones, unless it does something itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; without any, those of its commands are named."""
        if not args and not self.invoke_without_command and not ctx.resilient_parsing:
            forms = [_form(command) for command in self.commands.values() if not command.hidden]
            shown = "; ".join(f"{ctx.command_path} {form}" for form in forms)
            raise InvalidRequest(f"a command is missing: {shown} ({ctx.command_path} --help shows more)")
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, and --help."""
        return [_in_words(param, ctx) for param in super().get_params(ctx)]


def refuse_options(context: Any) -> None:
    """Raise for an option of a group that stands before one of its commands, which would not get it."""
    for param in context.command.params:
        source = context.get_parameter_source(param.name)
        if source is not None and source.name == "COMMANDLINE":
            path, name = context.command_path, context.invoked_subcommand
            raise InvalidRequest(
                f"{param.opts[0]} stands before {name}, which does not get it; "
                f"{path} {name} --help shows the options of {name}"
            )


def _form(command: Any) -> str:
    """A command with its arguments."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [one.metavar or one.name.upper() for one in arguments]
    return " ".join([command.name, *words])


class PlainValues:
    """Reads the values of a parameter in place of typer's reader, which gets what is not plain, or wrong."""

    def __init__(self, param: Any) -> None:
        self._full = param.get_runtime_param  # typer's, made when it is called

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of the parameter's type."""
        kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        limits = [
            name for name in ("parser", "click_type", "min", "max") if getattr(info, name, None) is not None
        ]
        if not limits:
            if kind is str and isinstance(value, str):
                return value
            if kind is int and (type(value) is int or (isinstance(value, str) and _is_digits(value))):
                return int(value)
            if kind is float and (type(value) is float or (isinstance(value, str) and _is_decimal(value))):
                return float(value)
            if get_origin(kind) is Literal and isinstance(value, str) and value in get_args(kind):
                return value
            if (
                kind == list[str]
                and not isinstance(value, str)
                and all(isinstance(one, str) for one in value)
            ):
                return list(value)
        elif limits == ["parser"] and type(value) is int and value == param.default:
            return value  # which the command itself wrote
        return self._full().coerce(value, param=param, ctx=ctx)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit()


def _is_decimal(text: str) -> bool:
    return _is_digits(text.replace(".", "", 1)) and text[-1:] != "."


def value_name(type_name: str) -> str:
    """How help calls a value, from how typer calls its type.

    >>> value_name("<int>"), value_name("INTEGER RANGE"), value_name("list[str]"), value_name("<auto|yes>")
    ('N', 'N', 'TEXT', 'auto|yes')
    """
    bare = type_name.strip("<>[]").removesuffix("...").removeprefix("list[").strip("<>[]")
    old = {"text": "str", "integer": "int", "float": "float", "filename": "file"}  # typer before 0.20
    bare = bare.removesuffix(" range").removesuffix(" RANGE")
    return WORDS.get(old.get(bare.lower(), bare.lower()), bare)


def _in_words(param: Any, ctx: Any) -> Any:
    """A parameter with a name for its value, read plainly; the second time it has both."""
    if hasattr(param, "get_runtime_param") and "get_runtime_param" not in vars(param):
        values = PlainValues(param)
        param.get_runtime_param = lambda: values
    if param.param_type_name == "argument":
        # Its name stands in a column of its own, and says what it is. Only newer versions have the method.
        if hasattr(param, "display_type_rich"):
            param.display_type_rich = lambda ctx: None
        return param
    if getattr(param, "is_flag", False):
        param.metavar = ""
    elif param.metavar is None:
        shown = param.display_type(ctx) if hasattr(param, "display_type") else param.type.name
        param.metavar = value_name(shown)
    return param


# Options that other programs have: the error says what they are called here.

ON_A_GPU = ("n_gpu_layers", "num_gpu", "gpu_layers", "device_map")


def explain_unknown(error: Exception) -> str:
    """What an unknown option is called here, as the end of a message; "" if there is nothing like it.

    `error` is the parser's: of no other kind do exceptions have an option's name and a context.
    """
    given, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if not isinstance(given, str) or context is None:
        return ""
    options = {one.name: one.opts[0] for one in context.command.params if one.opts[0].startswith("-")}
    name = given.lstrip("-").replace("-", "_")
    if name in ON_A_GPU and "device" in options:
        return "; --device cuda runs the whole model on a GPU"
    ours = options.get(OURS.get(name, ""))
    return f"; it is {ours} here" if ours else ""


# Commands by the panel of the help page.
PANELS = {
    "Language models": "chat run serve parallel tokenize",
    "Models on this machine": "models pull rm inspect cache",
    "Other kinds of models": "embed rerank classify detect segment read transcribe",
    "Files in other formats": "quantize convert export imatrix merge",
    "Speed and quality": "bench compare score perplexity eval",
    "Settings and machines": "config logs docs devices doctor ps stop deploy",
}
GROUPS = ("bench", "cache", "config", "deploy", "export", "logs")  # have commands of their own
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
NAMES = tuple(PANEL_OF)
FUNCTIONS = {"eval": "eval_"}  # where the name is Python's own
# Modules of several commands; others have a module of their own name here.
FAMILIES = {
    "models": "rm",
    "perplexity": "score",
    "quantize": "convert imatrix merge",
    "servers": "serve ps stop",
    "tasks": "classify detect embed read rerank segment transcribe",
}
MODULE_OF = {name: module for module, names in FAMILIES.items() for name in names.split()}


def new_app(names: Iterable[str] = NAMES) -> typer.Typer:
    """An app with these commands."""
    app = typer.Typer(
        name="stretto",
        cls=Group,
        help="Language models, and models of other kinds, on your own machine.",
        epilog="A model is a name (stretto models), a path, or hf:org/repo:Q4_K_M. It may be the first "
        "argument, or come by --model. stretto docs has the documentation: stretto docs cli.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        found: Any = getattr(
            import_module(f"stretto.cli.{MODULE_OF.get(name, name)}"), FUNCTIONS.get(name, name)
        )
        if name in GROUPS:
            app.add_typer(found, name=name, rich_help_panel=PANEL_OF[name])
        else:
            app.command(name, cls=Command, rich_help_panel=PANEL_OF[name])(found)
    app.callback(invoke_without_command=True)(_root)
    return app


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Language models, and models of other kinds, on your own machine."""
    if version:
        from stretto import __version__

        typer.echo(f"stretto {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
