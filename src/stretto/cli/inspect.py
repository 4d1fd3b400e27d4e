"""`stretto inspect`: the contents of a model file, and the memory that loading it needs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.options import model_names
from stretto.cli.output import clean, console, print_json, size, table
from stretto.cli.prompts import model_and_files
from stretto.errors import ModelError, StrettoError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stretto.models import ModelSpec
    from stretto.models.missing import Lack
    from stretto.weights.gguf import GGUF
    from stretto.weights.memory import Memory
    from stretto.weights.metadata import Value

SHOWN_CACHES = ("f16", "q8")  # types of caches whose memory is shown
_MAX_CHARS = 60  # characters of a string that are shown
_MAX_ELEMENTS = 6  # elements of an array that are shown


@o.flags("inspect")
def inspect(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A GGUF file, a folder, a model that is here, or hf:… of which only the head is fetched.",
            autocompletion=model_names,
        ),
    ] = None,
    model: o.NeededModel = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, nothing cut.")] = False,
    placement: Annotated[
        bool,
        typer.Option(
            "--placement",
            help="Show what would be on a GPU and what on the CPU, and the speed that the bandwidths allow.",
        ),
    ] = False,
    gpu_bandwidth: Annotated[
        float | None,
        typer.Option(
            "--gpu-bandwidth", metavar="GB/S", min=1e-3, help="What the GPU reads (default: its own)."
        ),
    ] = None,
    cpu_bandwidth: Annotated[
        float | None,
        typer.Option(
            "--cpu-bandwidth", metavar="GB/S", min=1e-3, help="What the CPU reads (default: measured)."
        ),
    ] = None,
    **options: Any,
) -> None:
    """Show a model's metadata, tensors, formats, and the memory that loading it needs."""
    from stretto.weights.folder import open_weights

    model, _ = model_and_files((name,), model, "inspect MODEL", has_default=False)
    speeds = 1e9 * (gpu_bandwidth or 0.0), 1e9 * (cpu_bandwidth or 0.0)
    with _path_of(model) as (path, shown), open_weights(path) as file:
        if placement:
            _show_placement(file, options, *speeds, as_json)
        elif as_json:
            print_json(_document(file) | ({"path": shown, "files": [shown]} if shown else {}))
        else:
            _show(file, tensors, shown)


def _show_placement(
    file: GGUF, options: dict[str, Any], gpu_bandwidth: float, cpu_bandwidth: float, as_json: bool
) -> None:
    """What would be where, by the options that were given."""
    from stretto.loading.open import plan_file
    from stretto.models import read_spec
    from stretto.options.loading import LOAD, LoadOptions

    chosen = LoadOptions(**o.select_given(options, LOAD))
    plan = plan_file(file, read_spec(file), chosen, gpu_bandwidth, cpu_bandwidth)
    if as_json:
        print_json(plan.as_data())
        return
    made = table("", "where", "memory", "read a token", right=("memory", "read a token"))
    for what, where, nbytes, read in plan.rows:
        made.add_row(what, where, size(nbytes), "" if read is None else size(read))
    console().print(made)
    console().print(plan.summary, soft_wrap=True)


@contextmanager
def _path_of(model: str) -> Iterator[tuple[Path, str]]:
    """The path of a model, and what to show in its place; of one on the Hub, its head for a while."""
    from stretto.weights import hub

    try:
        path = hub.resolve(model, pull=False)
    except ModelError:
        if not hub.is_online(model):
            raise
        with hub.head(model) as path:
            yield path, f"{model} (its head; the weights are not here)"
        return
    yield path, ""


def _document(file: GGUF) -> dict[str, Any]:
    spec, problem = _spec(file)
    need = _need(file, spec)
    return {
        "path": str(file.path),
        "files": [str(path) for path in file.files],
        "bytes": file.nbytes,
        "version": file.version,
        "metadata": {
            key: {"type": file.metadata.types[key].name.lower(), "value": _plain(value)}
            for key, value in file.metadata.items()
        },
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "format": tensor.format.name,
                "file": file.find_file(tensor).name,
                "offset": tensor.offset,
                "bytes": tensor.nbytes,
            }
            for tensor in file.tensors.values()
        ],
        "model": None if spec is None else _model(spec, need),
        "problem": problem,
        "missing": [vars(lack) for lack in _lacks(file, problem)],
        "llamacpp": None if problem is None else _by_llama_cpp(file),
        "memory": {
            "weights": need.weight_bytes,
            "weights_packed": need.packed_bytes,
            "weights_by_format": dict(need.weights),
            "context_length": need.context_length,
            "cache": {
                kind: {str(length): need.cache_bytes(kind, length) for length in need.lengths}
                for kind in SHOWN_CACHES
            },
            "recurrent": "" if spec is None else spec.recurrent,
            "slot": need.state_bytes,
        },
    }


def _spec(file: GGUF) -> tuple[ModelSpec | None, str | None]:
    """The model's spec, or the reason why it cannot be loaded; neither of an image encoder."""
    from stretto.models import read_spec

    if str(file.metadata.get("general.architecture")) == "clip":
        return None, None
    try:
        return read_spec(file), None
    except ModelError as error:
        return None, f"cannot be loaded: {error}"


def _lacks(file: GGUF, problem: str | None) -> list[Lack]:
    """The operations that are missing in a file that cannot be loaded."""
    from stretto.models.missing import list_lacks

    return [] if problem is None else list_lacks(file)


def _by_llama_cpp(file: GGUF) -> dict[str, Any]:
    """Whether the llamacpp backend would run a refused file, and why not, or what it needs."""
    from stretto.loading.choose import would_llama_cpp_run

    would_run, reason = would_llama_cpp_run(file)
    return {"would_run": would_run, "reason": reason}


def _problem_words(file: GGUF, problem: str) -> list[str]:
    """Why a file cannot be loaded, what is missing, and what would run it."""
    words = [problem, *(f"missing in {lack}" for lack in _lacks(file, problem))]
    by = _by_llama_cpp(file)
    answer = {True: "would run it", False: "would not run it", None: "may run it"}[by["would_run"]]
    return [*words, f"the llamacpp backend {answer}" + (f": {by['reason']}" if by["reason"] else "")]


def _need(file: GGUF, spec: ModelSpec | None) -> Memory:
    from stretto.models.summary import model_memory
    from stretto.weights.memory import memory

    return memory(file) if spec is None else model_memory(file, spec)


def _model(spec: ModelSpec, need: Memory) -> dict[str, Any]:
    from stretto.models.summary import expert_facts, layer_kinds

    return {
        "layers": layer_kinds(spec),
        "experts": expert_facts(spec),
        "kv_bytes_per_token": {kind: need.cache_bytes(kind, 1) or 0 for kind in SHOWN_CACHES},
        "state_bytes": need.state_bytes,
    }


def _plain(value: Value) -> Any:
    """A value for JSON. Strings that are not UTF-8 are detected only here; they do not fail the command."""
    import numpy as np

    from stretto.weights.metadata import Strings

    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Strings):
        try:
            return list(value)
        except ModelError as error:
            return f"<{error}>"
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _show(file: GGUF, tensors: bool, shown: str = "") -> None:
    screen = console()
    named = [file.metadata.get(f"general.{key}") for key in ("name", "architecture")]
    title = [
        *(clean(text)[:_MAX_CHARS] for text in named if isinstance(text, str) and text),
        size(file.nbytes),
    ]
    screen.print(" · ".join([*title, f"GGUF {file.version}"]), style="bold")
    for place in [shown] if shown else map(str, file.files):
        screen.print(clean(place), style="dim", soft_wrap=True)
    spec, problem = _spec(file)
    need = _need(file, spec)
    words = _words(spec, need) if spec is not None else _problem_words(file, problem) if problem else []
    for line in words:
        screen.print(clean(line), soft_wrap=True)

    keys = table("key", "type", "value")
    for key, value in file.metadata.items():
        keys.add_row(clean(key), file.metadata.types[key].name.lower(), _short(value))
    screen.print(keys)

    if tensors:
        listing = table("tensor", "shape", "format", "size", right=("shape", "size"))
        for tensor in file.tensors.values():
            shape = " × ".join(map(str, tensor.shape))
            listing.add_row(clean(tensor.name), shape, tensor.format.name, size(tensor.nbytes))
        screen.print(listing)
    screen.print(_formats(file, need))
    screen.print(_cache(need))
    if spec is not None and spec.recurrent:
        kind = spec.recurrent
        screen.print(f"{size(need.state_bytes)} for the {kind} states of each sequence and each checkpoint")
    screen.print(_placement(need), style="dim", soft_wrap=True)


def _words(spec: ModelSpec, need: Memory) -> list[str]:
    """The layers, and what a token and a sequence take."""
    from stretto.models.summary import in_words

    cells = ", ".join(f"{need.cache_bytes(kind, 1) or 0:,} bytes ({kind})" for kind in SHOWN_CACHES)
    return [in_words(spec), f"K and V of a token: {cells}"]


def _formats(file: GGUF, need: Memory) -> Any:
    made = table("format", "tensors", "weights", "share", right=("tensors", "weights", "share"))
    total = need.weight_bytes
    for name, nbytes in need.weights.items():
        count = sum(tensor.format.name == name for tensor in file.tensors.values())
        made.add_row(name, str(count), size(nbytes), f"{nbytes / total:.1%}" if total else "")
    made.add_row("all", str(len(file.tensors)), size(total), "", style="bold")
    return made


def _placement(need: Memory) -> str:
    """Where the weights would be if the model was loaded now with the default cache."""
    from stretto import hardware
    from stretto.weights.memory import choose_placement

    try:
        return str(choose_placement("auto", need, "f16", 8192, hardware.free_memory()))
    except StrettoError as error:
        return str(error)


def _cache(need: Memory) -> Any:
    columns = [f"{kind} cache" for kind in SHOWN_CACHES]
    totals = [f"weights + {kind}" for kind in SHOWN_CACHES]
    made = table("tokens", *columns, *totals, right=("tokens", *columns, *totals))
    for length in need.lengths:
        sizes = [need.cache_bytes(kind, length) for kind in SHOWN_CACHES]
        cells = ["unknown" if n is None else size(n) for n in sizes]
        cells += ["unknown" if n is None else size(n + need.weight_bytes) for n in sizes]
        made.add_row(f"{length:,}", *cells)
    return made


def _short(value: Value) -> str:
    """A value on one line: long strings and arrays are cut, and their length is added."""

    if isinstance(value, str):
        more = f"… ({len(value):,} characters)" if len(value) > _MAX_CHARS else ""
        return clean(value[:_MAX_CHARS]) + more
    if isinstance(value, (bool, int, float)):
        return str(value)
    plain = _plain(value[:_MAX_ELEMENTS]) if not hasattr(value, "decoded") else _plain(value)
    if isinstance(plain, str):
        return clean(plain)
    shown = ", ".join(_short(item) for item in plain[:_MAX_ELEMENTS])
    return f"[{shown}{', …' if len(value) > _MAX_ELEMENTS else ''}] ({len(value):,})"
