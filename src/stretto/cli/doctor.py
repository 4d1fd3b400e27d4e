"""`stretto doctor`: what this machine has, what is broken, and what would make it faster."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stretto.cli.output import clean, console, print_json, size, table
from stretto.hardware.kernel_sets import NAMES, available, left_out
from stretto.hardware.limits import ROOT, text
from stretto.weights.files import hash_files

if TYPE_CHECKING:
    from stretto.hardware import Hardware
    from stretto.weights.hub import Store


EXIT_PROBLEM = 1
MARKS = {"ok": ("ok", "green"), "advice": ("could be better", "yellow"), "problem": ("broken", "bold red")}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also compare the SHA-256 of every model; reads all of them.")
    ] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the speeds again.")] = False,
) -> None:
    """Check compiler, processor, memory, GPU, extras and models; say what would make it faster.

    The exit code is 1 if something is broken, 0 otherwise: advice is no failure.
    """

    from rich.text import Text

    from stretto import hardware
    from stretto.weights.hub import Store

    errors = console(stderr=True)
    with errors.status("measuring, a second or two") if sys.stderr.isatty() else nullcontext():
        found = list(checks(hardware.probe(refresh=refresh), Store.default(), verify))
    broken = any(check.state == "problem" for check in found)
    if as_json:
        print_json({"ok": not broken, "checks": [asdict(check) for check in found]})
    else:
        listing = table("", "", "found")
        for check in found:
            word, style = MARKS[check.state]
            listing.add_row(check.name, Text(word, style=style), _cell(check.found, check.advice))
        console().print(listing)
    if broken:
        raise typer.Exit(EXIT_PROBLEM)


def _cell(found: str, advice: str) -> str:
    """What was found, and on a line of its own what to do about it."""
    return "\n".join(clean(line) for line in ((found, f"→ {advice}") if advice else (found,)))


# The checks of `stretto doctor`: what was found, whether it is fine, and what would be better.

State = Literal["ok", "advice", "problem"]

LOW_MEMORY_BYTES = 1_000_000_000
LOW_DISK_BYTES = 2_000_000_000
COMPILERS = ("c++", "g++", "clang++")
EXTRAS = {  # the name of an extra, a module of it, and what it is for
    "cuda": (("torch", "triton"), "NVIDIA GPUs"),
    "onnx": (("onnx", "onnxruntime"), "ONNX models: images, speech, classes"),
    "llamacpp": (("llama_cpp",), "architectures that only llama.cpp has"),
}


@dataclass(frozen=True)
class Check:
    """A finding; `advice` is what would mend it, or make things faster."""

    name: str
    state: State
    found: str
    advice: str = ""


def checks(machine: Hardware, store: Store, verify: bool = False) -> Iterator[Check]:
    """All checks, in the order in which they are shown."""
    yield _program()
    yield _compiler()
    yield _processor(machine)
    yield _threads(machine)
    yield from _system(machine)
    yield _memory(machine)
    yield _bandwidth(machine)
    yield _gpu(machine)
    yield from _extras()
    yield from _store(store, verify)


def _program() -> Check:
    from stretto import __version__, _native

    return Check("stretto", "ok", f"{__version__}, Python {platform.python_version()}, {_native.__file__}")


def _compiler() -> Check:
    path = next(filter(None, map(shutil.which, COMPILERS)), None)
    if path:
        return Check("compiler", "ok", path)
    return Check("compiler", "ok", "none; only a build from source needs one")


def _processor(machine: Hardware) -> Check:
    sets = ", ".join(machine.instruction_sets) or "none beyond the basic ones"
    found = f"{machine.cpu} ({machine.architecture}): {sets}; kernels: {machine.kernels}"
    best = machine.kernel_sets[0] if machine.kernel_sets else machine.kernels
    if machine.kernels != best:
        return Check("processor", "advice", found, f"unset STRETTO_KERNELS: {best} is the fastest set here")
    if faster := [name for name in left_out() if NAMES.index(name) > NAMES.index(available()[0])]:
        advice = f"this build is for another machine and lacks {faster[0]}: `make clean chat` mends it"
        return Check("processor", "advice", found, advice)
    if machine.kernels == "portable":
        return Check("processor", "advice", found, "a processor with AVX2 or NEON is several times as fast")
    return Check("processor", "ok", found)


def _threads(machine: Hardware) -> Check:
    physical = machine.cores_physical or machine.cores_logical
    found = f"{machine.cores_usable} of {physical} cores"
    if machine.cores_usable < physical:
        why = f"a quota of {machine.cpu_quota:g} processors" if machine.cpu_quota else "its CPU affinity"
        return Check("threads", "advice", found, f"this process is limited by {why}; prefill would use more")
    return Check("threads", "ok", found)


def _system(machine: Hardware) -> Iterator[Check]:
    """Settings of the system, where it has them."""

    if (pages := huge_pages()) is not None:
        advice = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        yield _setting("huge pages", pages, advice if pages == "never" else "")
    if (found := governor()) is not None:
        advice = "as root: cpupower frequency-set -g performance"
        yield _setting("frequency", found, advice if found == "powersave" else "")
    busy = busy_processors()
    if busy is not None:
        found = f"{busy:.1f} processors busy in the last minute"
        crowded = busy > max(1, machine.cores_usable) / 2
        advice = "other processes take processor time; generation slows down while they run"
        yield _setting("load", found, advice if crowded else "")


def _setting(name: str, found: str, advice: str) -> Check:
    return Check(name, "advice" if advice else "ok", found, advice)


def _memory(machine: Hardware) -> Check:
    if machine.memory_total is None or machine.memory_free is None:
        return Check("memory", "ok", "not known")
    found = f"{size(machine.memory_free)} free of {size(machine.memory_total)}"
    if machine.memory_free < LOW_MEMORY_BYTES:
        return Check("memory", "advice", found, "close something, or choose a smaller model or --kv q8")
    return Check("memory", "ok", found)


def _bandwidth(machine: Hardware) -> Check:
    """Decoding reads all weights for each token, so this bounds it."""
    if machine.bandwidth is None:
        return Check("bandwidth", "ok", "not measured")
    rate = machine.bandwidth.memory.all
    return Check("bandwidth", "ok", f"{rate:.1f} GB/s: at most {rate:.0f} tokens/s from a model of 1 GB")


def _gpu(machine: Hardware) -> Check:
    from stretto.loading.choose import find_missing

    if not machine.gpus:
        return Check("gpu", "ok", "none found")
    found = ", ".join(gpu.name for gpu in machine.gpus)
    if reason := find_missing("cuda"):
        return Check("gpu", "advice", found, f"not usable yet: {reason}")
    return Check("gpu", "ok", found)


def _extras() -> Iterator[Check]:
    for name, (modules, purpose) in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if name == "cuda" and sys.platform != "linux":
            continue
        if not missing:
            yield Check(f"extra {name}", "ok", "installed")
        else:
            remedy = f"for {purpose}: pip install 'stretto[{name}]'"
            yield Check(f"extra {name}", "ok", "not installed", remedy)


def _store(store: Store, verify: bool) -> Iterator[Check]:
    models = store.models()
    total = sum(model.nbytes for model in models)
    place = next((path for path in (store.home, *store.home.parents) if path.exists()), store.home)
    free = shutil.disk_usage(place).free
    count = f"{len(models)} model{'' if len(models) == 1 else 's'}"
    found = f"{count}, {size(total)} in {store.home}; {size(free)} free"
    if free < LOW_DISK_BYTES:
        yield Check("models", "advice", found, "make room (stretto rm), or set STRETTO_HOME to another disk")
    else:
        yield Check("models", "ok", found)
    for name in broken_folders(store):
        remedy = f"pull the model again, or delete {store.home / 'models' / name}"
        yield Check("models", "problem", f"{name}: damaged or incomplete", remedy)
    for model in models if verify else ():
        if hash_files(model.path, *model.parts) != model.sha256:
            yield Check(
                "models",
                "problem",
                f"{model.name}: its SHA-256 is not the one it was stored with",
                f"stretto pull --force {model.name}",
            )


def broken_folders(store: Store) -> list[str]:
    """The folders of the store that hold no whole model."""
    home = store.home / "models"
    try:
        folders = {path.name for path in home.iterdir() if path.is_dir()}
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(folders - {model.path.relative_to(home).parts[0] for model in store.models()})


# Settings of the system that cost speed: huge pages, the frequency governor, other processes.

_HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
_GOVERNOR = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"


def huge_pages(root: Path = ROOT) -> str | None:
    """The mode of transparent huge pages, "always", "madvise" or "never"; None if the system has none.

    >>> huge_pages()
    'madvise'
    """
    written = text(root / _HUGE_PAGES) or ""
    chosen = [word for word in written.split() if word.startswith("[") and word.endswith("]")]
    return chosen[0][1:-1] if len(chosen) == 1 else None


def governor(root: Path = ROOT) -> str | None:
    """What sets the processor's frequency, such as "performance" or "powersave"; None if that is unknown."""
    return text(root / _GOVERNOR) or None


def busy_processors() -> float | None:
    """How many processors were busy in the last minute, by all processes; None if that is unknown."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
