"""Which backends and devices could run a model, and which of them is best: tiers first, then measured speed.

`find_candidates` lists them, each with the reason why it cannot run the model, if any; it opens nothing and
imports no backend. Several of one tier are probed, for a second together, and the figures are remembered: a
candidate whose logits are too far from those of the most exact one is refused, and of the others the fastest
comes first. `Route` is what came of it, for `llm.route`:

    print(llm.route)
        native on cpu: the only backend that competes for this model
          reference on cpu: possible; slow, for comparisons; chosen only if nothing else can run the model
          llamacpp on cpu: not possible: pip install 'stretto[llamacpp]'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stretto.backends import registry
from stretto.backends.base import AUTOMATIC, Backend, BackendOptions
from stretto.backends.placement import DevicePlan
from stretto.backends.registry import BREADTH, FIRST, ORACLE, BackendEntry
from stretto.errors import InvalidRequest, ModelError, Unsupported, UnsupportedModel
from stretto.hardware import cpu_name, total_memory
from stretto.loading.describe import Description, Kind, OnnxDescription, describe_file
from stretto.loading.probe import TEXT, Figures, Probe, Sample, distance, measure, recall, remember
from stretto.models import ARCHITECTURES
from stretto.models.missing import beyond_llama_cpp
from stretto.models.spec import ModelSpec
from stretto.models.summary import model_memory
from stretto.options.loading import GPU_CACHE_TYPES, LoadOptions
from stretto.text.loading import load_gguf_tokenizer
from stretto.text.tokenizer import Tokenizer
from stretto.weights.folder import open_weights
from stretto.weights.formats import READABLE
from stretto.weights.gguf import GGUF

BAR = 0.09  # the greatest distance from the most exact candidate
MARGIN = 1.1  # a later candidate must be so much faster than an earlier one
SECONDS = 1.0  # of all probes together
LEAST_CELLS = 512  # of a KV cache that is worth having

ASKED = "it was asked for"
ONLY = "the only backend that competes for this model"
TIER_WORDS = {
    BREADTH: "for models that the others cannot run",
    ORACLE: "slow, for comparisons; chosen only if nothing else can run the model",
}

PLACING = ("experts", "gpu_memory")  # options of GPUs
Pair = tuple[BackendEntry, str]  # a backend and a device
State = Literal["chosen", "possible", "refused"]


@dataclass(frozen=True)
class Alternative:
    """A backend on a device: whether it could run the model, and why it was chosen or was not.

    `tokens_per_second` is the decode speed by the best step of a short probe, None if it was not measured;
    `distance` is how far its log-probabilities are from the most exact candidate's, on average.
    """

    backend: str
    device: str
    state: State
    reason: str
    tokens_per_second: float | None = None
    distance: float | None = None

    @property
    def name(self) -> str:
        """As "native on cpu"."""
        return f"{self.backend} on {self.device}"

    def __str__(self) -> str:
        words = {"chosen": "", "possible": "possible; ", "refused": "not possible: "}[self.state]
        speed = "" if self.tokens_per_second is None else f" ({self.tokens_per_second:.1f} tokens a second)"
        return f"{self.name}{speed}: {words}{self.reason}"


@dataclass(frozen=True)
class Route:
    """The alternatives for a model, the chosen one among them.

    >>> llm.route.backend, llm.route.reason
    ('native', 'the only backend that competes for this model')
    """

    options: tuple[Alternative, ...]
    placement: DevicePlan | None = None  # what is on the GPU and what on the CPU, where that was asked for

    @property
    def chosen(self) -> Alternative:
        """The alternative that runs the model."""
        return next(each for each in self.options if each.state == "chosen")

    @property
    def others(self) -> tuple[Alternative, ...]:
        """All alternatives but the chosen one."""
        return tuple(each for each in self.options if each.state != "chosen")

    @property
    def backend(self) -> str:
        """The chosen backend."""
        return self.chosen.backend

    @property
    def device(self) -> str:
        """The chosen device."""
        return self.chosen.device

    @property
    def reason(self) -> str:
        """Why it was chosen."""
        return self.chosen.reason

    def as_data(self) -> list[dict[str, Any]]:
        """The alternatives as plain data, for JSON."""
        return [dict(vars(each)) for each in self.options]

    def __str__(self) -> str:
        placed = () if self.placement is None else str(self.placement).split("\n")
        return "\n  ".join(map(str, (self.chosen, *placed, *self.others)))


# -- candidates --


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


def find_pairs(kind: Kind, options: LoadOptions) -> list[Pair]:
    """The backends and devices that options allow for a kind of model; raises where they allow none."""
    if kind == "onnx":
        pairs = [_onnx_pair(options.backend, options.device)]
    else:
        pairs = registry.serving(options.backend, options.device)
    if options.kv in GPU_CACHE_TYPES and all(device == "cpu" for _, device in pairs):
        raise Unsupported(
            f"kv={options.kv!r} needs device='cuda'; a CPU has f16, q8 and f32", param="kv", value=options.kv
        )
    if placing := [name for name in PLACING if getattr(options, name) is not None]:
        pairs = [(entry, device) for entry, device in pairs if entry.places]
        lacks = [entry.missing(device) for entry, device in pairs]
        if all(lacks):
            why = lacks[0] if lacks else "that needs device='cuda' and a GGUF file or a folder of safetensors"
            raise Unsupported(
                f"{placing[0]}= says what a GPU holds and what the CPU: {why}; without it the CPU runs the "
                "model",
                param=placing[0],
                value=getattr(options, placing[0]),
            )
    if kind == "onnx" and options.quantize is not None:
        raise Unsupported("ONNX folders are used as they are; quantize= is for GGUF files and safetensors")
    if kind == "onnx" and options.vision is not None:
        raise Unsupported("images need a GGUF model; ONNX decoders take text only", param="vision")
    return pairs


def _onnx_pair(backend: str, device: str) -> Pair:
    """The backend of ONNX folders, and the device as it was asked for, maybe with a number."""
    name = registry.ONNX.name if backend == "auto" else backend
    entry, _ = registry.choose(name, str(device).partition(":")[0])
    if "onnx" not in entry.files:
        raise Unsupported(
            f"backend={backend!r} does not run ONNX folders; backend='onnx' does",
            param="backend",
            value=backend,
        )
    return entry, device


def find_candidates(description: Description, pairs: list[Pair], setup: BackendOptions) -> list[Candidate]:
    """The candidates for a model, those that can run it and those that cannot."""
    if isinstance(description, OnnxDescription):
        from stretto.backends.onnx import open_onnx

        folder = description.folder
        return onnx_candidates(lambda device: open_onnx(folder, replace(setup, device=device)), pairs[0][1])
    file, spec, problem = description.file, description.spec, description.problem
    return gguf_candidates(file, spec, problem, pairs, setup)


def gguf_candidates(
    file: GGUF,
    spec: ModelSpec,
    problem: ModelError | None,
    pairs: Iterable[Pair],
    setup: BackendOptions,
) -> list[Candidate]:
    """The candidates for a GGUF file, those that were asked for first, then the other built-in ones.

    `problem` is why Stretto's own readers cannot run it, where that is so; `spec` is a bare one then.
    """
    asked = list(pairs)
    for entry, _ in asked:
        if "gguf" not in entry.files:
            entry.open(file, spec, setup)  # raises, and says what to do instead
    known = {(entry.name, device) for entry, device in asked}
    others = [
        (entry, device)
        for entry in registry.BUILT_IN
        for device in entry.devices
        if (entry.name, device) not in known and entry.serves(device, named=False)
    ]
    unreadable = sorted({tensor.format.name for tensor in file.tensors.values()} - _READABLE_NAMES)

    def candidate(entry: BackendEntry, device: str, is_asked: bool) -> Candidate:
        mine = replace(setup, device=device)
        refusal = "" if entry.any_architecture else _explain_unreadable(problem, unreadable)
        refusal = refusal or entry.refuses(file, spec) or entry.missing(device)
        refusal = refusal or _explain_too_large(entry, file, mine)
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


def check_runnable(description: Description, candidates: list[Candidate]) -> None:
    """Raise the problem of a file that no candidate can run, with what another backend needs to run it."""
    problem = description.problem
    if problem is None or any(each.asked and not each.refusal for each in candidates):
        return
    other = next((each for each in candidates if each.tier == BREADTH), None)
    if other is None:
        raise problem
    remedy = other.refusal or f"backend={other.backend!r}"
    raise UnsupportedModel(f"{problem}; the {other.backend} backend may run it: {remedy}") from problem


_READABLE_NAMES = {fmt.name for fmt in READABLE}


def _explain_unreadable(problem: ModelError | None, formats: list[str]) -> str:
    if problem is None:
        return f"tensors in {', '.join(formats)} are not supported" if formats else ""
    # The message without the path in front, and without the list of what is supported behind.
    lead = f"{problem.path} in {problem.field}: " if problem.field else f"{problem.path}: "
    return str(problem).removeprefix(lead).partition("; supported are")[0]


def _explain_too_large(entry: BackendEntry, file: GGUF, setup: BackendOptions) -> str:
    if entry.needs is None or setup.memory is None or setup.device != "cpu":
        return ""
    needed = entry.needs(file, setup)
    if needed <= setup.memory:
        return ""
    return f"it takes {needed / 1e9:,.1f} GB and {setup.memory / 1e9:,.1f} GB of memory are free"


def find_missing(device: str) -> str:
    """What is not installed that the first backend of a device needs; "" if nothing, or if there is none."""
    return next((entry.missing(device) for entry in registry.BUILT_IN if device in entry.devices), "")


# -- before a download --


def check_download(head: Path, *, oversize: bool = False) -> None:
    """Raise `ModelError` for a model that cannot run here, by its head; `oversize`: it may exceed memory."""
    check_head(head, None if oversize else total_memory())


def check_head(path: Path, memory: int | None = None) -> None:
    """Raise `ModelError` unless the model can run in `memory` bytes; None: as large as it may be.

    The architecture has to be known, its tensors complete and in formats that a backend reads, the vocabulary
    readable, and the weights have to fit. Image encoders, adapters and importance matrices belong to other
    models and pass.
    """
    with open_weights(path) as file:
        if _is_part(file):
            return
        description = describe_file(file)
        candidates = find_candidates(description, registry.serving(), BackendOptions("cpu", 1, 1))
        if all(each.refusal for each in candidates):
            check_runnable(description, candidates)
            raise ModelError(candidates[0].refusal, path=path)
        if description.problem is None:  # else another program reads the vocabulary
            load_gguf_tokenizer(file)
        need = model_memory(file, description.spec)
        _check_memory(path, need.packed_bytes, need.cache_bytes("f16", LEAST_CELLS) or 0, memory)


def _is_part(file: GGUF) -> bool:
    """Whether a file is no model by itself, but belongs to one."""
    from stretto.models.missing import TYPES

    metadata = file.metadata
    return (
        str(metadata.get("general.type")) in TYPES
        or str(metadata.get("general.architecture")) == "clip"
        or "adapter.type" in metadata
    )


def _check_memory(path: Path, weights: int, cache: int, memory: int | None) -> None:
    if memory is not None and weights + cache > memory:
        raise ModelError(
            f"its weights take {weights / 1e9:,.1f} GB and a KV cache of {LEAST_CELLS} cells "
            f"{cache / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB: it would run from the "
            "disk, slowly. Take a smaller file of it, or fetch it all the same with stretto pull --oversize",
            path=path,
        )


# -- comparing --


@dataclass(frozen=True)
class Comparison:
    """How candidates are compared: the tokens to run and the key of the figures, both made when needed."""

    tokens: Callable[[], Sequence[int]]
    key: Callable[[], str]  # of the model file, the machine and the options
    probe: Probe = measure
    refresh: bool = False

    def full_key(self, group: Sequence[Candidate]) -> str:
        """The key with the names and versions of what is compared."""
        return " | ".join((self.key(), *(f"{each.name} {each.version()}" for each in group)))


def make_comparison(
    description: Description, tokenizer: Callable[[], Tokenizer], setup: BackendOptions, refresh: bool = False
) -> Comparison:
    """How candidates for a model are compared, if there are several."""

    def key() -> str:
        words = f"{setup.threads} threads, kv {setup.kv}, {setup.precision}, repack {setup.repack}"
        words += "" if setup.exact else ", not exact"
        return f"{description.read_fingerprint()()} | {cpu_name()}, {words}"

    def tokens() -> list[int]:
        own = tokenizer()
        try:
            return own.encode(TEXT, special=True)
        except InvalidRequest:  # a vocabulary without these characters
            return [7 * i % own.n_vocab for i in range(len(TEXT) // 4)]

    return Comparison(tokens, key, measure, refresh)


def find_usable(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates to choose from; raises with all reasons if there is none."""
    usable = [each for each in candidates if each.asked and not each.refusal]
    if not usable:
        raise none_can(candidates)
    return usable


def survey_candidates(candidates: Sequence[Candidate], comparison: Comparison) -> Route:
    """Measure all candidates that can run the model, the oracle left out; open none of them for use."""
    usable = find_usable(candidates)
    measured = [each for each in usable if each.tier < ORACLE] or usable
    failures: dict[str, Exception] = {}
    figures = compare(measured, comparison, failures)
    for tier in sorted({each.tier for each in measured}):
        if ranked := sort_candidates([each for each in measured if each.tier == tier], figures):
            return make_route(candidates, ranked[0], figures, failures)
    raise next(iter(failures.values()), none_can(candidates))


def route_by_tier(candidates: Sequence[Candidate]) -> Route:
    """The route by tiers alone, of a model that a probe cannot time."""
    return make_route(candidates, min(find_usable(candidates), key=lambda each: each.tier), [], {})


def compare(
    group: Sequence[Candidate], comparison: Comparison, failures: dict[str, Exception]
) -> list[Figures]:
    """Figures of candidates, remembered or measured one after the other; those that failed have none."""
    key = comparison.full_key(group)
    known = None if comparison.refresh else recall(key)
    if known is not None and {each.name for each in known} == {each.name for each in group}:
        return known
    tokens, samples = comparison.tokens(), {}
    for each in group:
        try:
            samples[each.name] = _sample(each, comparison.probe, tokens, SECONDS / len(group))
        except (
            Exception
        ) as error:  # a library of others may raise anything: it is out, and the route says why
            failures[each.name] = error
    figures = _make_figures(group, samples)
    if len(samples) == len(group):  # a failure may pass: it is tried again next time
        remember(key, figures)
    return figures


def sort_candidates(group: Sequence[Candidate], figures: Sequence[Figures]) -> list[Candidate]:
    """The candidates with usable figures, the best first."""
    by_name = {each.name: each for each in figures}
    good = [each for each in group if each.name in by_name and not by_name[each.name].problem]
    if not good:
        return []
    best = good[0]
    for each in good[1:]:
        if by_name[each.name].tokens_per_second > MARGIN * by_name[best.name].tokens_per_second:
            best = each
    rest = sorted(
        (each for each in good if each is not best), key=lambda each: -by_name[each.name].tokens_per_second
    )
    return [best, *rest]


def _sample(candidate: Candidate, probe: Probe, tokens: Sequence[int], seconds: float) -> Sample:
    backend = candidate.open()
    try:
        return probe(backend, tokens, seconds)
    finally:
        backend.close()


def _make_figures(group: Sequence[Candidate], samples: dict[str, Sample]) -> list[Figures]:
    """Speeds, and distances from the most exact candidate; of equals, from the first."""
    if not samples:
        return []
    exact = max(samples, key=lambda name: samples[name].exactness)
    figures = []
    for each in group:
        if each.name not in samples:
            continue
        speed = samples[each.name].tokens_per_second
        far = distance(samples[exact].logits, samples[each.name].logits)
        problem = ""
        if not far <= BAR:
            problem = f"its log-probabilities are {far:.3f} from those of {exact}; {BAR} is allowed"
        figures.append(Figures(each.backend, each.device, speed, min(far, 1e9), problem))
    return figures


# -- the route --


def make_route(
    candidates: Sequence[Candidate],
    chosen: Candidate,
    figures: Sequence[Figures],
    failures: dict[str, Exception],
) -> Route:
    """The route with a reason for each candidate."""
    by_name = {each.name: each for each in figures}

    def alternative(each: Candidate) -> Alternative:
        found = by_name.get(each.name)
        speed = found.tokens_per_second if found and found.tokens_per_second else None
        far = found.distance if found and speed else None
        mine = (each.backend, each.device)
        if each is chosen:
            return Alternative(*mine, "chosen", _explain_choice(candidates, chosen, by_name), speed, far)
        if each.refusal:
            return Alternative(*mine, "refused", each.refusal)
        if found and found.problem:
            return Alternative(*mine, "refused", found.problem, speed, far)
        if each.name in failures:
            reason = f"it could not be opened: {failures[each.name]}"
            return Alternative(*mine, "refused", reason, speed, far)
        if not each.asked:
            return Alternative(*mine, "possible", f"{chosen.name} was asked for")
        if each.tier != chosen.tier:
            return Alternative(*mine, "possible", TIER_WORDS.get(each.tier, ONLY), speed, far)
        return Alternative(*mine, "possible", f"not faster than {chosen.name} by enough", speed, far)

    return Route(tuple(alternative(each) for each in candidates))


def _explain_choice(candidates: Sequence[Candidate], chosen: Candidate, by_name: dict[str, Figures]) -> str:
    rivals = [each for each in candidates if each.asked]
    if len(rivals) == 1:
        return ASKED
    found = by_name.get(chosen.name)
    others = [by_name[each.name] for each in rivals if each.tier == chosen.tier and each.name in by_name]
    if found is None or len(others) == 1:
        return ONLY
    faster = max(each.tokens_per_second for each in others if not each.problem)
    if faster > found.tokens_per_second:
        return f"no other is {MARGIN - 1:.0%} faster by the probe"
    return "the fastest by the probe"


def none_can(candidates: Sequence[Candidate]) -> Unsupported:
    """The error for a model that no candidate can run, with each one's reason."""
    reasons = "; ".join(
        f"{each.name}: {each.refusal or 'its logits are no numbers'}" for each in candidates if each.asked
    )
    others = [each.name for each in candidates if not (each.asked or each.refusal or each.tier == ORACLE)]
    remedy = f"; {others[0]} can: leave backend and device out" if others else ""
    return Unsupported(f"no backend can run this model here: {reasons}{remedy}", param="backend")


def would_llama_cpp_run(file: GGUF) -> tuple[bool | None, str]:
    """Whether the llamacpp backend would run a file that is refused, and why not, or what it needs here.

    None: nobody knows, because the file is not as its architecture says.
    """
    if str(file.metadata.get("general.architecture")) in ARCHITECTURES:
        return None, "the file is not as its architecture says; llama.cpp may refuse it, too"
    if reason := beyond_llama_cpp(file):
        return False, reason
    return True, registry.choose("llamacpp", "cpu")[0].missing("cpu")
