"""The command line: `stretto COMMAND …`, one file a command or family of commands.

Only the command that runs is imported, and it imports what it needs when it runs: this module is all that
stands between Ctrl-C and a traceback while the others are imported.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import typer

    app: typer.Typer  # all commands

EXIT_ERROR = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stretto.cli.commands import new_app

    globals()["app"] = made = new_app()
    return made


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit.

    >>> main(["models", "--json"])
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        gc.set_threshold(20_000)  # a start makes many objects, and all of them stay
    debug = "--debug" in _options(given)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # whatever a test or a notebook has put there
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # see above
    with _terminable():
        code = _run(_without_debug(given), debug)
    if code == EXIT_INTERRUPTED and arguments is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C shows no traceback of the cleaning up
    sys.exit(code)


def _run(arguments: list[str], debug: bool) -> int:
    """Run a command and return its exit code; an error is printed on stderr."""
    try:
        from stretto.cli.commands import NAMES, new_app

        is_known = bool(arguments) and arguments[0] in NAMES
        app = new_app(arguments[:1] if is_known else NAMES)
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
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if type(error).__name__ == "Abort":  # the parser's, at a prompt
            return _interrupted()
        if debug:
            import traceback

            traceback.print_exc()
        from stretto.cli.output import clean

        print(f"error: {clean(_message(error))}", file=sys.stderr)
        return EXIT_ERROR


def _interrupted() -> int:
    print("\ninterrupted", file=sys.stderr)
    return EXIT_INTERRUPTED


def _message(error: Exception) -> str:
    """The message of an error: our own, that of the command-line parser, or that this is a bug."""
    from stretto.cli.commands import explain_unknown
    from stretto.errors import StrettoError

    if isinstance(error, StrettoError):
        return str(error)
    # The parser's exceptions live in click or inside typer, depending on typer's version.
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        command = "stretto" if context is None else context.command_path
        return f"{error.format_message()}{explain_unknown(error)} ({command} --help shows more)"
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
