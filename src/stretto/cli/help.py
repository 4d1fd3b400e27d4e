"""Help pages in words: no names of Python's types, and nothing beside a switch that takes no value."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from stretto.errors import InvalidRequest

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


def _form(command: Any) -> str:
    """A command with its arguments."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [one.metavar or one.name.upper() for one in arguments]
    return " ".join([command.name, *words])


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
    """A parameter with a name for its value; the second time it has one."""
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
