"""`stretto embed`: texts as vectors."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.cli.task_files import AsJson, Device, Threads, model_option, opened, texts_of


def embed(
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without them, lines of stdin.")] = None,
    model: Annotated[str, model_option("A model that embeds.")] = "minilm",
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE.npy", help="Write the vectors to a NumPy file.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize/--raw", help="Make their length 1.")] = True,
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Turn texts into vectors, one line of numbers each."""
    import numpy as np

    from stretto.cli.output import print_json
    from stretto.weights.files import atomic_write

    given = texts_of(texts or [])
    with opened(model, device, threads, verb="embed") as llm:
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
