"""`stretto quantize`: a GGUF file in another format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.options import aliased
from stretto.errors import InvalidRequest

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
        typer.Argument(metavar="IN", help="A GGUF file, or a model that is here.", callback=aliased),
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
    from stretto.cli.output import progress_bar
    from stretto.quantize import quantize_model
    from stretto.weights import hub

    if (mix is None) == (type_ is None):
        raise InvalidRequest("give one MIX: stretto quantize IN OUT.gguf q4_k_m (stretto docs mixes)")
    with progress_bar() as bar:
        task = bar.add_task(target.name, total=None)
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
            progress=lambda done, total: bar.update(task, completed=done, total=total),
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
    from stretto.cli.output import clean, console, size

    formats = ", ".join(f"{count} {name}" for name, count in sorted(written.formats.items()))
    line = f"{written.path}: {size(written.nbytes)} from {size(written.source_bytes)}; tensors: {formats}"
    console().print(clean(line), soft_wrap=True)
