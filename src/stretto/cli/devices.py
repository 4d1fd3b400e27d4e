"""`stretto devices`: this machine's hardware and its speed, and what can run a model here."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli import options as o
from stretto.cli.options import model_names
from stretto.cli.output import clean, console, print_json, size, table
from stretto.cli.prompts import model_and_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from stretto.hardware import Cache, Gpu, Hardware, Rate
    from stretto.loading.choose import Route


@o.flags("devices")
def devices(
    name: o.Name = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="Also show what can run this model, and how fast.",
            autocompletion=model_names,
            callback=o.resolve_alias,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object, sizes in bytes.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the speeds again.")] = False,
    **options: Any,
) -> None:
    """Show the processor, its cores, memory and speed, the kernels in use, and the GPUs."""

    from stretto import hardware
    from stretto.loading.open import survey

    if name is not None:
        model, _ = model_and_files((name,), model, "devices [MODEL]")
    errors = console(stderr=True)
    with errors.status("measuring, a second or two") if sys.stderr.isatty() else nullcontext():
        machine = hardware.probe(refresh=refresh)
        route = survey(model, threads=options["threads"], refresh=refresh) if model else None
    if as_json:
        print_json(asdict(machine) | ({} if route is None else {"route": route.as_data()}))
        return
    listing = table("", "this machine")
    for name, value in _rows(machine):
        listing.add_row(name, clean(value))
    console().print(listing)
    if route is not None:
        console().print(_options(route))


def _options(route: Route) -> Table:
    """What can run a model: decode speed by a short probe, and the distance from the most exact one."""

    listing = table("backend", "device", "tokens/s", "distance", "", right=("tokens/s", "distance"))
    for option in (route.chosen, *route.others):
        speed = "" if option.tokens_per_second is None else f"{option.tokens_per_second:,.1f}"
        far = "" if option.distance is None else f"{option.distance:.4f}"
        listing.add_row(option.backend, option.device, speed, far, clean(f"{option.state}: {option.reason}"))
    return listing


def _rows(machine: Hardware) -> Iterator[tuple[str, str]]:
    from stretto.loading.choose import find_missing

    yield "cpu", f"{machine.cpu} ({machine.architecture})"
    yield "cores", _cores(machine)
    yield "instruction sets", ", ".join(machine.instruction_sets) or "none beyond the basic ones"
    yield "kernels", _kernels(machine)
    yield "caches", ", ".join(map(_cache, machine.caches)) or "not known"
    yield "memory", _memory(machine.memory_total, machine.memory_free)
    if machine.bandwidth:
        yield "read", _read(machine.bandwidth.memory, machine.bandwidth.memory_nbytes)
        yield "", _read(machine.bandwidth.model, machine.bandwidth.model_nbytes)
    else:
        yield "read", "not measured"
    if peak := machine.integer_peak:
        figures = f"{peak.rate.one:,.0f} GMAC/s one core, {peak.rate.all:,.0f} GMAC/s all"
        yield "int8", f"{figures}, by {peak.instruction}"
    else:
        yield "int8", "not measured"
    if machine.was_busy:
        yield (
            "",
            "measured while others used the processor, so it may be faster; --refresh measures again",
        )
    for gpu in machine.gpus:
        yield "gpu", _gpu(gpu)
    if not machine.gpus:
        yield "gpu", "none found"
    elif reason := find_missing("cuda"):
        yield "cuda", f"not usable here: {reason}"


def _kernels(machine: Hardware) -> str:
    others = [name for name in machine.kernel_sets if name != machine.kernels]
    return f"{machine.kernels} (STRETTO_KERNELS may be {', '.join(others)})" if others else machine.kernels


def _cores(machine: Hardware) -> str:
    physical = f"{machine.cores_physical} cores, " if machine.cores_physical else ""
    quota = f", limited to the time of {machine.cpu_quota:g}" if machine.cpu_quota else ""
    return f"{machine.cores_usable} usable (the machine: {physical}{machine.cores_logical} threads{quota})"


def _cache(cache: Cache) -> str:
    """In units of 1024, as caches are sold."""
    kibibytes = cache.nbytes / 1024
    amount = f"{kibibytes:g} KiB" if kibibytes < 1024 else f"{kibibytes / 1024:g} MiB"
    return f"{cache.name} {cache.count} × {amount}"


def _read(rate: Rate, nbytes: int) -> str:
    return f"{rate.one:.1f} GB/s one core, {rate.all:.1f} GB/s all, from {size(nbytes)}"


def _memory(total: int | None, free: int | None) -> str:
    words = [size(total)] if total is not None else []
    words += [f"{size(free)} free"] if free is not None else []
    return ", ".join(words) or "not known"


def _gpu(gpu: Gpu) -> str:
    return f"{gpu.name}, {_memory(gpu.memory_total, gpu.memory_free)}, driver {gpu.driver}"
