"""`stretto imatrix`: how strong the inputs of a model's matrices are on a text, for `stretto quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def imatrix(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A GGUF file, a folder, or a name; best in F16.")
    ],
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="A text like those the model is for.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")],
    chunk: Annotated[int, typer.Option(min=8, max=1 << 20, help="Tokens that are read together.")] = 512,
    chunks: Annotated[
        int | None, typer.Option(min=1, help="At most so many chunks (default: the whole text).")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="How many threads (default: as suits the machine).")
    ] = None,
) -> None:
    """Measure an importance matrix: run a model over a text, and write the mean squares of inputs.

    The file has llama.cpp's form, and `stretto quantize --imatrix FILE` takes it, or one of llama-imatrix.
    """
    from stretto.cli.output import clean, console, progress_bar
    from stretto.errors import InvalidRequest
    from stretto.llm import load
    from stretto.quantize import collect_importance
    from stretto.weights import hub

    try:
        content = text.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{text} is not UTF-8: {error}", param="text", value=str(text)) from None
    path = hub.resolve(model, pull=False)
    with (
        load(path, backend="native", threads=threads, cells=chunk + 64, prefix_cache=False) as llm,
        progress_bar() as bar,
    ):
        task = bar.add_task(out.name, total=None)
        matrix = collect_importance(
            llm,
            path,
            content,
            dataset=text.name,
            chunk_tokens=chunk,
            chunks=chunks,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    matrix.write(out)
    line = f"{out}: {len(matrix.inputs)} tensors, {matrix.chunks} chunks of {matrix.chunk_tokens} tokens"
    console().print(clean(line), soft_wrap=True)
