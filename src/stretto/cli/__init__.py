"""The command line: `stretto COMMAND …`, one file a command.

Commands import what they need when they run, so that `stretto --help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated, NoReturn

import typer

from stretto.cli.bench import bench
from stretto.cli.chat import chat
from stretto.cli.classify import classify
from stretto.cli.compare import compare
from stretto.cli.config import config
from stretto.cli.convert import convert
from stretto.cli.deploy import deploy
from stretto.cli.detect import detect
from stretto.cli.devices import devices
from stretto.cli.docs import docs
from stretto.cli.doctor import doctor
from stretto.cli.embed import embed
from stretto.cli.eval import eval_
from stretto.cli.export import export
from stretto.cli.help import Command, Group
from stretto.cli.imatrix import imatrix
from stretto.cli.inspect import inspect
from stretto.cli.merge import merge
from stretto.cli.models import models
from stretto.cli.output import clean
from stretto.cli.parallel import parallel
from stretto.cli.perplexity import perplexity
from stretto.cli.pull import pull
from stretto.cli.quantize import quantize
from stretto.cli.read import read
from stretto.cli.rerank import rerank
from stretto.cli.rm import rm
from stretto.cli.run import run
from stretto.cli.score import score
from stretto.cli.segment import segment
from stretto.cli.serve import serve
from stretto.cli.tokenize import tokenize
from stretto.cli.transcribe import transcribe
from stretto.cli.unknown import renamed
from stretto.errors import StrettoError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    name="stretto",
    cls=Group,
    help="Language models, and models of other kinds, on your own machine.",
    epilog="Errors are one line and exit code 2. A model is a name (stretto models), a path, "
    "or hf:org/repo:Q4_K_M.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    chat,
    run,
    parallel,
    serve,
    pull,
    models,
    rm,
    merge,
    inspect,
    tokenize,
    devices,
    doctor,
    docs,
    compare,
):
    app.command(cls=Command)(command)
for task in (embed, rerank, classify, detect, segment, read, transcribe):
    app.command(cls=Command, rich_help_panel="Other kinds of models")(task)
for making in (quantize, convert, imatrix):
    app.command(cls=Command, rich_help_panel="Files in other formats")(making)
app.command("score", cls=Command, rich_help_panel="Quality")(score)
app.command("perplexity", cls=Command, rich_help_panel="Quality")(perplexity)
app.command("eval", cls=Command, rich_help_panel="Quality")(eval_)
app.add_typer(config, name="config")
app.add_typer(bench, name="bench")
app.add_typer(export, name="export")
app.add_typer(deploy, name="deploy")


@app.callback(invoke_without_command=True)
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


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit.

    >>> main(["models", "--json"])
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in _options(given)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # whatever a test or a notebook has put there
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # see above
    with _terminable():
        code = _run(_without_debug(given), debug)
    sys.exit(code)


def _run(arguments: list[str], debug: bool) -> int:
    """Run a command and return its exit code; an error is printed on stderr."""
    try:
        code = app(arguments, prog_name="stretto", standalone_mode=False)
        sys.stdout.flush()
        if code == EXIT_INTERRUPTED:  # some versions of typer catch Ctrl-C and say so in this way
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        # The reader has closed the pipe, as in `stretto models | head -1`. Python's own flush at exit must
        # not fail on it.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        print("\ninterrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        print(f"error: {clean(_message(error))}", file=sys.stderr)
        return EXIT_ERROR


def _message(error: Exception) -> str:
    """The message of an error: our own, that of the command-line parser, or that this is a bug."""
    if isinstance(error, StrettoError):
        return str(error)
    # The parser's exceptions live in click or inside typer, depending on typer's version.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        command = "stretto" if context is None else context.command_path
        return f"{error.format_message()}{renamed(error)} ({command} --help shows more)"
    if isinstance(error, OSError):
        return str(error)
    return f"{type(error).__name__}: {error} (a bug in Stretto; --debug shows where)"


def _options(arguments: list[str]) -> list[str]:
    """The arguments before `--`: after it, everything is text."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _without_debug(arguments: list[str]) -> list[str]:
    """Take `--debug` out of the arguments; it may come before or after the command."""
    options = _options(arguments)
    return [word for word in options if word != "--debug"] + arguments[len(options) :]


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the command as an exception does, so that it cleans up."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    try:
        previous = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread, where signals do not arrive anyway
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
