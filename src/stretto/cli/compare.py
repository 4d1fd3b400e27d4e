"""`stretto compare`: the same prompts on every backend here, on other packages and on servers, by turns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.bench import begin, notes
from stretto.cli.generation import note as say
from stretto.cli.output import clean, console, print_json, table
from stretto.cli.prompts import model_and_files

if TYPE_CHECKING:
    from stretto.bench.comparing import Comparison


@o.flags("compare")
def compare(
    name: o.Name = None,
    model: o.Model = None,
    peer_python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="A Python that has llama-cpp-python, transformers or onnxruntime-genai; may be repeated.",
        ),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL[#MODEL]",
            help="A running Ollama, or any OpenAI-compatible server, with the same model; may be repeated.",
        ),
    ] = None,
    url_key: Annotated[
        str, typer.Option(metavar="KEY", envvar="STRETTO_COMPARE_KEY", help="The API key of the servers.")
    ] = "",
    backend: Annotated[
        list[str] | None, typer.Option(help="Only this backend of Stretto; may be repeated.")
    ] = None,
    onnx: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The same model exported to ONNX.")
    ] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt that is timed.")] = 512,
    tokens: Annotated[int, typer.Option(help="Tokens to decode.")] = 64,
    sequences: Annotated[int, typer.Option(help="Texts of the batch; 0: no batch.")] = 8,
    rounds: Annotated[int, typer.Option(help="How often; the median counts.")] = 3,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, every sample in it.")] = False,
    **options: Any,
) -> None:
    """Compare engines on one model: load, first token, prefill, decode, batch, memory, same tokens.

    Each runs alone, in a process of its own, by turns; greedy, with the same prompts and threads.
    """
    from stretto.bench import comparing

    model, _ = model_and_files((name,), model, "compare [MODEL]")
    plan = comparing.ComparePlan(prompt, tokens, sequences, rounds, options["threads"] or 0)
    batch = f", {sequences} texts at once" if sequences else ""
    say(
        f"comparing engines on {clean(model)}: load, prefill of {prompt:,} tokens, decoding {tokens:,}{batch}"
    )
    with notes() as note:
        note("looking for engines")
        found = comparing.find(
            model,
            backends=backend or (),
            peer_pythons=peer_python or (),
            urls=url or (),
            onnx=onnx,
            url_key=url_key,
        )
        if names := [one.name for one in found.contestants]:
            passes = len(names) * rounds * (prompt / 16 + 2 * tokens + 2 * tokens * bool(sequences))
            begin(model, f"{rounds} rounds of {', '.join(map(clean, names))}", passes)
        result = comparing.compare(model, found, plan, note)
    if html is not None:
        html.write_text(comparing.page(result), encoding="utf-8")
    if as_json:
        print_json(result.as_data())
    else:
        _print(result)


def _print(result: Comparison) -> None:
    from stretto.bench.comparing import MEASURES
    from stretto.bench.comparing.results import agreement, conditions, number, threads

    units = {name: f"{name} ({unit})" for name, (unit, _) in MEASURES.items()}
    listing = table("", *units.values(), "same tokens", right=(*units.values(), "same tokens"))
    for each in result.standings:
        cells = []
        for name in MEASURES:
            figure = each.figures.get(name)
            if figure is None:
                cells.append("–")
            else:
                cells.append(f"{number(figure.median)}\n{number(figure.low)}–{number(figure.high)}")
        listing.add_row(clean(each.name), *cells, agreement(each))
    screen = console()
    screen.print(clean(conditions(result)))
    screen.print(listing)
    for each in result.standings:
        words = ", ".join(filter(None, (each.version, threads(each), each.notes)))
        screen.print(clean(f"{each.name}: {words}"))
    for skipped in result.skipped:
        screen.print(clean(f"{skipped.name} did not take part: {skipped.reason}"))
