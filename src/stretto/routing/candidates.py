"""Candidates for a model: the backends and devices, each with the reason why it cannot run it, if any.

Building them opens nothing and imports no backend, so that a load with one candidate is as quick as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from stretto.backends import registry
from stretto.backends.base import Backend
from stretto.backends.options import AUTOMATIC
from stretto.backends.registry import BREADTH, FIRST, ORACLE, BackendEntry, BackendOptions
from stretto.errors import ModelError, UnsupportedModel
from stretto.models.spec import ModelSpec
from stretto.weights.formats import READABLE
from stretto.weights.gguf import GGUF

TIER_WORDS = {
    BREADTH: "for models that the others cannot run",
    ORACLE: "slow, for comparisons; chosen only if nothing else can run the model",
}


@dataclass(frozen=True)
class Candidate:
    """A backend on a device, with the function that opens the model; `refusal` is "" if it can run it.

    `asked` is False for those that `backend=` and `device=` exclude: they are listed, and not chosen.
    """

    backend: str
    device: str
    open: Callable[[], Backend]
    tier: int = FIRST
    refusal: str = ""
    asked: bool = True
    version: Callable[[], str] = str

    @property
    def name(self) -> str:
        """As "native on cpu"."""
        return f"{self.backend} on {self.device}"


def gguf_candidates(
    file: GGUF,
    spec: ModelSpec,
    problem: ModelError | None,
    pairs: Iterable[tuple[BackendEntry, str]],
    options: BackendOptions,
) -> list[Candidate]:
    """The candidates for a GGUF file, those that were asked for first, then the other built-in ones.

    `problem` is why Stretto's own readers cannot run it, where that is so; `spec` is a bare one then.
    """
    asked = list(pairs)
    known = {(entry.name, device) for entry, device in asked}
    others = [
        (entry, device)
        for entry in registry.BUILT_IN
        for device in entry.devices
        if (entry.name, device) not in known and entry.serves(device, named=False)
    ]
    unreadable = sorted({tensor.format.name for tensor in file.tensors.values()} - _READABLE_NAMES)

    def candidate(entry: BackendEntry, device: str, is_asked: bool) -> Candidate:
        mine = replace(options, device=device)
        refusal = "" if entry.any_architecture else _unreadable(problem, unreadable)
        refusal = refusal or entry.refuses(file, spec) or entry.missing(device)
        refusal = refusal or _too_large(entry, file, mine)
        return Candidate(
            entry.name,
            device,
            lambda: entry.open(file, spec, mine),
            entry.tier,
            refusal,
            is_asked,
            entry.version,
        )

    return [candidate(*pair, True) for pair in asked] + [candidate(*pair, False) for pair in others]


def onnx_candidates(open_on: Callable[[str], Backend], asked: str) -> list[Candidate]:
    """The devices for an ONNX folder: the one that was asked for, or those that "auto" tries, the CPU first.

    Other devices round differently or are rare: they are listed, and used only if they are named.
    """
    entry = registry.ONNX
    chosen = AUTOMATIC if asked == "auto" else (asked,)

    def candidate(device: str, is_asked: bool) -> Candidate:
        refusal = entry.missing(device.partition(":")[0])
        return Candidate(
            entry.name, device, lambda: open_on(device), entry.tier, refusal, is_asked, entry.version
        )

    first = sorted(chosen, key=lambda device: device != "cpu")
    others = [each for each in entry.devices if each not in (*chosen, asked.partition(":")[0])]
    return [candidate(each, True) for each in first] + [candidate(each, False) for each in others]


def with_remedy(problem: UnsupportedModel, candidates: Iterable[Candidate]) -> UnsupportedModel:
    """The problem of Stretto's own backends with a file, and what another one needs to run it."""
    other = next((each for each in candidates if each.tier == BREADTH), None)
    if other is None:
        return problem
    remedy = other.refusal or f"backend={other.backend!r}"
    return UnsupportedModel(f"{problem}; the {other.backend} backend may run it: {remedy}")


_READABLE_NAMES = {fmt.name for fmt in READABLE}


def _unreadable(problem: ModelError | None, formats: list[str]) -> str:
    if problem is not None:
        return _short(problem)
    return f"tensors in {', '.join(formats)} are not supported" if formats else ""


def _too_large(entry: BackendEntry, file: GGUF, options: BackendOptions) -> str:
    if entry.needs is None or options.memory is None or options.device != "cpu":
        return ""
    needed = entry.needs(file, options)
    if needed <= options.memory:
        return ""
    return f"it takes {needed / 1e9:,.1f} GB and {options.memory / 1e9:,.1f} GB of memory are free"


def _short(error: ModelError) -> str:
    """The message without the path in front, and without the list of what is supported behind."""
    lead = f"{error.path} in {error.field}: " if error.field else f"{error.path}: "
    return str(error).removeprefix(lead).partition("; supported are")[0]
