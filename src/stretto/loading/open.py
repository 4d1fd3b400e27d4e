"""`open_model`: from a model's name to a backend that runs it, with its tokenizer and image encoder.

`plan_file` says what a GPU would hold and what the CPU, and opens nothing.

Falling back is never silent: a `RouteWarning` names what could not run the model, and what runs it instead.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.backends.base import Backend, BackendOptions
from stretto.backends.placement import DevicePlan, Sizes, Speeds, plan_placement
from stretto.errors import InvalidRequest, ModelError, RouteWarning, Unsupported, UnsupportedModel
from stretto.hardware import free_memory, probe, usable_cores
from stretto.hardware.gpus import cuda_devices, find
from stretto.loading import choose
from stretto.loading.choose import Alternative, Candidate, Comparison, Route
from stretto.loading.describe import Description, Model, check_vocabulary, describe, find_kind
from stretto.loading.probe import Figures
from stretto.options.loading import LoadOptions
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.weights.mapped import GuardedMap, check_maps, list_maps

if TYPE_CHECKING:
    from stretto.loading.images import ImageEncoder
    from stretto.models.spec import ModelSpec
    from stretto.vision.vision import Vision
    from stretto.weights.gguf import GGUF


@dataclass(frozen=True)
class OpenedModel:
    """A model that is ready to run."""

    backend: Backend
    tokenizer: Tokenizer
    template: ChatTemplate | None
    fingerprint: Callable[[], str]  # of the file, computed when asked for
    vision: Vision | None = None
    route: Route | None = None  # what was chosen to run it, and why
    rerank_template: str = ""  # of a decoder that is used as a cross-encoder
    defaults: Mapping[str, float | int] = field(default_factory=dict)  # options that its authors recommend
    maps: Collection[GuardedMap] = ()  # files that it may still read from
    files: tuple[Path, ...] = ()  # with its weights, and those of its encoder
    path: Path | None = None  # of the file or folder


def open_model(model: Model, options: LoadOptions | None = None) -> OpenedModel:
    """Resolve a model's files, downloaded if necessary, and open them with the best backend for them."""
    options = options or LoadOptions()
    kind = find_kind(model, options.backend)
    pairs = choose.find_pairs(kind, options)
    encoder = _find_encoder(options)
    setup = make_setup(options, pairs[0][1])
    if encoder is not None:
        setup = replace(setup, beside=encoder.nbytes(options.precision))

    def check(head: Path) -> None:
        choose.check_download(head, oversize=options.quantize is not None)

    with describe(model, kind, options, check) as description, ExitStack() as opened:
        if description.spec is not None and description.spec.is_encoder:
            setup = replace(setup, kv="f32")  # K and V stay for one pass: nothing would be saved
        candidates = choose.find_candidates(description, pairs, setup)
        choose.check_runnable(description, candidates)
        fingerprint = description.read_fingerprint()  # now: its pages are not there beside packed weights
        with ThreadPoolExecutor(1) as pool:  # weights are packed in native code; Python reads the tokens
            text = pool.submit(description.read_text)
            comparison = choose.make_comparison(description, lambda: text.result()[0], setup)
            with _named(options):
                backend, route = open_ranked(candidates, comparison)
            opened.callback(backend.close)
            tokenizer, template = text.result()
        check_vocabulary(tokenizer, backend.spec, description.path)
        vision = None if encoder is None else encoder.open(backend.spec, tokenizer, route, setup)
        maps = list_maps([*description.files, *([] if encoder is None else [encoder.path])])
        check_maps(maps)
        defaults = description.read_defaults()
        opened.pop_all()
        return OpenedModel(
            backend,
            tokenizer,
            template,
            fingerprint,
            vision,
            route,
            description.rerank_template,
            defaults,
            maps,
            (*description.files, *([] if encoder is None else encoder.files)),
            description.path,
        )


def make_setup(options: LoadOptions, device: str) -> BackendOptions:
    """What a backend gets of the options, with what this machine has."""
    setup = BackendOptions(
        device,
        options.n_cells,
        options.threads or usable_cores(),
        options.kv,
        options.precision,
        options.repack,
        exact=options.exact,
        memory=free_memory(),
        auto_cells=options.cells == "auto",
        experts=options.chosen_experts,
        gpu_memory=options.gpu_memory,
        cpu_speed=read_cpu_speed() if options.experts is not None else 0.0,
    )
    if (limits := options.limits) is None:
        return setup
    return replace(setup, sequences=limits.max_states, checkpoint_bytes=limits.checkpoint_bytes)


def read_cpu_speed(measure: bool = False) -> float:
    """Bytes a second that all cores read of memory; 0 where that has never been measured here."""
    bandwidth = probe(measure).bandwidth
    return 0.0 if bandwidth is None else 1e9 * bandwidth.memory.all


def plan_file(
    file: GGUF, spec: ModelSpec, options: LoadOptions, gpu_bandwidth: float = 0.0, cpu_bandwidth: float = 0.0
) -> DevicePlan:
    """The plan for an open file. Bandwidths are in bytes a second; those that are 0 are found here.

    Without a GPU, `options.gpu_memory` says how large it would be. Experts of as few layers as will do are on
    the CPU, unless `options.experts` says which.
    """
    devices, known = cuda_devices(), find()
    free = known[0].memory_free if known else None
    if free is None and options.gpu_memory is None:
        raise InvalidRequest(
            "no GPU is visible here; say with gpu_memory how much memory it would have", param="gpu_memory"
        )
    room = min(each for each in (free, options.gpu_memory) if each is not None)
    n_slots = make_setup(options, "cuda").n_slots(4 * spec.state_floats)
    sizes = Sizes.of(file, spec, kv=options.kv, n_slots=n_slots)
    choice = options.chosen_experts
    if choice is None and sizes.layers:
        choice = "auto"
    gpu = gpu_bandwidth or (devices[0].bandwidth if devices else 0.0)
    cpu = cpu_bandwidth or read_cpu_speed(measure=True)
    return plan_placement(sizes, choice, options.n_cells, room, Speeds(gpu, cpu))


def _find_encoder(options: LoadOptions) -> ImageEncoder | None:
    """The image encoder, downloaded if necessary; its options are checked without one too."""
    if options.vision is None and isinstance(options.image_cache, bool):
        return None
    from stretto.vision.cache import ImageCache

    cache = ImageCache.of(options.image_cache)
    if options.vision is None:
        return None
    from stretto.loading.images import ImageEncoder, find_encoder

    return ImageEncoder(find_encoder(options.vision), cache)


@contextmanager
def _named(options: LoadOptions) -> Iterator[None]:
    """The parameter that the caller gave, in the error of a choice that nothing here can run."""
    try:
        yield
    except Unsupported as error:
        if error.param == "backend":
            name = "backend" if options.device == "auto" else "device"
            error.param, error.value = name, getattr(options, name)
        raise


def open_ranked(candidates: Sequence[Candidate], comparison: Comparison) -> tuple[Backend, Route]:
    """Open the model with the best candidate that can; raises what the first one raised if none can."""
    usable = choose.find_usable(candidates)
    failures: dict[str, Exception] = {}
    figures: list[Figures] = []
    for tier in sorted({each.tier for each in usable}):
        group = [each for each in usable if each.tier == tier]
        if len(group) > 1:
            figures = choose.compare(group, comparison, failures)
            group = choose.sort_candidates(group, figures)
        for each in group:
            try:
                backend = each.open()
            except Exception as error:  # a library of others may raise anything
                failures[each.name] = error
                continue
            _warn(candidates, each, failures)
            route = choose.make_route(candidates, each, figures, failures)
            if isinstance(placement := getattr(backend, "placement", None), DevicePlan):
                route = replace(route, placement=placement)
            return backend, route
        if failures and all(_is_final(error) for error in failures.values()):
            break  # another tier would be refused for the same reason
    raise next(iter(failures.values()), choose.none_can(candidates))


def _warn(candidates: Sequence[Candidate], chosen: Candidate, failures: dict[str, Exception]) -> None:
    """Say that another backend than the first choice runs the model, where that is so."""
    for each in candidates:
        if not each.asked or each is chosen:
            continue
        if each.name in failures or (each.refusal and each.tier < chosen.tier):
            why = failures.get(each.name) or each.refusal
            warnings.warn(
                f"{each.name} cannot run this model: {why}; {chosen.name} runs it instead "
                f"(backend={chosen.backend!r} says so without this warning)",
                RouteWarning,
                stacklevel=_caller(),
            )
            return


def _caller() -> int:
    """The `stacklevel` of `_warn`'s warning that is the first line outside of this package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("stretto."):
        frame, level = frame.f_back, level + 1
    return level


def _is_final(error: Exception) -> bool:
    """Whether an error is about the file or the options, and not about the backend."""
    if isinstance(error, UnsupportedModel):
        return False
    return isinstance(error, (ModelError, InvalidRequest))


# -- without opening a model for use --


def survey(model: Model, *, threads: int | None = None, cells: int = 1024, refresh: bool = False) -> Route:
    """The backends and devices that can run a model here, each with the speed that a short probe found."""
    options = LoadOptions(threads=threads, cells=cells)
    with _find_all(model, options, choose.check_download) as (description, candidates, setup):
        choose.check_runnable(description, candidates)
        if (
            description.spec is not None and description.spec.is_encoder
        ):  # decodes nothing that could be timed
            return choose.route_by_tier(candidates)
        comparison = choose.make_comparison(description, lambda: description.read_text()[0], setup, refresh)
        return choose.survey_candidates(candidates, comparison)


def list_alternatives(model: Model) -> list[Alternative]:
    """The backends with their first devices, and why each cannot run a model here, if so; opens nothing."""
    with _find_all(model, LoadOptions(cells=1)) as (_, candidates, _):
        return [
            Alternative(each.backend, each.device, "refused" if each.refusal else "possible", each.refusal)
            for each in candidates
            if each.asked
        ]


@contextmanager
def _find_all(
    model: Model, options: LoadOptions, check: Callable[[Path], None] | None = None
) -> Iterator[tuple[Description, list[Candidate], BackendOptions]]:
    """A model's description and its candidates on all devices, while its files are open."""
    kind = find_kind(model)
    setup = make_setup(options, "cpu")
    with describe(model, kind, options, check) as description:
        yield description, choose.find_candidates(description, choose.find_pairs(kind, options), setup), setup
