"""`stretto eval`: multiple choice by log-likelihood."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stretto.cli import options as o
from stretto.cli.perplexity import AsJson


def eval_(
    name: o.Name = None,
    task: Annotated[
        str | None, typer.Argument(metavar="TASK.jsonl", help='Lines of {"context", "choices", "answer"}.')
    ] = None,
    model: o.Model = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first questions.")] = None,
    delimiter: Annotated[str, typer.Option(help="What stands between a context and a choice.")] = " ",
    cells: Annotated[int, typer.Option(min=64, max=1 << 24, help="The size of the cache in tokens.")] = 8192,
    backend: o.Backend = "auto",
    threads: o.Threads = None,
    as_json: AsJson = False,
) -> None:
    """Answer multiple-choice questions: the choice with the highest log-likelihood behind the context.

    The normalised accuracy divides by the number of characters of a choice. Intervals are Wilson's, of 95 %.
    """
    from stretto import load
    from stretto.cli.output import console, print_json, progress_bar
    from stretto.cli.perplexity import check_generates, figure
    from stretto.cli.prompts import model_and_files
    from stretto.cli.pull import pull_missing
    from stretto.evaluation import multiple_choice, read_questions

    model, (file,) = model_and_files((name, task), model, "eval [MODEL] TASK.jsonl")
    questions = read_questions(Path(file), limit)
    pull_missing(model)
    with load(model, backend=backend, threads=threads, cells=cells) as llm, progress_bar() as bar:
        check_generates(llm, model)
        line = bar.add_task(Path(file).name, total=len(questions))
        report = multiple_choice(
            llm, questions, delimiter=delimiter, progress=lambda done: bar.update(line, completed=done)
        )
    if as_json:
        print_json({"model": model, "task": file, **report.as_dict()})
        return
    out = console()
    out.print(f"{len(questions):,} questions", soft_wrap=True)
    out.print(f"accuracy             {figure(report.accuracy)}", soft_wrap=True)
    out.print(f"normalised accuracy  {figure(report.accuracy_norm)}", soft_wrap=True)
