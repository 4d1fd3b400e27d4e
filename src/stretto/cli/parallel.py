"""`stretto parallel`: several tokens at one position, shown in brackets as they come."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.first_run import default_model
from stretto.cli.generation import note, open_llm, printable, wants_stats
from stretto.cli.options import model_names
from stretto.cli.output import console, print_json
from stretto.cli.prompts import model_and_prompt, prompt_text
from stretto.options.generating import PARALLEL
from stretto.options.loading import MACHINE


@o.flags("parallel", max_tokens=0)
def parallel(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] PROMPT",
            help="The prompt, in quotes, and a model before it; without a prompt, or with -, stdin.",
            autocompletion=model_names,
            show_default=False,
        ),
    ] = None,
    model: o.Model = None,
    paths: Annotated[
        int,
        typer.Option(
            min=0,
            max=1024,
            help="Show so many of the most probable paths at the end.",
            rich_help_panel="Parallel tokens",
        ),
    ] = 0,
    explore: Annotated[
        bool, typer.Option("--explore", help="Walk through the alternatives with the arrow keys.")
    ] = False,
    show_probs: Annotated[bool, typer.Option("--show-probs", help="Show the probabilities in sets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object, at the end.")] = False,
    stats: o.Stats = None,
    **options: Any,
) -> None:
    """Continue a prompt, and keep every probable token: sat[ on/ under/ beside] the.

    One argument is the prompt, unless it is the name or path of a model; two are model and prompt.
    """

    model, prompt = model_and_prompt(words or [], model)
    text = prompt_text(prompt)
    model = model or default_model()
    with open_llm(model, **o.select_given(options, MACHINE)) as llm:
        if explore:
            _explore(llm, text, options["max_width"])
            return
        stream = llm.parallel(text, stream=True, **o.select_given(options, PARALLEL))
        if as_json:
            print_json({**stream.result.to_dict(), "statistics": statistics(stream.result), "model": model})
            return
        _show(stream, show_probs)
        if paths:
            for path in stream.result.paths(paths):
                typer.echo(f"{path.logprob:9.2f}  {printable(path.text)}")
        if wants_stats(stats):
            note(_sentence(statistics(stream.result)))


def _explore(llm: Any, prompt: str, width: int) -> None:
    """Walk through the tree of alternatives, then print the text that was reached."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("it needs a terminal; leave it out in a pipe", param_hint="--explore")
    from stretto.cli.exploring import Tree, explore

    typer.echo(prompt + printable(explore(Tree(llm, prompt, width))))


def _show(stream: Any, probabilities: bool) -> None:
    """Write the steps as they come: in a terminal the sets are coloured."""
    from rich.text import Text

    screen, last = console(), "\n"
    try:
        for step in stream:
            if step.width == 1 or step.cut:
                shown = printable(step.brackets)
                sys.stdout.write(shown)
                last = shown or last
            else:
                last = "]"
                members = Text().append("[", style="dim")
                for i, member in enumerate(step.members):
                    members.append("/" if i else "", style="dim")
                    members.append(printable(member.brackets), style="bold green" if i == 0 else "yellow")
                    members.append(f" {member.probability:.2f}" if probabilities else "", style="dim")
                members.append("]", style="dim")
                if screen.is_terminal:
                    screen.print(members, end="", soft_wrap=True)
                else:
                    sys.stdout.write(members.plain)
            sys.stdout.flush()
    finally:
        if not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def statistics(run: Any) -> dict[str, Any]:
    """The run's width and speed."""
    return {
        "steps": len(run.steps),
        "mean_width": run.mean_width,
        "parallel_share": run.parallel_share,
        "cells_freed": run.cells_freed,
        "tokens_per_second": run.timings.tokens_per_second,
        "repeats_from": None if run.loop is None else run.loop.start,
    }


def _sentence(facts: dict[str, Any]) -> str:
    phrases = [
        f"{facts['steps']:,} steps",
        f"mean width {facts['mean_width']:.2f}",
        f"{facts['parallel_share']:.0%} of the steps parallel",
        f"{facts['cells_freed']} cells saved by pruning",
        f"{facts['tokens_per_second']:.1f} tok/s",
    ]
    if facts["repeats_from"] is not None:
        phrases.append(f"repeats itself from step {facts['repeats_from']} on")
    return ", ".join(phrases)
