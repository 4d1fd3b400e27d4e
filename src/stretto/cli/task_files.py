"""What the commands of tasks share: their inputs, their model, their output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.completion import model_names
from stretto.cli.options import aliased, configured_threads
from stretto.cli.output import clean, console
from stretto.errors import InvalidRequest, StrettoError

if TYPE_CHECKING:
    from stretto.llm import LLM

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
SOUNDS = (".wav",)
MAX_STDIN_BYTES = 64 << 20

Files = Annotated[list[str], typer.Argument(metavar="FILE…", help="Files or folders; - for stdin.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Draw = Annotated[
    str | None,
    typer.Option("--draw", metavar="OUT", help="Draw the result: a file, or a folder for several inputs."),
]
Threads = Annotated[
    int | None,
    typer.Option(help="How many threads (default: as suits the machine).", callback=configured_threads),
]
Device = Annotated[str, typer.Option(help="What to run it on: auto, cpu, cuda …")]


def model_option(help_text: str) -> Any:
    """The option for a model of some kind."""
    return typer.Option(
        "--model", "-m", metavar="MODEL", help=help_text, autocompletion=model_names, callback=aliased
    )


@contextmanager
def opened(
    model: str,
    device: str = "auto",
    threads: int | None = None,
    *,
    verb: str | None = None,
    files: Sequence[str] = (),
) -> Iterator[LLM]:
    """A model that has a verb, by its name or path; one that is not here is fetched first.

    With `files`, for which it is wanted, nothing is fetched or loaded unless one of them is there.
    """
    from rich.text import Text

    import stretto
    from stretto.cli.pull import pull_missing
    from stretto.weights import hub

    hub.require(model, verb)
    if files and all(map(_is_missing, files)):
        names = ", ".join(files[:3]) + (" …" if len(files) > 3 else "")
        raise InvalidRequest(f"{names}: no such file")
    pull_missing(model, verb)
    screen = console(stderr=True)
    with screen.status(Text(f"loading {clean(model)}")) if screen.is_terminal else nullcontext():
        made = stretto.load(model, device=device, threads=threads)
    with made:
        yield made


def files_of(given: Sequence[str], endings: tuple[str, ...] = ()) -> list[str]:
    """The files that were given, and those in folders that were given: all, or those with an ending."""
    found: list[str] = []
    for name in given:
        path = Path(name)
        if name == "-" or not path.is_dir():
            found.append(name)
            continue
        inside = sorted(one for one in path.rglob("*") if one.is_file() and not one.is_symlink())
        matching = [str(one) for one in inside if not endings or one.suffix.lower() in endings]
        if not matching:
            raise InvalidRequest(f"{name}: there is no file of this kind in the folder ({' '.join(endings)})")
        found += matching
    if not found:
        raise InvalidRequest("give at least one file")
    return found


def _is_missing(name: str) -> bool:
    """Whether a name is that of no file, and neither stdin nor a `data:` URL."""
    if name == "-" or name[:5].lower() == "data:":
        return False
    try:
        return not Path(name).exists()
    except (OSError, ValueError):  # too long, or with a NUL in it
        return True


def texts_of(given: Sequence[str]) -> list[str]:
    """The texts that were given, or the lines of stdin."""
    if list(given) not in ([], ["-"]):
        return list(given)
    try:
        lines = [line for line in _stdin().decode("utf-8").splitlines() if line.strip()]
    except UnicodeError as error:
        raise InvalidRequest(f"stdin is not UTF-8: {error}") from None
    if not lines:
        raise InvalidRequest("give texts, or one a line on stdin")
    return lines


def source_of(name: str) -> Any:
    """What a verb gets: the path, or the bytes of stdin."""
    return _stdin() if name == "-" else name


def _stdin() -> bytes:
    """All of stdin; refused if it is more than is read."""
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise InvalidRequest(f"stdin has more than {MAX_STDIN_BYTES:,} bytes, which is all that is read")
    return data


def run_all(names: Iterable[str], work: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    """The results as they come; a file that fails is told on stderr, and the command fails at its end."""
    from rich.progress import Progress

    listed, failed = list(names), 0
    screen = console(stderr=True)
    with Progress(console=screen, transient=True, disable=len(listed) < 2 or not screen.is_terminal) as bar:
        for name in bar.track(listed, description=""):
            try:
                result = work(name)
            except StrettoError as error:
                if len(listed) == 1:
                    raise
                failed += 1
                print(f"error: {clean(name)}: {clean(str(error))}", file=sys.stderr)
                continue
            yield name, result
    if failed:
        raise InvalidRequest(f"{failed} of {len(listed)} files failed")


def check_picture_name(out: str) -> None:
    """Raise unless the name of a picture has the ending of one."""
    if Path(out).suffix.lower() not in IMAGES:
        raise InvalidRequest(f"--draw {out}: the name of a picture ends with .png or .jpg")


def save_picture(out: str, name: str, n_inputs: int, picture: Any) -> None:
    """Write a picture to `out`, or into the folder `out` if there are several; atomically, by its ending."""
    from stretto.weights.files import atomic_write

    path = Path(out)
    if n_inputs > 1:
        path.mkdir(parents=True, exist_ok=True)
        path = path / f"{Path(name).stem}.png"
    form = {".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF"}.get(path.suffix.lower())
    with atomic_write(path, durable=False) as file:
        picture.save(file, form or path.suffix[1:].upper())
