"""`stretto rerank`: documents by how well they answer a query."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.cli.task_files import AsJson, Device, Threads, model_option, opened, texts_of


def rerank(
    query: Annotated[str, typer.Argument(help="What is asked.")],
    documents: Annotated[
        list[str] | None, typer.Argument(help="Texts; without them, lines of stdin.")
    ] = None,
    model: Annotated[str, model_option("A model that ranks or embeds.")] = "minilm",
    top: Annotated[int | None, typer.Option(min=1, help="Only so many of the best.")] = None,
    as_json: AsJson = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Sort texts by how well they answer a query, best first."""
    from stretto.cli.output import clean, console, print_json, table

    given = texts_of(documents or [])
    with opened(model, device, threads, verb="rerank") as llm:
        ranking = llm.rerank(query, given, top=top)
    if as_json:
        print_json(ranking.to_dict())
        return
    made = table("score", "number", "text", right=("score", "number"))
    for item in ranking:
        made.add_row(f"{item.score:.4f}", str(item.index), clean(item.text))
    console().print(made)
