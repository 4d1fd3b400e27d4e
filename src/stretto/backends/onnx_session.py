"""The one place where ONNX Runtime sessions are made, for decoders and for tasks.

    session = open_session("model.onnx", device="cpu", threads=2)
    session.file.inputs                       # names, types and shapes, from the file
    session.run({"pixel_values": pixels})     # {name of an output: array}

The file is checked before ONNX Runtime sees it (stretto.weights.onnx). A device stands for one of its
execution providers. What was asked for is compared with what the session got: nothing falls back silently.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.base import AUTOMATIC, PROVIDERS
from stretto.errors import ModelError, RouteWarning, Unsupported, wrong_value
from stretto.weights.onnx import Graph, OnnxFile, OnnxLimits, ValueInfo, files_stamp, read_onnx

CPU = PROVIDERS["cpu"][0]
INDEXED = ("cuda", "tensorrt", "migraphx", "directml")  # there may be several: "cuda:1"
LOG_ERRORS_ONLY = 3
FIRST_ARENA_BYTES = 1 << 20
EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
EXTRA = "pip install 'stretto[onnx]'"
OLDEST, NEWEST = (1, 23), (1, 31)  # of ONNX Runtime that `make check-onnx` tests
MERGED = (1, 24)  # the first one that opens merged decoders; before, some of them end the process
RIGHT_WINDOWS = (1, 24)  # the first one whose windows have as many tokens as they say, and not one more
RIGHT_CAPS = (1, 27)  # the first one whose Attention caps scores before it masks them
WINDOW = "local_window_size"
OPENVINO_TYPES = ("CPU", "GPU", "NPU")  # OpenVINO's own devices: "openvino:GPU"

Array = NDArray[Any]
DEFAULT_LIMITS = OnnxLimits()
_allocator_lock = Lock()  # an allocator is registered for the process, then taken by one session


@dataclass
class OnnxSession:
    """A model that ONNX Runtime has opened. `raw` is its `InferenceSession`; `run` is enough for most uses.

    `skipped` says for each device that "auto" passed over why it did.
    """

    file: OnnxFile
    device: str
    providers: tuple[str, ...]
    raw: Any
    skipped: Mapping[str, str] = field(default_factory=dict)
    index: int = 0  # of the device, where there are several

    def run(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Compute `outputs`, all of them by default, from arrays by the names of the inputs."""
        names = list(self.file.outputs if outputs is None else outputs)
        try:
            results = self.raw.run(names, {name: np.ascontiguousarray(x) for name, x in feeds.items()})
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise make_failure(error, self.file) from error
        return dict(zip(names, results, strict=True))

    def close(self) -> None:
        """Free the session."""
        self.raw = None


@dataclass(frozen=True)
class Replacement:
    """A graph that was made from a checked file, opened in its place, and the library with its operators."""

    model: bytes
    library: str = ""  # if it needs one


def open_session(
    model: str | os.PathLike[str] | OnnxFile,
    device: str = "auto",
    threads: int | None = None,
    *,
    limits: OnnxLimits = DEFAULT_LIMITS,
    memory: int | None = None,
    options: Mapping[str, str] | None = None,
    fast: bool = False,
    spin: bool = True,
    replacement: Replacement | None = None,
) -> OnnxSession:
    """Check a model file and open it with ONNX Runtime on a device.

    `device` is a key of `PROVIDERS`, also with a number ("cuda:1") or a device of OpenVINO's
    ("openvino:GPU"), or "auto": CUDA if it works here, else the CPU. `memory` limits the bytes that tensors
    may take. `options` are those of the execution provider.
    `fast=True` allows kernels that round more (KleidiAI on ARM). `spin=False` lets threads sleep at once
    between operators: slower, but idle cores are free. `replacement` is opened in place of the file's own
    graph. `ModelError` says what is wrong with the file,
    `Unsupported` which package has a device that is missing.
    """
    runtime = import_runtime()
    name, index = _parse_device(device)
    file = model if isinstance(model, OnnxFile) else read_onnx(model, limits)
    _refuse_caps(file, runtime)
    if runtime_version(runtime) < RIGHT_WINDOWS and _has_windows(file):
        replacement = _shorten_windows(file, runtime, replacement)
    skipped: dict[str, str] = {}
    for candidate in AUTOMATIC if name == "auto" else (name,):
        try:
            settings = _settings(runtime, threads, fast, spin)
            source = _source(settings, file, replacement)
            raw = _open(runtime, file, source, candidate, index, settings, memory, dict(options or {}))
        except Unsupported as error:
            if name != "auto" or candidate == "cpu":
                raise
            skipped[candidate] = str(error)
            continue
        if files_stamp(file) != file.stamp:
            raise ModelError("the file changed while it was opened; load it again", path=file.path)
        return OnnxSession(file, candidate, tuple(raw.get_providers()), raw, skipped, index)
    raise AssertionError("the CPU is the last candidate")


def open_compiled(path: Path, device: str = "auto", threads: int | None = None) -> OnnxSession:
    """Open a file of ONNX Runtime's own format (`.ort`), which nothing checks here: only of the catalogue.

    The session's `file` has its inputs and outputs and nothing else. Such files are made for the CPU, which
    "auto" takes.
    """
    runtime = import_runtime()
    name, index = _parse_device("cpu" if device == "auto" else device)
    file = OnnxFile(path, "", 0, {}, {}, Graph("", (), {}, {}, {}))
    settings = _settings(runtime, threads, fast=False, spin=True)
    raw = _open(runtime, file, str(path), name, index, settings, None, {})
    inputs, outputs = (
        {one.name: ValueInfo(one.name, one.type, tuple(one.shape)) for one in values}
        for values in (raw.get_inputs(), raw.get_outputs())
    )
    graph = replace(file.graph, inputs=inputs, outputs=outputs)
    return OnnxSession(replace(file, graph=graph), name, tuple(raw.get_providers()), raw, {}, index)


def available_devices() -> tuple[str, ...]:
    """The devices that the installed ONNX Runtime was built for; whether one works, opening it tells.

    >>> available_devices()
    ('cpu',)
    """
    built = set(import_runtime().get_available_providers())
    return tuple(name for name, (provider, _) in PROVIDERS.items() if provider in built)


def find_missing(device: str) -> str:
    """What has to be installed for a device, in words; "" if nothing."""
    try:
        built = import_runtime().get_available_providers()
    except Unsupported as error:
        return str(error)
    provider, package = PROVIDERS[device]
    return "" if provider in built else f"install {package}, which has {provider}"


def import_runtime() -> Any:
    """The module `onnxruntime`, or `Unsupported` that says how to install it."""
    try:
        runtime = import_module("onnxruntime")
    except ImportError as error:
        raise Unsupported(f"ONNX models need ONNX Runtime: {EXTRA} ({error})") from error
    version = runtime_version(runtime)
    if version < OLDEST:
        raise Unsupported(
            f"ONNX Runtime {runtime.__version__} cannot open the graphs of `stretto export onnx`; "
            f"{_dotted(OLDEST)} and later can: pip install --upgrade onnxruntime"
        )
    if version > NEWEST:
        warnings.warn(
            f"ONNX Runtime {runtime.__version__} is newer than {_dotted(NEWEST)}, the newest one tested",
            RouteWarning,
            stacklevel=2,
        )
    return runtime


def runtime_version(runtime: Any) -> tuple[int, int]:
    """Major and minor version of the module `onnxruntime`.

    >>> runtime_version(import_runtime()) >= OLDEST
    True
    """
    major, minor = runtime.__version__.split(".")[:2]
    return int(major), int(minor)


def require_merged(file: OnnxFile) -> None:
    """Refuse a merged decoder where ONNX Runtime would end the process, instead of opening it."""
    version = import_runtime().__version__
    if runtime_version(import_runtime()) < MERGED:
        raise Unsupported(
            f"{file.path.name} is a merged decoder, and ONNX Runtime {version} ends the process on such; "
            f"{_dotted(MERGED)} opens it (Python 3.11 and later): pip install --upgrade onnxruntime"
        )


def _refuse_caps(file: OnnxFile, runtime: Any) -> None:
    """Refuse capped scores where ONNX Runtime caps masked ones too, after which they are seen."""
    capped = any(node.attributes.get("softcap", 0) != 0 for node in file.nodes("Attention"))
    if capped and runtime_version(runtime) < RIGHT_CAPS:
        raise _wrongly(file, runtime, "Attention with softcap", RIGHT_CAPS, ", or export the model again")


def _has_windows(file: OnnxFile) -> bool:
    """Whether any GroupQueryAttention has a window; one that a function's caller sets counts."""
    return any(node.attributes.get(WINDOW, -1) != -1 for node in file.nodes("GroupQueryAttention"))


def _shorten_windows(file: OnnxFile, runtime: Any, replacement: Replacement | None) -> Replacement:
    """The graph with windows of one token less, which mean to an old ONNX Runtime what the file says."""
    try:
        import onnx
    except ImportError as error:
        raise Unsupported(f"windows of {file.path.name} need onnx: {EXTRA} ({error})") from error
    if replacement is None:
        model = onnx.load(str(file.path), load_external_data=False)
    else:
        model = onnx.ModelProto.FromString(replacement.model)
    for graph in (model.graph, *model.functions):
        for node in _every_node(graph.node):
            for attribute in node.attribute:
                if node.op_type != "GroupQueryAttention" or attribute.name != WINDOW:
                    continue
                if attribute.ref_attr_name:
                    raise _wrongly(file, runtime, f"{WINDOW} in a function", RIGHT_WINDOWS)
                attribute.i -= int(attribute.i > 0)
    return Replacement(model.SerializeToString(), replacement.library if replacement is not None else "")


def _every_node(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes of a graph, and those of its subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _every_node(graph.node)


def _wrongly(
    file: OnnxFile, runtime: Any, what: str, right: tuple[int, int], remedy: str = ""
) -> Unsupported:
    """The error for a file with something that this ONNX Runtime computes wrongly."""
    return Unsupported(
        f"{file.path.name} uses {what}, which ONNX Runtime {runtime.__version__} computes wrongly; install "
        f"{_dotted(right)} or newer (Python 3.11 or newer){remedy}",
        param="model",
        value=str(file.path),
    )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _parse_device(device: str) -> tuple[str, int]:
    """The device's name, which has OpenVINO's own device behind it, and number."""
    name, colon, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if name == "openvino" and number in OPENVINO_TYPES:
        return device, 0
    known = name == "auto" or name in PROVIDERS
    if not known or (colon and (name not in INDEXED or not number.isdecimal() or len(number) > 4)):
        allowed = ", ".join(map(repr, ("auto", *PROVIDERS)))
        raise wrong_value("device", device, f"one of {allowed}")
    return name, int(number or 0)


def _open(
    runtime: Any,
    file: OnnxFile,
    source: str | bytes,
    device: str,
    index: int,
    settings: Any,
    memory: int | None,
    options: dict[str, str],
) -> Any:
    """A session on exactly that device."""
    name, _, device_type = device.partition(":")
    provider, package = PROVIDERS[name]
    if provider not in runtime.get_available_providers():
        raise Unsupported(
            f"device {device!r} needs {provider}, which ONNX Runtime {runtime.__version__} lacks here; "
            f"install {package}",
            param="device",
            value=device,
        )
    if device_type:
        options.setdefault("device_type", device_type)
    if device in INDEXED:
        options.setdefault("device_id", str(index))
    if memory is not None and device in ("cuda", "tensorrt"):
        options.setdefault("gpu_mem_limit" if device == "cuda" else "trt_max_workspace_size", str(memory))
    wanted = [(provider, options)] + ([] if provider == CPU else [(CPU, {})])
    with _allocator_lock:
        if memory is not None:
            _register_allocator(runtime, memory)
            settings.add_session_config_entry("session.use_env_allocators", "1")
        try:
            raw = runtime.InferenceSession(source, settings, providers=wanted)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise make_failure(error, file, f"open it on {device!r}") from error
    raw.disable_fallback()
    raw._model_bytes = None  # kept for the fallback: a graph in place of the file's, with its embedding
    if provider not in raw.get_providers():
        raise Unsupported(
            f"device {device!r}: {provider} is built in but does not work here; ONNX Runtime would use "
            f"{', '.join(raw.get_providers())} instead; check its libraries, or take device='cpu'",
            param="device",
            value=device,
        )
    return raw


def _settings(runtime: Any, threads: int | None, fast: bool, spin: bool) -> Any:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise wrong_value("threads", threads, "at least 1")
    settings = runtime.SessionOptions()
    settings.log_severity_level = LOG_ERRORS_ONLY
    settings.intra_op_num_threads = threads or _usable_cpus()
    settings.inter_op_num_threads = 1
    settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    if not fast:  # on ARM its products of 4-bit weights are further from exact than the others
        settings.add_session_config_entry("mlas.disable_kleidiai", "1")
    return settings


def _source(settings: Any, file: OnnxFile, replacement: Replacement | None) -> str | bytes:
    """The path of a file, or the graph in its place, whose other tensors lie where those of the file do."""
    if replacement is None:
        return str(file.path)
    try:
        if replacement.library:
            settings.register_custom_ops_library(replacement.library)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise make_failure(error, file, "load our operators") from error
    settings.add_session_config_entry(EXTERNAL_FOLDER, str(file.path.parent))
    return replacement.model


def _usable_cpus() -> int:
    """Processors that this process may run on; ONNX Runtime would count all of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _register_allocator(runtime: Any, memory: int) -> None:
    """The arena that the next session of this process takes, which has an end."""
    place = runtime.OrtMemoryInfo(
        "Cpu", runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, runtime.OrtMemType.DEFAULT
    )
    as_requested, unlimited_dead_bytes = 1, -1
    arena = runtime.OrtArenaCfg(
        {
            "max_mem": memory,
            "arena_extend_strategy": as_requested,
            "initial_chunk_size_bytes": min(FIRST_ARENA_BYTES, memory),
            "max_dead_bytes_per_chunk": unlimited_dead_bytes,
        }
    )
    runtime.create_and_register_allocator(place, arena)


def make_failure(error: Exception, file: OnnxFile, what: str = "compute it") -> ModelError:
    """The error of what ONNX Runtime has refused or broken off, on one line of reasonable length."""
    text = " ".join(str(error).split())
    return ModelError(f"ONNX Runtime cannot {what}: {text:.500}", path=file.path)
