"""The backends there are, by name, with the devices each one serves.

    entry, device = choose("auto", "cpu")
    backend = entry.open(file, spec, BackendOptions(device, cells=8192, threads=8))
    serving("auto", "auto")     # all built-in pairs of a backend and a device, for `loading` to choose from

Other packages add a backend by an entry point of the group `stretto.backends`, whose name is the backend's
and whose object is a `BackendEntry`:

    [project.entry-points."stretto.backends"]
    abacus = "my_package.backend:ENTRY"

Installed packages are looked through only when the built-in backends do not answer the question. `loading`
uses this module; the engine does not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from stretto.backends.base import PROVIDERS, Backend, BackendOptions
from stretto.backends.eagle import open_eagle_head
from stretto.backends.next_layer import find_next_head
from stretto.errors import InvalidRequest, Unsupported
from stretto.hardware import kernel_sets
from stretto.models.spec import ModelSpec
from stretto.models.summary import model_memory
from stretto.weights.gguf import GGUF
from stretto.weights.memory import choose_placement, memory

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "stretto.backends"
ONNX_DEVICES = tuple(PROVIDERS)


FIRST, BREADTH, ORACLE = 0, 1, 2  # tiers: "auto" takes a backend of the lowest tier that can run the model


def _nothing_missing(device: str) -> str:
    return ""


def _refuses_nothing(file: GGUF, spec: ModelSpec) -> str:
    return ""


@dataclass(frozen=True)
class BackendEntry:
    """A backend: its name, the devices it serves, the default first, and the function that opens a model.

    Backends of one `tier` compete by measured speed; a higher tier is used, with a warning, when no lower one
    can run the model. `missing` says what a device needs that is not installed here, "" if nothing;
    `version` names the library that computes, because figures of another one are not its own; `needs` is the
    memory in bytes, where a model that does not fit must not be tried. `files` are the kinds it runs.
    """

    name: str
    devices: tuple[str, ...]
    open: Callable[[GGUF, ModelSpec, BackendOptions], Backend]
    tier: int = FIRST
    any_architecture: bool = False  # runs models that Stretto's own readers do not know
    missing: Callable[[str], str] = _nothing_missing
    version: Callable[[], str] = kernel_sets.version
    needs: Callable[[GGUF, BackendOptions], int] | None = None
    files: tuple[str, ...] = ("gguf",)
    refuses: Callable[[GGUF, ModelSpec], str] = _refuses_nothing  # why it cannot run a model, "" if it can
    by_name: tuple[str, ...] = ()  # devices that it serves only where `backend=` names it
    places: bool = False  # it divides a model between GPU and CPU

    def serves(self, device: str, named: bool) -> bool:
        """Whether it serves a device, named by the caller or chosen among all."""
        return device in self.devices and (named or device not in self.by_name)


def _native(file: GGUF, spec: ModelSpec, options: BackendOptions) -> Backend:
    from stretto.backends.native import NativeBackend

    placement = choose_placement(
        options.repack, model_memory(file, spec), options.kv, options.cells, options.memory, path=file.path
    )
    backend = NativeBackend(
        file,
        spec,
        options.cells,
        options.threads,
        options.kv,
        precision=options.precision,
        n_slots=options.n_slots(4 * spec.state_floats),
        placement=placement,
    )

    own = file.path  # the backend keeps `open_layer`, and must not keep the file

    def open_layer(part: GGUF, alone: ModelSpec, n_cells: int) -> NativeBackend:
        # The model's own matrices are in memory already; those of a head in a file of its own are packed.
        repack = part.path != own
        return NativeBackend(
            part, alone, n_cells, options.threads, options.kv, repack=repack, precision=options.precision
        )

    backend.next_head = find_next_head(file, spec, open_layer)
    backend.open_head = partial(open_eagle_head, file.path, spec, open_layer)
    return backend


def _native_version() -> str:
    return f"{kernel_sets.version()} {kernel_sets.select()}"


def _reference(file: GGUF, spec: ModelSpec, options: BackendOptions) -> Backend:
    from stretto.backends.reference import ReferenceBackend

    if options.kv == "q8":
        raise Unsupported(
            "the reference backend keeps K and V as float32; kv='q8' needs backend='native'",
            param="kv",
            value=options.kv,
        )
    backend = ReferenceBackend(file, spec, options.cells, options.n_slots(4 * spec.state_floats))
    backend.next_head = find_next_head(file, spec, ReferenceBackend)
    backend.open_head = partial(open_eagle_head, file.path, spec, ReferenceBackend)
    return backend


def _reference_bytes(file: GGUF, options: BackendOptions) -> int:
    return 4 * sum(prod(tensor.shape) for tensor in file.tensors.values())  # all weights as float32


def _llamacpp(file: GGUF, spec: ModelSpec, options: BackendOptions) -> Backend:
    from stretto.backends.llamacpp import LlamaBackend

    if options.precision != "standard":
        raise Unsupported(
            f"the llamacpp backend has no precision={options.precision!r}; backend='native' has",
            param="precision",
            value=options.precision,
        )
    # The cache has to fit; weights are read from the file.
    choose_placement(False, memory(file), options.kv, options.cells, options.memory, path=file.path)
    return LlamaBackend(
        file, spec, options.cells, options.threads, options.kv, repack=options.repack is not False
    )


def _llamacpp_refuses(file: GGUF, spec: ModelSpec) -> str:
    if file.path.is_dir():
        return "it reads GGUF files, and this is a folder"
    if file.quantised_as:
        return "it reads GGUF files as they are, and quantize= changes this one"
    return "it runs decoders, and this is an encoder" if spec.is_encoder else ""


def _llamacpp_missing(device: str) -> str:
    from stretto.backends.llama_library import missing

    return missing(device)


def _llamacpp_version() -> str:
    from stretto.backends.llama_library import version

    return version()


def _torch(file: GGUF, spec: ModelSpec, options: BackendOptions) -> Backend:
    from stretto.backends.torch import open_torch

    return open_torch(file, spec, options)


def _torch_missing(device: str) -> str:
    from stretto.backends.torch.device import missing

    return missing(device)


def _torch_version() -> str:
    from stretto.backends.torch.device import version

    return f"{kernel_sets.version()} {version()}"


BUILT_IN = (
    BackendEntry("native", ("cpu",), _native, version=_native_version),
    BackendEntry("reference", ("cpu",), _reference, tier=ORACLE, needs=_reference_bytes),
    BackendEntry(
        "llamacpp",
        ("cpu",),
        _llamacpp,
        tier=BREADTH,
        any_architecture=True,
        missing=_llamacpp_missing,
        version=_llamacpp_version,
        refuses=_llamacpp_refuses,
    ),
    BackendEntry(
        "torch",
        ("cuda", "cpu"),
        _torch,
        missing=_torch_missing,
        version=_torch_version,
        by_name=("cpu",),
        places=True,
    ),
)


def _onnx(file: GGUF, spec: ModelSpec, options: BackendOptions) -> Backend:
    raise Unsupported(
        f"backend='onnx' runs folders with ONNX files, and {file.path.name} is a GGUF file; make one with: "
        f"stretto export onnx {file.path.name} FOLDER",
        param="backend",
        value="onnx",
    )


def _onnx_missing(device: str) -> str:
    from stretto.backends.onnx_session import find_missing

    return find_missing(device)


def _onnx_version() -> str:
    from stretto.backends.onnx_session import import_runtime

    return f"onnxruntime {import_runtime().__version__}, {_native_version()}"  # which has its products


# Runs other files than those above, so it does not compete with them.
ONNX = BackendEntry(
    "onnx", ONNX_DEVICES, _onnx, missing=_onnx_missing, version=_onnx_version, files=("onnx",)
)

entries_by_name = {entry.name: entry for entry in (*BUILT_IN, ONNX)}


def names() -> tuple[str, ...]:
    """The names of all backends, those of other packages last.

    >>> names()
    ('native', 'reference', 'llamacpp', 'torch', 'onnx')
    """
    return tuple(dict.fromkeys((*entries_by_name, *(point.name for point in _points()))))


def serving(backend: str = "auto", device: str = "auto") -> list[tuple[BackendEntry, str]]:
    """All pairs of a backend and a device that `backend=` and `device=` allow, in order; raises as `choose`.

    Other packages' backends are among them only if no built-in one serves the device, or one is named.
    """
    first, _ = choose(backend, device)
    entries = [first] if backend != "auto" or first not in BUILT_IN else list(BUILT_IN)
    return [
        (entry, each)
        for entry in entries
        for each in (entry.devices if device == "auto" else (device,))
        if entry.serves(each, backend != "auto")
    ]


def choose(backend: str = "auto", device: str = "auto") -> tuple[BackendEntry, str]:
    """The entry for `backend=` and the device for `device=`; `InvalidRequest` says which ones there are.

    "auto" takes the first backend that serves the device, and the first device that the backend serves.
    """
    candidates = _all() if backend == "auto" else iter([_find(backend)])
    devices: list[str] = []
    for entry in candidates:
        if device == "auto" or entry.serves(device, backend != "auto"):
            return entry, entry.devices[0] if device == "auto" else device
        devices += entry.devices
    if backend != "auto":
        others = [entry.name for entry in _all() if device in entry.devices]
        if others:
            raise Unsupported(
                f"device {device!r} is not served by backend={backend!r}, but by backend={others[0]!r}",
                param="device",
                value=device,
            )
    raise _not_one_of("device", device, devices)


def _find(name: str) -> BackendEntry:
    """The entry of that name."""
    if not isinstance(name, str):
        raise _not_one_of("backend", name, names())
    if name not in entries_by_name:
        point = next((point for point in _points() if point.name == name), None)
        if point is None:
            raise _not_one_of("backend", name, names())
        entries_by_name[name] = _load(point)
    return entries_by_name[name]


def _all() -> Iterator[BackendEntry]:
    """All entries, the built-in ones first; other packages are imported only if these do not do."""
    yield from BUILT_IN
    yield from (_find(point.name) for point in _points() if point.name not in {e.name for e in BUILT_IN})


def _points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def _load(point: EntryPoint) -> BackendEntry:
    try:
        entry = point.load()
    except Exception as error:  # another package may raise anything
        raise Unsupported(
            f"backend {point.name!r} cannot be imported from {point.value}: {type(error).__name__}: {error}",
            param="backend",
            value=point.name,
        ) from error
    if not isinstance(entry, BackendEntry) or entry.name != point.name or not entry.devices:
        raise Unsupported(
            f"backend {point.name!r}: {point.value} must be a BackendEntry of that name with a device, "
            f"not {entry!r:.100}",
            param="backend",
            value=point.name,
        )
    return entry


def _not_one_of(name: str, value: object, known: tuple[str, ...] | list[str]) -> InvalidRequest:
    allowed = ", ".join(map(repr, dict.fromkeys(("auto", *known))))
    return InvalidRequest(f"{name} must be one of {allowed}, not {value!r}", param=name, value=value)
