"""`open_model`: resolves a model's name, and opens its file with a backend and an image encoder.

`routing` decides which backend that is, among those that `backend=` and `device=` allow; `survey` compares
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.backends.base import Backend
from stretto.backends.registry import (
    BUILT_IN,
    ONNX,
    BackendEntry,
    BackendOptions,
    choose,
    serving,
)
from stretto.errors import InvalidRequest, ModelError, Unsupported, UnsupportedModel
from stretto.hardware import cpu_name, free_memory, total_memory, usable_cores
from stretto.models import ModelSpec, read_spec
from stretto.routing.candidates import Candidate, gguf_candidates, onnx_candidates, with_remedy
from stretto.routing.decide import Trial, open_best, unmeasured
from stretto.routing.decide import survey as survey_candidates
from stretto.routing.probe import TEXT, measure
from stretto.routing.route import Option, Route
from stretto.sampling.params import check_integer
from stretto.text.generation_config import read_generation_config, read_sampling
from stretto.text.loading import (
    load_template_folder,
    load_template_of,
    load_tokenizer_folder,
    load_tokenizer_of,
)
from stretto.text.template import ChatTemplate
from stretto.text.tokenizer import Tokenizer
from stretto.weights import hub
from stretto.weights.folder import open_weights
from stretto.weights.gguf import GGUF
from stretto.weights.mapped import GuardedMap, check_maps, maps_of

if TYPE_CHECKING:
    from stretto.vision.cache import ImageCache
    from stretto.vision.vision import Vision
    from stretto.weights.onnx.folder import OnnxFolder

CACHE_TYPES = ("f16", "q8", "f32", "bf16", "fp8")
GPU_CACHE_TYPES = ("bf16", "fp8")  # that only GPUs have
DEFAULT_CELLS = 8192
PRECISIONS = ("standard", "high")  # activations in 8 bits, in 16


@dataclass(frozen=True)
class Opened:
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


def open_model(
    model: str | os.PathLike[str],
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    cells: int | str = DEFAULT_CELLS,
    kv: str = "f16",
    precision: str = "standard",
    repack: bool | str = "auto",
    quantize: str | None = None,
    exact: bool = True,
    vision: str | os.PathLike[str] | None = None,
    image_cache: bool | str | os.PathLike[str] | ImageCache = True,
    sequences: int = 80,
    checkpoint_bytes: int = 512 << 20,
) -> Opened:
    """Resolve a model's file, download it if necessary, and open it with a backend."""
    is_onnx = _is_onnx(model, backend)
    pairs = [_onnx_pair(backend, device)] if is_onnx else serving(backend, device)
    _check_choice("kv", kv, CACHE_TYPES)
    if kv in GPU_CACHE_TYPES and all(on == "cpu" for _, on in pairs):
        raise Unsupported(f"kv={kv!r} needs device='cuda'; a CPU has f16, q8 and f32", param="kv", value=kv)
    _check_choice("precision", precision, PRECISIONS)
    if not isinstance(exact, bool):
        raise InvalidRequest(f"exact must be True or False, not {exact!r}", param="exact", value=exact)
    if not isinstance(repack, bool) and repack not in ("auto", "shared"):
        raise InvalidRequest(
            f"repack must be 'auto', True, False or 'shared', not {repack!r}", param="repack", value=repack
        )
    if threads is not None:
        check_integer("threads", threads, 1, 1024)
    n_cells = _check_cells(cells)
    cache = None if vision is None and isinstance(image_cache, bool) else _image_cache(image_cache)
    options = BackendOptions(
        pairs[0][1],
        n_cells,
        threads or usable_cores(),
        kv,
        precision,
        repack,
        sequences,
        checkpoint_bytes,
        exact,
        memory=free_memory(),
        auto_cells=cells == "auto",
    )
    if is_onnx:
        if quantize is not None:
            raise Unsupported(
                "ONNX folders are used as they are; quantize= is for GGUF files and safetensors"
            )
        return _open_onnx(Path(model).expanduser(), options, vision)
    mmproj = None
    if vision is not None:
        from stretto.routing.images import encoder_bytes, find_encoder

        mmproj = find_encoder(vision)
        options = replace(options, beside=encoder_bytes(mmproj, precision))
    with _open_file(model, quantize, options.threads) as file:
        spec, problem = _read_spec(file, n_cells)
        if spec.is_encoder:
            options = replace(options, kv="f32")  # K and V stay for one pass: nothing would be saved
        candidates = gguf_candidates(file, spec, problem, pairs, options)
        _check_runnable(candidates, problem)
        fingerprint = file.fingerprint()  # first: the pages that it reads are not there beside packed weights
        with ThreadPoolExecutor(1) as pool:  # weights are packed in native code; Python reads the tokens
            text_future = pool.submit(_load_text, file, spec)
            with _named(backend, device):
                model_backend, route = open_best(candidates, _trial(file, text_future, options))
            try:
                tokenizer, template = text_future.result()
            except BaseException:
                model_backend.close()
                raise
        try:
            model_vision = None
            if mmproj is not None and cache is not None:
                from stretto.routing.images import load_vision

                model_vision = load_vision(mmproj, spec, tokenizer, route, options, cache)
        except BaseException:
            model_backend.close()
            raise
        rerank_template = file.metadata.text("tokenizer.chat_template.rerank", "")
        maps = maps_of([*file.files, *([mmproj] if mmproj else [])])
        try:
            check_maps(maps)
        except BaseException:
            model_backend.close()
            raise
        return Opened(
            model_backend,
            tokenizer,
            template,
            fingerprint,
            model_vision,
            route,
            rerank_template,
            _defaults(file),
            maps,
        )


@contextmanager
def _named(backend: str, device: str) -> Iterator[None]:
    """The parameter that the caller gave, in the error of a choice that nothing here can run."""
    try:
        yield
    except Unsupported as error:
        if error.param == "backend":
            error.param, error.value = ("backend", backend) if device == "auto" else ("device", device)
        raise


def check_download(head: Path, *, oversize: bool = False) -> None:
    """Raise `ModelError` for a model that cannot run here, by its head; `oversize`: it may exceed memory."""
    from stretto.routing.head import check_head

    check_head(head, None if oversize else total_memory())


def _open_file(model: str | os.PathLike[str], quantize: str | None, threads: int) -> GGUF:
    """A model's file or folder, in other formats if they are asked for."""
    check = partial(check_download, oversize=quantize is not None)
    file = open_weights(hub.resolve(model, check=check))
    if quantize is None:
        return file
    from stretto.quantize.loading import QuantisedFile

    try:
        return QuantisedFile(file, quantize, threads)
    except BaseException:
        file.close()
        raise


def _defaults(file: GGUF) -> Mapping[str, float | int]:
    """The options that a file or a folder recommends."""
    return read_generation_config(file.path).options if file.path.is_dir() else read_sampling(file.metadata)


def _is_onnx(model: str | os.PathLike[str], backend: str) -> bool:
    """Whether a path is an ONNX decoder that ONNX Runtime is to run."""
    path = Path(model).expanduser()
    if path.suffix.lower() != ".onnx" and not path.is_dir():
        return False
    from stretto.weights.onnx.folder import has_other_weights, is_onnx_folder

    return is_onnx_folder(path) and (backend == ONNX.name or not has_other_weights(path))


def _onnx_pair(backend: str, device: str) -> tuple[BackendEntry, str]:
    """The backend of ONNX folders, and the device as it was asked for, maybe with a number."""
    entry, _ = choose(ONNX.name if backend == "auto" else backend, str(device).partition(":")[0])
    if "onnx" not in entry.files:
        raise Unsupported(
            f"backend={backend!r} does not run ONNX folders; backend='onnx' does",
            param="backend",
            value=backend,
        )
    return entry, device


def _open_onnx(path: Path, options: BackendOptions, vision: object) -> Opened:
    """Open a folder with an ONNX decoder."""
    if vision is not None:
        raise Unsupported("images need a GGUF model; ONNX decoders take text only", param="vision")
    from stretto.weights.onnx import read_onnx
    from stretto.weights.onnx.fingerprint import fingerprint
    from stretto.weights.onnx.folder import find_folder

    folder = find_folder(path)
    candidates, trial = _onnx_trial(folder, options)
    model_backend, route = open_best(candidates, trial)
    try:
        tokenizer = load_tokenizer_folder(folder.path)
        _check_vocabulary(tokenizer, model_backend.spec, folder.path)
        tokenizer.end_ids |= frozenset(token for token in folder.end_ids if token < tokenizer.n_vocab)
        template = load_template_folder(folder.path, tokenizer)
    except BaseException:
        model_backend.close()
        raise
    return Opened(
        model_backend,
        tokenizer,
        template,
        lambda: fingerprint(read_onnx(folder.model)),
        route=route,
        defaults=read_generation_config(folder.path).options,
    )


def _onnx_trial(
    folder: OnnxFolder, options: BackendOptions, refresh: bool = False
) -> tuple[list[Candidate], Trial]:
    """The devices that an ONNX folder could run on, and how they are compared if there are several."""

    from stretto.backends.onnx import open_onnx
    from stretto.weights.onnx import read_onnx
    from stretto.weights.onnx.fingerprint import fingerprint

    def tokens() -> list[int]:
        return load_tokenizer_folder(folder.path).encode(TEXT, special=True)

    def key() -> str:
        return f"{fingerprint(read_onnx(folder.model))} | {cpu_name()}, {options.threads} threads"

    candidates = onnx_candidates(
        lambda device: open_onnx(folder, replace(options, device=device)), options.device
    )
    return candidates, Trial(tokens, key, measure, refresh)


def survey(
    model: str | os.PathLike[str], *, threads: int | None = None, cells: int = 1024, refresh: bool = False
) -> Route:
    """The backends and devices that can run a model here, each with the speed that a short probe found."""
    options = BackendOptions("cpu", cells, threads or usable_cores(), memory=free_memory())
    if _is_onnx(model, "auto"):
        from stretto.weights.onnx.folder import find_folder

        folder = find_folder(Path(model).expanduser())
        return survey_candidates(*_onnx_trial(folder, replace(options, device="auto"), refresh))
    with open_weights(hub.resolve(model, check=check_download)) as file:
        spec, problem = _read_spec(file, cells)
        candidates = gguf_candidates(file, spec, problem, serving(), options)
        _check_runnable(candidates, problem)
        if spec.is_encoder:  # it decodes nothing that could be timed
            return unmeasured(candidates)
        text: Future[tuple[Tokenizer, ChatTemplate | None]] = Future()
        text.set_result(_load_text(file, spec))
        return survey_candidates(candidates, _trial(file, text, options, refresh))


def usable(model: str | os.PathLike[str]) -> list[Option]:
    """The backends with their first devices, and why each cannot run a model here, if so; opens nothing."""
    options = BackendOptions("cpu", 1, usable_cores(), memory=free_memory())
    if _is_onnx(model, "auto"):
        from stretto.weights.onnx.folder import find_folder

        candidates, _ = _onnx_trial(find_folder(Path(model).expanduser()), options)
    else:
        with open_weights(hub.resolve(model)) as file:
            spec, problem = _read_spec(file, 1)
            candidates = gguf_candidates(file, spec, problem, serving(), options)
    return [
        Option(each.backend, each.device, "refused" if each.refusal else "possible", each.refusal)
        for each in candidates
        if each.asked
    ]


def missing_for(device: str) -> str:
    """What is not installed that the first backend of a device needs; "" if nothing, or if there is none."""
    return next((entry.missing(device) for entry in BUILT_IN if device in entry.devices), "")


def open_tokenizer(model: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a model, without its weights."""
    if _is_onnx(model, "auto"):
        from stretto.weights.onnx.folder import find_folder

        return load_tokenizer_folder(find_folder(Path(model).expanduser()).path)
    with open_weights(hub.resolve(model)) as file:
        return load_tokenizer_of(file)


def _read_spec(file: GGUF, cells: int) -> tuple[ModelSpec, UnsupportedModel | None]:
    """The spec, and why Stretto's own backends cannot run it, if so: the spec is a bare one then."""
    try:
        return read_spec(file, cells), None
    except UnsupportedModel as problem:
        from stretto.models.bare import bare_spec

        return bare_spec(file), problem


def _check_runnable(candidates: list[Candidate], problem: UnsupportedModel | None) -> None:
    """Raise the problem of a file that no candidate can run, with the package that might."""
    if problem is not None and not any(each.asked and not each.refusal for each in candidates):
        raise with_remedy(problem, candidates) from problem


def _trial(
    file: GGUF,
    text: Future[tuple[Tokenizer, ChatTemplate | None]],
    options: BackendOptions,
    refresh: bool = False,
) -> Trial:
    """How candidates for a file are compared, if there are several."""

    def key() -> str:
        setup = f"{options.threads} threads, kv {options.kv}, {options.precision}, repack {options.repack}"
        setup += "" if options.exact else ", not exact"
        return f"{file.fingerprint()()} | {cpu_name()}, {setup}"

    def tokens() -> list[int]:
        tokenizer = text.result()[0]
        try:
            return tokenizer.encode(TEXT, special=True)
        except InvalidRequest:  # a vocabulary without these characters
            return [7 * i % tokenizer.n_vocab for i in range(len(TEXT) // 4)]

    return Trial(tokens, key, measure, refresh)


def _load_text(file: GGUF, spec: ModelSpec) -> tuple[Tokenizer, ChatTemplate | None]:
    source = getattr(file, "source", file)  # of one that is quantised while it is loaded
    tokenizer = load_tokenizer_of(source)
    _check_vocabulary(tokenizer, spec, file.path)
    template = load_template_of(source, tokenizer)
    file.forget()  # the head has been read; pages that are being packed are mapped again
    return tokenizer, template


def _image_cache(value: object) -> ImageCache:
    from stretto.vision.cache import ImageCache

    return ImageCache.of(value)


def _check_vocabulary(tokenizer: Tokenizer, spec: ModelSpec, path: Path, field: str = "tokenizer") -> None:
    if tokenizer.n_vocab > spec.n_vocab:
        raise ModelError(
            f"{tokenizer.n_vocab} tokens, but embeddings for {spec.n_vocab}", path=path, field=field
        )


def _check_cells(cells: int | str) -> int:
    """The number of cells; with "auto" that of a CPU, and a GPU takes what is free."""
    if isinstance(cells, str):
        if cells != "auto":
            raise InvalidRequest(
                f"cells must be 'auto' or an integer from 1 to {1 << 24}, not {cells!r}",
                param="cells",
                value=cells,
            )
        return DEFAULT_CELLS
    check_integer("cells", cells, 1, 1 << 24)
    return cells


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequest(
            f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}", param=name, value=value
        )
