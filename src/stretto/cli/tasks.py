"""`stretto classify`: the labels of images, files or texts."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stretto.cli.options import flags, model_names, resolve_alias
from stretto.cli.output import clean, console, print_json, table
from stretto.errors import InvalidRequest, StrettoError

if TYPE_CHECKING:
    from stretto.llm import LLM


# What the commands of tasks share: their inputs, their model, their output.

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
SOUNDS = (".wav",)
MAX_STDIN_BYTES = 64 << 20

Files = Annotated[list[str], typer.Argument(metavar="FILE…", help="Files or folders; - for stdin.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Draw = Annotated[
    str | None,
    typer.Option("--draw", metavar="OUT", help="Draw the result: a file, or a folder for several inputs."),
]


def model_option(help_text: str) -> Any:
    """The option for a model of some kind."""
    return typer.Option(
        "--model", "-m", metavar="MODEL", help=help_text, autocompletion=model_names, callback=resolve_alias
    )


@contextmanager
def open_model(
    model: str, *, verb: str | None = None, files: Sequence[str] = (), **options: Any
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
        made = stretto.load(model, **options)
    with made:
        yield made


def list_files(given: Sequence[str], endings: tuple[str, ...] = ()) -> list[str]:
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


def read_texts(given: Sequence[str]) -> list[str]:
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


def read_source(name: str) -> Any:
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


def print_all(results: Iterable[tuple[str, Any]], key: str, show: Callable[[str, Any], None] | None) -> None:
    """Show results as they come, or without `show` as one JSON document, each with its input at `key`."""
    found = []
    for name, result in results:
        if show is None:
            found.append({key: name, **result.to_dict()})
        else:
            show(name, result)
    if show is None:
        print_json(found)


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


DEFAULT_MODEL = "efficientnet-lite0"


@flags("classify")
def classify(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(help="Files and folders, or texts, as the model takes them; - for stdin."),
    ] = None,
    model: Annotated[str, model_option("A model that classifies.")] = DEFAULT_MODEL,
    top: Annotated[int, typer.Option(min=1, help="How many labels.")] = 5,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Give images, files or texts their labels, most probable first."""

    images = list_files(inputs or [], IMAGES) if model == DEFAULT_MODEL else []  # others may take texts
    with open_model(model, verb="classify", files=images, **options) as llm:
        takes = getattr(llm, "takes", "text")
        endings = IMAGES if takes == "image" else ()
        names = read_texts(inputs or []) if takes == "text" else list_files(inputs or [], endings)
        source = str if takes == "text" else read_source

        def show(name: str, result: Any) -> None:
            prefix = f"{clean(name)}: " if len(names) > 1 else ""
            print(prefix + ", ".join(f"{clean(label.name)} {label.score:.2f}" for label in result))

        results = run_all(names, lambda one: llm.classify(source(one), top=top))
        print_all(results, "input", None if as_json else show)


# What `detect`, `segment` and `read` do alike: a result for each image, printed, drawn or as JSON.


def show_images(
    files: Sequence[str],
    model: str,
    verb: str,
    out: str | None,
    as_json: bool,
    machine: dict[str, Any],
    picture: str = "draw",
    **options: Any,
) -> None:
    """Run a verb on each image, with `options`.

    `picture` is the result's method that makes what is written to `out`.
    """
    names = list_files(files, IMAGES)
    if out is not None and len(names) == 1:
        check_picture_name(out)

    def show(name: str, result: Any) -> None:
        if len(names) > 1:
            print(f"{clean(name)}:")
        for line in io.StringIO(str(result)):
            print(clean(line.rstrip("\n")))

    with open_model(model, verb=verb, files=names, **machine) as llm:
        sources = {name: read_source(name) for name in names if name == "-"}  # stdin can be read once

        def work(name: str) -> Any:
            source = sources.get(name, name)
            result = getattr(llm, verb)(source, **options)
            if out is not None:
                save_picture(out, name, len(names), getattr(result, picture)(source))
            return result

        print_all(run_all(names, work), "file", None if as_json else show)


# `stretto detect`: objects in images.


@flags("detect")
def detect(
    files: Files,
    model: Annotated[str, model_option("A model that can detect.")] = "centernet",
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="The least score (default: the model's own).")
    ] = None,
    draw: Draw = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Find objects in images, with boxes in pixels."""
    chosen: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
    show_images(files, model, "detect", draw, as_json, options, **chosen)


# `stretto read`: the text in images.


@flags("read")
def read(
    files: Files,
    model: Annotated[str, model_option("A model that can read.")] = "ppocr",
    draw: Draw = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Read the text in images, in reading order."""
    show_images(files, model, "read", draw, as_json, options)


# `stretto segment`: an image's foreground.


@flags("segment")
def segment(
    files: Files,
    model: Annotated[str, model_option("A model that can segment.")] = "u2net",
    draw: Draw = None,
    cut_out: Annotated[
        str | None,
        typer.Option("--cut-out", metavar="OUT", help="The image without its background, as a PNG."),
    ] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Tell the foreground of images from their background."""
    show_images(
        files,
        model,
        "segment",
        draw or cut_out,
        as_json,
        options,
        picture="cut_out" if cut_out else "draw",
    )


# `stretto rerank`: documents by how well they answer a query.


@flags("rerank")
def rerank(
    query: Annotated[str, typer.Argument(help="What is asked.")],
    documents: Annotated[
        list[str] | None, typer.Argument(help="Texts; without them, lines of stdin.")
    ] = None,
    model: Annotated[str, model_option("A model that ranks or embeds.")] = "minilm",
    top: Annotated[int | None, typer.Option(min=1, help="Only so many of the best.")] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Sort texts by how well they answer a query, best first."""

    given = read_texts(documents or [])
    with open_model(model, verb="rerank", **options) as llm:
        ranking = llm.rerank(query, given, top=top)
    if as_json:
        print_json(ranking.to_dict())
        return
    made = table("score", "number", "text", right=("score", "number"))
    for item in ranking:
        made.add_row(f"{item.score:.4f}", str(item.index), clean(item.text))
    console().print(made)


# `stretto embed`: texts as vectors.


@flags("embed")
def embed(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without them, lines of stdin.")] = None,
    model: Annotated[str, model_option("A model that embeds.")] = "minilm",
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE.npy", help="Write the vectors to a NumPy file.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize/--raw", help="Make their length 1.")] = True,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Turn texts into vectors, one line of numbers each."""
    import numpy as np

    from stretto.weights.files import atomic_write

    given = read_texts(texts or [])
    with open_model(model, verb="embed", **options) as llm:
        vectors = np.asarray(llm.embed(given, normalize=normalize), np.float32)
    if out is not None:
        with atomic_write(out) as file:
            np.save(file, vectors)
    elif as_json:
        rows = [{"text": text, "vector": row.tolist()} for text, row in zip(given, vectors, strict=True)]
        print_json({"model": model, "dimensions": vectors.shape[1], "vectors": rows})
    else:
        for row in vectors:
            print(" ".join(f"{number:.7g}" for number in row.tolist()))


# `stretto transcribe`: speech as text.


@flags("transcribe")
def transcribe(
    files: Files,
    model: Annotated[str, model_option("A model that can transcribe.")] = "moonshine",
    form: Annotated[
        Literal["text", "times", "srt", "vtt"],
        typer.Option("--format", help="The text alone, with times, or subtitles."),
    ] = "text",
    language: Annotated[
        str | None, typer.Option(metavar="CODE", help="The language, as en (default: as the model hears).")
    ] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Write down the speech in sound files (WAV)."""
    from stretto.tasks.results import srt, vtt

    names = list_files(files, SOUNDS)

    def show(name: str, transcript: Any) -> None:
        if len(names) > 1 and form in ("text", "times"):
            print(f"{clean(name)}:")
        if form == "times":
            for segment in transcript:
                print(clean(str(segment)))
        else:
            text = {"srt": srt, "vtt": vtt}[form](transcript) if form != "text" else transcript.text
            sys.stdout.write("\n".join(clean(line) for line in text.splitlines()) + "\n")

    with open_model(model, verb="transcribe", files=names, **options) as llm:
        more = {} if language is None else {"language": language}
        results = run_all(names, lambda one: llm.transcribe(read_source(one), **more))
        print_all(results, "file", None if as_json else show)
