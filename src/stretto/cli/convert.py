"""`stretto convert`: a Hugging Face folder as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli.quantize import Imatrix, Pure, TensorTypes, Threads, read_types, show


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
    from stretto.cli.output import progress_bar
    from stretto.quantize import convert_folder

    with progress_bar() as bar:
        task = bar.add_task(target.name, total=None)
        written = convert_folder(
            folder,
            target,
            mix,
            imatrix=imatrix,
            tensor_types=read_types(tensor_type),
            pure=pure,
            threads=threads,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    show(written)
