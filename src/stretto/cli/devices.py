"""`stretto devices`: what this machine has, and how fast it is."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stretto.hardware import Cache, Gpu, Hardware, Rate


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object, sizes in bytes.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the speeds again.")] = False,
) -> None:
    """Show the processor, its cores, memory and speed, the kernels in use, and the GPUs."""
    from dataclasses import asdict

    from stretto import hardware
    from stretto.cli.output import clean, console, print_json, table

    errors = console(stderr=True)
    with errors.status("measuring, about a second") if sys.stderr.isatty() else nullcontext():
        found = hardware.probe(refresh=refresh)
    if as_json:
        print_json(asdict(found))
        return
    listing = table("", "this machine")
    for name, value in _rows(found):
        listing.add_row(name, clean(value))
    console().print(listing)


def _rows(found: Hardware) -> Iterator[tuple[str, str]]:
    yield "cpu", f"{found.cpu} ({found.architecture})"
    yield "cores", _cores(found)
    yield "instruction sets", ", ".join(found.instruction_sets) or "none beyond the basic ones"
    yield "kernels", _kernels(found)
    yield "caches", ", ".join(map(_cache, found.caches)) or "not known"
    yield "memory", _memory(found.memory_total, found.memory_free)
    if found.bandwidth:
        yield "read", _read(found.bandwidth.memory, found.bandwidth.memory_nbytes)
        yield "", _read(found.bandwidth.model, found.bandwidth.model_nbytes)
    else:
        yield "read", "not measured"
    if peak := found.integer_peak:
        figures = f"{peak.rate.one:,.0f} GMAC/s one core, {peak.rate.all:,.0f} GMAC/s all"
        yield "int8", f"{figures}, by {peak.instruction}"
    else:
        yield "int8", "not measured"
    for gpu in found.gpus:
        yield "gpu", _gpu(gpu)
    if not found.gpus:
        yield "gpu", "none found"


def _kernels(found: Hardware) -> str:
    others = [name for name in found.kernel_sets if name != found.kernels]
    return f"{found.kernels} (STRETTO_KERNELS may be {', '.join(others)})" if others else found.kernels


def _cores(found: Hardware) -> str:
    physical = f"{found.cores_physical} cores, " if found.cores_physical else ""
    quota = f", limited to the time of {found.cpu_quota:g}" if found.cpu_quota else ""
    return f"{found.cores_usable} usable (the machine: {physical}{found.cores_logical} threads{quota})"


def _cache(cache: Cache) -> str:
    """In units of 1024, as caches are sold."""
    kibibytes = cache.nbytes / 1024
    amount = f"{kibibytes:g} KiB" if kibibytes < 1024 else f"{kibibytes / 1024:g} MiB"
    return f"{cache.name} {cache.count} × {amount}"


def _read(rate: Rate, nbytes: int) -> str:
    from stretto.cli.output import size

    return f"{rate.one:.1f} GB/s one core, {rate.all:.1f} GB/s all, from {size(nbytes)}"


def _memory(total: int | None, free: int | None) -> str:
    from stretto.cli.output import size

    words = [size(total)] if total is not None else []
    words += [f"{size(free)} free"] if free is not None else []
    return ", ".join(words) or "not known"


def _gpu(gpu: Gpu) -> str:
    return f"{gpu.name}, {_memory(gpu.memory_total, gpu.memory_free)}, driver {gpu.driver}"
