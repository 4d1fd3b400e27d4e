"""`stretto quantize`: a GGUF file in another format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stretto.cli import options as o
from stretto.cli.options import read_scaled, resolve_alias
from stretto.cli.output import clean, console, progress, size
from stretto.cli.prompts import model_and_files
from stretto.errors import InvalidRequest
from stretto.weights import hub

if TYPE_CHECKING:
    from stretto.quantize import Written


Imatrix = Annotated[
    Path | None,
    typer.Option(
        "--imatrix", metavar="FILE", help="An importance matrix, from `stretto imatrix` or llama-imatrix."
    ),
]
TensorTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--tensor-type",
        metavar="PATTERN=FORMAT",
        help="The format of tensors whose names match a regular expression; may be repeated.",
    ),
]
Pure = Annotated[bool, typer.Option("--pure", help="The same format for all matrices.")]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="How many threads (default: all cores).")]


def quantize(
    source: Annotated[
        str,
        typer.Argument(metavar="IN", help="A GGUF file, or a model that is here.", callback=resolve_alias),
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT.gguf", help="The file to write.")],
    mix: Annotated[
        str | None, typer.Argument(metavar="MIX", help="q4_k_m, q6_k, q8_0, … (stretto docs mixes).")
    ] = None,
    type_: Annotated[
        str | None, typer.Option("--type", metavar="MIX", help="The same, as an option.")
    ] = None,
    imatrix: Imatrix = None,
    tensor_type: TensorTypes = None,
    pure: Pure = False,
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Quantise tensors that are quantised already.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    threads: Threads = None,
) -> None:
    """Write a GGUF file in another format, with llama.cpp's mixes.

    The file appears when all of it is written; an interrupted command leaves nothing behind.
    """
    from stretto.quantize import quantize_model

    if (mix is None) == (type_ is None):
        raise InvalidRequest("give one MIX: stretto quantize IN OUT.gguf q4_k_m (stretto docs mixes)")
    with progress(target.name) as show_progress:
        written = quantize_model(
            hub.resolve(source, pull=False),
            target,
            mix or type_ or "",
            imatrix=imatrix,
            tensor_types=read_types(tensor_type),
            pure=pure,
            allow_requantize=allow_requantize,
            replace=force,
            threads=threads,
            progress=show_progress,
        )
    show(written)


def read_types(given: list[str] | None) -> list[tuple[str, str]]:
    """Pairs of a pattern and a format.

    >>> read_types(["ffn_down=q6_k"])
    [('ffn_down', 'q6_k')]
    """
    pairs = []
    for text in given or []:
        pattern, equals, name = text.rpartition("=")
        if not equals or not pattern or not name:
            raise typer.BadParameter(f"{text!r} is not PATTERN=FORMAT, such as ffn_down=q6_k")
        pairs.append((pattern, name))
    return pairs


def show(written: Written) -> None:
    """Print what was written."""

    formats = ", ".join(f"{count} {name}" for name, count in sorted(written.formats.items()))
    line = f"{written.path}: {size(written.nbytes)} from {size(written.source_bytes)}; tensors: {formats}"
    console().print(clean(line), soft_wrap=True)


# `stretto convert`: a Hugging Face folder as a GGUF file.


def convert(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A Hugging Face folder.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.gguf", help="The file to write.")],
    mix: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="MIX", help="f16, bf16, f32, q4_k_m, … (default: as the folder, f16 or bf16)."
        ),
    ] = None,
    imatrix: Imatrix = None,
    tensor_type: TensorTypes = None,
    pure: Pure = False,
    threads: Threads = None,
) -> None:
    """Write a Hugging Face folder as a GGUF file that llama.cpp and others load.

    The file appears when all of it is written; an interrupted command leaves nothing behind.
    """
    from stretto.quantize import convert_folder

    with progress(target.name) as show_progress:
        written = convert_folder(
            folder,
            target,
            mix,
            imatrix=imatrix,
            tensor_types=read_types(tensor_type),
            pure=pure,
            threads=threads,
            progress=show_progress,
        )
    show(written)


# `stretto imatrix`: how strong the inputs of a model's matrices are on a text, for `stretto quantize`.


@o.flags("imatrix")
def imatrix(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")],
    name: o.Name = None,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="A file of text like that the model is for.")
    ] = None,
    model: o.NeededModel = None,
    chunk: Annotated[int, typer.Option(min=8, max=1 << 20, help="Tokens that are read together.")] = 512,
    chunks: Annotated[
        int | None, typer.Option(min=1, help="At most so many chunks (default: the whole text).")
    ] = None,
    **options: Any,
) -> None:
    """Measure an importance matrix: run a model over a text, and write the mean squares of inputs.

    The model is best in F16. The file has llama.cpp's form, and `stretto quantize --imatrix FILE` takes it,
    or one of llama-imatrix.
    """
    from stretto import load
    from stretto.quantize import collect_importance

    usage = "imatrix MODEL TEXT"
    model, (file,) = model_and_files((name, text), model, usage, has_default=False)
    try:
        content = Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8: {error}", param="text", value=file) from None
    path = hub.resolve(model, pull=False)
    with (
        load(path, backend="native", threads=options["threads"], cells=chunk + 64, prefix_cache=False) as llm,
        progress(out.name) as show_progress,
    ):
        matrix = collect_importance(
            llm,
            path,
            content,
            dataset=Path(file).name,
            chunk_tokens=chunk,
            chunks=chunks,
            progress=show_progress,
        )
    matrix.write(out)
    line = f"{out}: {len(matrix.inputs)} tensors, {matrix.chunks} chunks of {matrix.chunk_tokens} tokens"
    console().print(clean(line), soft_wrap=True)


# `stretto merge`: a model with an adapter, as one file.


def merge(
    name: o.Name = None,
    adapter: Annotated[
        str | None,
        typer.Argument(
            metavar="ADAPTER", help="A LoRA adapter: a GGUF file or a PEFT folder; PATH=SCALE scales it."
        ),
    ] = None,
    out: Annotated[str | None, typer.Argument(metavar="OUT", help="The GGUF file to write.")] = None,
    model: o.NeededModel = None,
    dtype: Annotated[
        Literal["auto", "f16", "f32"],
        typer.Option(
            "--type", help="Of changed matrices; auto: f32 where the model has f32 or bf16, else f16."
        ),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a model with an adapter merged into its weights.

    Matrices that the adapter changes become float16 or float32, all others stay as they are. A merge that is
    interrupted leaves nothing behind.
    """
    from stretto.models import read_spec
    from stretto.models.summary import make_target
    from stretto.weights.adapters import read_adapter
    from stretto.weights.adapters.merging import merge_adapter
    from stretto.weights.gguf import GGUF

    usage = "merge MODEL ADAPTER OUT"
    model, (adapter, target) = model_and_files((name, adapter, out), model, usage, has_default=False)
    file_out = Path(target)
    source, (path, scale) = hub.resolve(model, pull=False), read_scaled(adapter)
    if source.is_dir():
        raise InvalidRequest(f"{source} is a folder; merge takes a GGUF file")
    columns = "{task.completed}/{task.total} matrices"
    with GGUF(source) as file, progress(model, columns) as show_progress:
        lora = read_adapter(path, make_target(read_spec(file)))
        merge_adapter(file, lora, file_out, scale=scale, dtype=dtype, replace=force, progress=show_progress)
    nbytes = file_out.stat().st_size
    line = f"{file_out}: {len(lora.pairs)} matrices changed, rank {lora.rank}, {size(nbytes)}"
    console().print(clean(line), soft_wrap=True)
