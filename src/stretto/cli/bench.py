"""`stretto bench`: the speed of a model on this machine, and its share of the machine's limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import config_file
from stretto.cli import options as o
from stretto.cli.commands import Command, Group, refuse_options
from stretto.cli.first_run import default_model
from stretto.cli.generation import note
from stretto.cli.output import clean, console, print_json, size, table
from stretto.cli.pull import pull_missing
from stretto.errors import StrettoError
from stretto.options.loading import MACHINE

if TYPE_CHECKING:
    from stretto.bench import Loop, Machine, Plan, Row
    from stretto.llm import LLM


class BenchGroup(Group):
    """Takes a model as first argument, where a command of its own would stand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read `bench MODEL …` as `bench --model MODEL …`."""
        is_model = args and not args[0].startswith("-") and args[0] not in self.commands
        return super().parse_args(ctx, ["--model", *args] if is_model else args)


bench = typer.Typer(cls=BenchGroup, invoke_without_command=True)

USUAL_BANDWIDTH = 10.0  # GB/s, where none was measured

Json = Annotated[bool, typer.Option("--json", help="Print JSON, every sample in it.")]
Tokens = Annotated[int, typer.Option(help="How many tokens to decode.")]
Rounds = Annotated[int, typer.Option(help="How often; the median counts.")]


@bench.callback()
@o.flags("bench", cells=None)
def speed(
    context: typer.Context,
    model: o.Model = None,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt that is timed.")] = 512,
    tokens: Tokens = 128,
    depth: Annotated[int, typer.Option(help="Also decode at this depth, in tokens; 0: do not.")] = 2048,
    sequences: Annotated[int, typer.Option(help="Also decode so many together; 0: do not.")] = 16,
    rounds: Rounds = 5,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Measure prefill and decoding, single, at depth and batched, next to the machine's limits.

    Tokens a second, sampling included: greedy, or with the default sampler. The model may also be the first
    argument: stretto bench MODEL.
    """
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    from stretto import bench as benchmarks

    model = model or default_model()
    plan = benchmarks.Plan(prompt, tokens, depth, sequences, rounds)
    pull_missing(model, "generate")
    begin(model, _tests(plan), _passes(plan))
    machine_options = {"cells": plan.cells, **o.select_given(options, MACHINE)}
    threads, kv = options["threads"], options["kv"]
    with notes() as note, _open_model(note, model, machine_options) as llm:
        cost = benchmarks.file_cost(model, llm)
        note("measuring the machine")
        machine = benchmarks.measure_machine(llm, threads, cost.weight_bytes)
        rows = benchmarks.speed(llm, plan, note)
        again = benchmarks.measure_machine(llm, threads, cost.weight_bytes)
        if machine and again:  # before and after: other load can only have made it slower
            machine = machine.best(again)
            benchmarks.set_limits(rows, llm, cost, machine, kv)
        setup = {"backend": llm.backend.name, "device": _device(llm), "kv": kv, "precision": llm.precision}
    if as_json:
        print_json(_document(model, setup, machine, cost.weight_bytes, rows))
    else:
        _print(model, setup, machine, rows)


@bench.command(cls=Command)
@o.flags("loops")
def loops(
    models: Annotated[list[str] | None, typer.Argument(help="Models (default: smollm2 gemma3-270m).")] = None,
    tokens: Tokens = 128,
    rounds: Rounds = 5,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Compare llm.stream, seq.step() and the fused loop, and show where a step's time goes."""
    from stretto import bench as benchmarks

    documents = []
    machine = {**o.select_given(options, MACHINE), "cells": tokens + 16}
    for name in models or ("smollm2", "gemma3-270m"):
        model = config_file.read().resolve(name)
        pull_missing(model, "generate")
        begin(model, f"the loops over {tokens} tokens, {rounds} rounds", 8 * rounds * tokens)
        with notes() as note, _open_model(note, model, machine) as llm:
            loops = benchmarks.loops(llm, tokens=tokens, rounds=rounds, note=note)
            n_vocab = llm.spec.n_vocab
        if as_json:
            documents.append({"model": model, "n_vocab": n_vocab, "loops": [_loop(each) for each in loops]})
        else:
            _print_loops(model, n_vocab, loops)
    if as_json:
        print_json(documents)


def begin(model: str, tests: str, n_passes: float) -> None:
    """Say on stderr what is measured and about how long it takes, before anything is."""
    from stretto import hardware
    from stretto.weights import hub

    try:
        path = hub.resolve(model, pull=False)
    except StrettoError:  # a server's name for it
        path = Path(model)
    files = path.rglob("*") if path.is_dir() else [path]
    nbytes = sum(one.stat().st_size for one in files if one.is_file())
    known = hardware.probe(measure=False).bandwidth
    # Each pass reads all weights once; loading and measuring the machine come on top.
    seconds = 5 + n_passes * nbytes / (known.memory.all if known else USUAL_BANDWIDTH) / 1e9
    duration = f"; about {about(seconds)}" if nbytes else ""
    note(f"measuring {clean(model)}: {tests}{duration}")


def about(seconds: float) -> str:
    """A duration in round figures.

    >>> about(12), about(61), about(700)
    ('20 seconds', '2 minutes', '12 minutes')
    """
    if seconds <= 60:
        return f"{10 * math.ceil(seconds / 10)} seconds"
    return f"{math.ceil(seconds / 60)} minutes"


def _tests(plan: Plan) -> str:
    """The tests of a plan, in words."""
    tests = [f"prefill of {plan.prompt:,} tokens", f"decoding {plan.tokens:,}"]
    tests += [f"decoding behind {plan.depth:,}"] if plan.depth else []
    tests += [f"{plan.sequences} texts at once"] if plan.sequences > 1 else []
    return f"{', '.join(tests)}; {plan.rounds} round{'' if plan.rounds == 1 else 's'}"


def _passes(plan: Plan) -> float:
    """How many passes over the weights the tests take, roughly; a wide one counts as two."""
    decoding = plan.tokens * (2 + bool(plan.depth) + 4 * (plan.sequences > 1))
    return plan.rounds * (decoding + plan.prompt / 16) + plan.depth / 16


@contextmanager
def notes() -> Iterator[Callable[[str], None]]:
    """A function that shows progress notes on stderr, if that is a terminal."""
    from rich.text import Text

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda text: None
        return
    with screen.status("") as status:
        yield lambda text: status.update(Text(clean(text)))


def _open_model(note: Callable[[str], None], model: str, options: dict[str, Any]) -> LLM:
    import stretto

    note(f"loading {model}")
    return stretto.load(model, **options)


def _device(llm: LLM) -> str:
    return llm.route.device if llm.route else "cpu"


def _document(
    model: str, setup: dict[str, str], machine: Machine | None, nbytes: int, rows: list[Row]
) -> dict[str, Any]:
    return {
        "model": model,
        "weight_bytes": nbytes,
        **setup,
        "machine": asdict(machine) if machine else None,
        "rows": [{**asdict(row), "median": row.median, "share": row.share} for row in rows],
    }


def _print(model: str, setup: dict[str, str], machine: Machine | None, rows: list[Row]) -> None:
    listing = table("test", "sampling", "call", "tok/s", "spread", "limit", "share", right=_FIGURES)
    for row in rows:
        spread = f"{min(row.samples):.1f} – {max(row.samples):.1f}"
        bound = (f"{row.limit.tokens_per_second:,.0f} {row.limit.bound}",) if row.limit else ("–",)
        share = f"{row.share:.0%}" if row.share is not None else "–"
        listing.add_row(row.test, row.sampling, row.call, f"{row.median:.1f}", spread, *bound, share)
    screen = console()
    screen.print(
        f"{clean(model)}, backend {setup['backend']} on {setup['device']}, K/V {setup['kv']}, "
        f"{setup['precision']} precision"
    )
    if machine:
        threads = f"{machine.threads} threads, " if machine.threads else ""
        screen.print(
            f"{clean(machine.cpu)}, {threads}kernels {machine.kernels}: "
            f"{machine.bandwidth:.1f} GB/s from {size(machine.bandwidth_nbytes)}, "
            f"{machine.integer_peak:,.0f} GMAC/s by {machine.instruction}"
        )
    screen.print(listing)


_FIGURES = ("tok/s", "spread", "limit", "share")


def _loop(each: Loop) -> dict[str, Any]:
    figures = {"median": each.median, "python": each.python, "sampling_share": each.sampling_share}
    return {**asdict(each), **figures}


def _print_loops(model: str, n_vocab: int, loops: list[Loop]) -> None:
    parts = tuple(loops[0].parts)
    figures = ("tok/s", *parts, "sampling / forward")
    listing = table("loop", "sampling", *figures, right=figures)
    for each in loops:
        times = [f"{each.part(name):,.1f}" if each.parts else "–" for name in parts]
        share = f"{each.sampling_share:.2%}" if each.parts else "–"
        listing.add_row(each.loop, each.sampling, f"{each.median:.1f}", *times, share)
    screen = console()
    screen.print(f"{clean(model)}, {n_vocab:,} tokens in the vocabulary; parts in µs a step")
    screen.print(listing)
