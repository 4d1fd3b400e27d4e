"""docs/reference/commands.md: every command and option of the command line, as typer knows them."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from reference.markdown import MADE, plain, table
from stretto.cli import app

HEAD = f"""# Commands

Every command of `stretto` with its arguments and options: the same that `stretto COMMAND --help` shows.
[The command line](cli.md) shows them in use. An error is one line on stderr and exit code 2; with
`--debug` it is the whole traceback. Ctrl-C ends a command with exit code 130.

{MADE}
"""


def page() -> str:
    """The text of the page."""
    group: Any = get_command(app)
    parts = [HEAD, "## stretto", "", _usage("stretto", group), *_options(group)]
    for name, command in group.commands.items():
        if not command.hidden:
            parts += _command(f"stretto {name}", command)
    return "\n".join(parts) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    """A command, and those below it."""
    yield from ("", f"## {name}", "", plain(command.help or ""), "", _usage(name, command))
    yield from _options(command)
    for below, inner in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {below}", inner)


def _usage(name: str, command: Any) -> str:
    words = [name]
    for one in _params(command):
        if one.param_type_name == "argument":
            word = (one.metavar or one.name.upper()) + (" …" if one.nargs == -1 else "")
            words.append(word if one.required else f"[{word}]")
    if any(one.param_type_name == "option" for one in _params(command)):
        words.append("[OPTIONS]")
    if getattr(command, "commands", None):
        words.append("COMMAND")
    return f"```text\n{' '.join(words)}\n```"


def _options(command: Any) -> Iterator[str]:
    rows = [_row(one) for one in _params(command)]
    if rows:
        yield from ("", table(("argument or option", "default", "meaning"), rows))


def _row(one: Any) -> tuple[str, str, str]:
    meaning = plain(getattr(one, "help", None) or "")
    if one.param_type_name == "argument":
        return f"`{one.metavar or one.name.upper()}`", "", meaning
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    value = f" `{one.metavar}`" if one.metavar else ""
    if envvar := getattr(one, "envvar", None):
        meaning += f" Environment: `{envvar}`."
    return names + value, _default(one), meaning


def _params(command: Any) -> list[Any]:
    """The parameters of a command with the names of their values in words, as its help has them."""
    context = command.make_context(command.name, [], resilient_parsing=True)
    shown = [one for one in command.get_params(context) if not getattr(one, "hidden", False)]
    return [one for one in shown if one.name != "help"]


def _default(one: Any) -> str:
    default = one.default
    if callable(default) or default is None or default is False or default in ((), [], ""):
        return ""
    if default is True:
        return f"`{one.opts[0]}`"
    return f"`{getattr(default, 'value', default)}`"
