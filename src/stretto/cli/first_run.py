"""The default model, chosen once on each machine, and what its first answer says.

The choice is made at the first start from what does not change daily, the memory of the machine, and kept in
the store's home. Importing this needs neither the native core nor NumPy: `stretto pull --default` runs while
the core is being compiled.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from stretto.cli.output import size
from stretto.errors import StrettoError

if TYPE_CHECKING:
    from pathlib import Path

    from stretto.weights.hub.catalogue import HubModel

LARGE, SMALL = "qwen2.5-coder-1.5b", "smollm2"
LEAST_MEMORY_BYTES = 3_500_000_000  # a machine of 4 GB, less what its firmware and its system keep
WORKING_DISK_BYTES = 600_000_000  # beside the model: packages on their way
CHOICE = "default-model.json"
MARKER = "first-run"
ENVIRONMENT_VARIABLE = "STRETTO_MODEL"
EFFICIENCY = 0.7  # of the bandwidth: what decoding reaches of it


def default_model() -> str:
    """The model that is used when none is named.

    It is that of the environment (STRETTO_MODEL) if there is one, else that of the configuration file, else
    the one chosen on this machine: now, if this is the first time. In a terminal the small one can be chosen;
    elsewhere nothing is asked.
    """
    from stretto.cli import config_file

    if named := os.environ.get(ENVIRONMENT_VARIABLE) or config_file.read().model:
        return config_file.read().resolve(named)
    from stretto.weights.hub import Store

    home = Store.default().home
    return _stored(home / CHOICE) or _choose(home)


def read_choice() -> str | None:
    """The model that was chosen on this machine, if that has happened."""
    from stretto.weights.hub import Store

    return _stored(Store.default().home / CHOICE)


def _stored(path: Path) -> str | None:
    from stretto.weights.files import read_records

    try:
        name = read_records(path).get("model")
        return name if isinstance(name, str) and name else None
    except (OSError, ValueError):
        return None


def _choose(home: Path) -> str:
    """Choose by memory and disk, say it in a line on stderr, and keep it."""
    from stretto import hardware
    from stretto.weights import hub

    large, small = hub.packaged_models()[LARGE], hub.packaged_models()[SMALL]
    memory = hardware.main_memory()
    if hub.Store.default().find(LARGE):
        return _keep(home, LARGE)
    if memory is None or memory < LEAST_MEMORY_BYTES:
        have = "unknown" if memory is None else size(memory)
        _say(f"{SMALL} is the default model here: memory is {have}, and {LARGE} is for 4 GB and more")
        return _keep(home, SMALL)
    needed = large.nbytes + WORKING_DISK_BYTES
    if (free := _free(home)) is not None and free < needed:
        _say(
            f"{SMALL} is used, since {size(free)} are free on the disk and {LARGE} needs {size(needed)}; "
            "STRETTO_HOME may name a folder on another disk"
        )
        return SMALL  # not kept: disks are cleared
    facts = (
        f"The default model is {LARGE}: {size(large.download_nbytes)} to fetch once, licence {large.license}."
    )
    other = f"{size(small.download_nbytes)}, much weaker answers"
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        _say(facts)
        sys.stderr.write(f"Enter takes it, s the small one ({SMALL}, {other}): ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:  # Ctrl-D is no answer
            raise KeyboardInterrupt
        return _keep(home, SMALL if answer.strip().lower() in ("s", "small", SMALL) else LARGE)
    _say(f"{facts} The small one: -m {SMALL} ({other}).")
    return _keep(home, LARGE)


def _keep(home: Path, name: str) -> str:
    """Store the choice; where the store cannot be written to, the pull says so."""
    import json

    from stretto.weights.files import atomic_write

    try:
        home.mkdir(parents=True, exist_ok=True)
        with atomic_write(home / CHOICE) as file:
            file.write(json.dumps({"model": name}).encode())
    except OSError:
        pass
    return name


def _free(home: Path) -> int | None:
    """The free bytes of the disk that the store is or will be on."""
    for folder in (home, *home.parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return None


def _say(line: str) -> None:
    from stretto.cli.output import console

    console(stderr=True).print(line, style="dim", soft_wrap=True)


def first_run_note(model: str) -> None:
    """Say on the first run of the small model in a terminal what fits here; nothing is said in pipes."""
    if model == SMALL and sys.stdout.isatty() and sys.stderr.isatty() and is_first(MARKER):
        _say(sentence(*best()))


def sentence(entry: HubModel | None, nbytes: int | None, bandwidth: float | None) -> str:
    """The line; `bandwidth` is in bytes/s.

    >>> sentence(None, None, None)
    'smollm2 is tiny and says silly things; stretto run -m qwen2.5-coder-1.5b "…" answers better'
    """
    begin = f"{SMALL} is tiny and says silly things"
    if entry is None:
        return f'{begin}; stretto run -m {LARGE} "…" answers better'
    fetch = "size unknown" if nbytes is None else f"a download of {size(nbytes)}"
    speed = ""
    if nbytes and bandwidth and not entry.is_mixture:
        speed = f", about {EFFICIENCY * bandwidth / nbytes:.0f} tokens/s"
    return f'{begin}; the best that fits here: stretto run {entry.name} "…" ({fetch}{speed})'


def best() -> tuple[HubModel | None, int | None, float | None]:
    """The best model that fits this machine, its size and the bandwidth, where they are known."""
    from stretto import hardware
    from stretto.weights.hub import huggingface

    machine = hardware.probe()
    bandwidth = machine.bandwidth.memory.all * 1e9 if machine.bandwidth else None
    entry = huggingface.best_fit(machine.memory_free, EFFICIENCY * bandwidth if bandwidth else None)
    if entry is None:
        return None, None, bandwidth
    sizes = huggingface.file_sizes(entry) or ()
    return entry, next((one.nbytes for one in sizes if one.is_chosen), None), bandwidth


def is_first(name: str) -> bool:
    """Whether this is the first time, by a marker in the store's home; never where it cannot be written."""
    from stretto.weights.hub import Store

    try:
        marker = Store.default().home / name
        marker.parent.mkdir(parents=True, exist_ok=True)
        with marker.open("x"):
            return True
    except (OSError, StrettoError):
        return False
