"""`stretto imatrix`: how strong the inputs of a model's matrices are on a text, for `stretto quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options as o


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
    threads: o.Threads = None,
) -> None:
    """Measure an importance matrix: run a model over a text, and write the mean squares of inputs.

    The model is best in F16. The file has llama.cpp's form, and `stretto quantize --imatrix FILE` takes it,
    or one of llama-imatrix.
    """
    from stretto import load
    from stretto.cli.output import clean, console, progress_bar
    from stretto.cli.prompts import model_and_files
    from stretto.errors import InvalidRequest
    from stretto.quantize import collect_importance
    from stretto.weights import hub

    usage = "imatrix MODEL TEXT"
    model, (file,) = model_and_files((name, text), model, usage, has_default=False)
    try:
        content = Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not UTF-8: {error}", param="text", value=file) from None
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
            dataset=Path(file).name,
            chunk_tokens=chunk,
            chunks=chunks,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    matrix.write(out)
    line = f"{out}: {len(matrix.inputs)} tensors, {matrix.chunks} chunks of {matrix.chunk_tokens} tokens"
    console().print(clean(line), soft_wrap=True)
