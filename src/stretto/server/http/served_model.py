"""A model of a server, loaded or not: its memory and what its file says, known before it is loaded."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.engine.metrics import HISTORY_SECONDS, Metrics, Second
from stretto.errors import InvalidRequest, ModelError
from stretto.llm import LLM
from stretto.llm.base import EngineModel
from stretto.loading.choose import check_download
from stretto.loading.images import find_encoder, is_hearing
from stretto.models import ModelSpec, read_spec
from stretto.models.summary import make_target, model_memory
from stretto.server.settings import ModelEntry, Settings
from stretto.text.infill import can_infill
from stretto.text.reasoning import find_format
from stretto.weights import hub
from stretto.weights.adapters import read_adapter
from stretto.weights.folder import open_encoder, open_weights
from stretto.weights.hub import is_task
from stretto.weights.memory import memory

AUTO_CELLS = 8192  # that "auto" is on a CPU
SAME_SIZE = {"bf16": "f16", "fp8": "q8"}  # types of GPUs, and others that take about as much
WORKING_BYTES = 64 << 20  # besides weights and cache: vocabulary, activations
ENCODER_VERBS = ("embed", "rerank")  # it has more if its file has classes
TASK_FACTOR = 2  # an ONNX file is in memory once as it is and once as its runtime wants it


@dataclass
class ServedModel:
    """A model, loaded or not."""

    entry: ModelEntry
    path: Path
    need: int  # bytes when loaded
    facts: dict[str, Any]  # from the file
    repack: bool | str = "auto"  # as `stretto.load` takes it: False if the weights have to stay in the file
    llm: LLM | None = None
    loading: asyncio.Task[None] | None = None
    loading_from: int = 0  # bytes of this process in memory when it began
    users: int = 0
    used: float = 0.0  # when it was last leased or released, by the monotonic clock
    loads: int = 0
    load_seconds: float = 0.0  # the last time
    pins: dict[tuple[str, str], Any] = field(default_factory=dict)  # by the names of caller and pin
    timed_pins: dict[str, list[Any]] = field(default_factory=dict)  # by caller, those of `cache_control`
    texts: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # by caller and `id_slot`
    scales: dict[str, float] = field(default_factory=dict)  # of adapters, for requests that name none
    is_task: bool = False  # a model that does not generate, run by `stretto.tasks`
    added: bool = False  # while the server runs, not by the operator's settings
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # a task model computes one input at a time
    waiting: int = 0  # requests for it
    done: Counter[str] = field(default_factory=Counter)  # inputs by verb
    past: list[Second] = field(default_factory=list)  # of its engine before it was unloaded
    counted_before: Metrics | None = None  # by its engines that were unloaded
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # computing, by verb

    def __post_init__(self) -> None:
        self.name = self.entry.name  # in requests

    @property
    def status(self) -> str:
        """Where it stands, in llama-server's words."""
        return "loaded" if self.llm is not None else "loading" if self.loading is not None else "unloaded"

    @property
    def generates(self) -> bool:
        """Whether it makes texts."""
        return "generate" in self.facts["verbs"]

    def is_idle_for(self, seconds: float) -> bool:
        """Whether it is loaded, and no request has used it for so long."""
        return self.llm is not None and not self.users and time.monotonic() - self.used >= seconds

    def note_unload(self) -> None:
        """Keep the history and the counters of the engine that goes."""
        if isinstance(self.llm, LLM):
            self.past = [*self.past, *self.llm.history.seconds()][-HISTORY_SECONDS:]
        self.counted_before = self.metrics

    @property
    def metrics(self) -> Metrics | None:
        """What its engines have counted since the server started; None for a model that never had one."""
        before = self.counted_before
        if not isinstance(self.llm, EngineModel):
            return None if before is None else before.plus(Metrics())
        return self.llm.metrics if before is None else before.plus(self.llm.metrics)

    @contextmanager
    def count_work(self, verb: str, n: int) -> Iterator[None]:
        """Count `n` inputs of a verb and the seconds of the block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.done[verb] += n
            self.seconds[verb] += time.monotonic() - started


def find_context_length(served: ServedModel, settings: Settings) -> int:
    """The tokens that one request may have."""
    if isinstance(served.llm, EngineModel):
        return served.llm.context_length
    length: int = served.facts["context_length"]
    return min(length, AUTO_CELLS if isinstance(settings.cells, str) else settings.cells)


def list_capabilities(served: ServedModel) -> list[str]:
    """What a model can do, by what its file says."""
    facts, verbs = served.facts, served.facts["verbs"]
    generates = "generate" in verbs
    extra = {
        "completion": generates,
        "embedding": "embed" in verbs,
        "tools": generates and "tools" in facts["template"],
        "vision": facts["vision"],
        "audio": facts["audio"],
        "thinking": generates and find_format(facts["template"]) is not None,
        "insert": served.llm is not None and generates and can_infill(served.llm.tokenizer),
    }
    return [name for name, there in extra.items() if there]


def make_served(entry: ModelEntry, settings: Settings, limit: int) -> ServedModel:
    """Read the head of a model's file; raises for a model that can never be loaded within `limit` bytes."""
    return (
        _make_task_model(entry, limit) if is_task(entry.source) else _make_file_model(entry, settings, limit)
    )


def _make_task_model(entry: ModelEntry, limit: int) -> ServedModel:
    packaged = hub.packaged_models().get(entry.source)
    path = hub.resolve(entry.source)
    if not path.is_file():
        raise ModelError("there is no such file", path=path)
    nbytes = packaged.nbytes if packaged else path.stat().st_size
    need = TASK_FACTOR * nbytes + WORKING_BYTES
    if need > limit:
        raise InvalidRequest(
            f"{entry.name} cannot fit: it needs {megabytes(need)}, and models may take {megabytes(limit)}; "
            "give more --memory"
        )
    facts = {
        "architecture": "onnx",
        "parameters": 0,
        "formats": {},
        "context_length": 0,
        "file_bytes": nbytes,
        "modified": path.stat().st_mtime,
        "template": "",
        "license": packaged.license if packaged else "",
        "vision": False,
        "audio": False,
        "verbs": packaged.verbs if packaged else (),
        "memory": {"weights": TASK_FACTOR * nbytes, "working": WORKING_BYTES},
    }
    return ServedModel(entry, path, need, facts, is_task=True)


def _make_file_model(entry: ModelEntry, settings: Settings, limit: int) -> ServedModel:
    path = hub.resolve(entry.source, check=check_download)
    with open_weights(path) as file:
        spec = read_spec(file)
        adapter_bytes = _check_adapters(entry, spec)
        needs = model_memory(file, spec)
        cells = AUTO_CELLS if isinstance(settings.cells, str) else settings.cells
        kind = SAME_SIZE.get(settings.kv, settings.kv)
        cache = needs.cache_bytes("f32" if spec.is_encoder else kind, cells)
        facts = {
            "architecture": str(file.metadata.get("general.architecture", "")),
            "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
            "formats": dict(needs.weights),
            "context_length": needs.context_length,
            "file_bytes": file.nbytes,
            "modified": path.stat().st_mtime,
            "template": entry.template or str(file.metadata.get("tokenizer.chat_template", "") or ""),
            "license": str(file.metadata.get("general.license", "") or ""),
            "verbs": ENCODER_VERBS if spec.is_encoder else LLM.verbs,
        }
    if cache is None:
        raise ModelError("its metadata do not say how large its cache is", path=path)
    encoder_bytes = 0
    if entry.vision is not None:
        with open_encoder(find_encoder(entry.vision)) as file:
            encoder_bytes = memory(file).packed_bytes
    facts["audio"] = entry.vision is not None and is_hearing(entry.vision)
    facts["vision"] = entry.vision is not None and not facts["audio"]
    repack = settings.repack
    need = needs.packed_bytes + encoder_bytes + adapter_bytes + cache + WORKING_BYTES
    if repack is False or (repack == "auto" and need > limit and settings.device != "cuda"):
        repack = False
        need -= needs.packed_bytes
    facts["memory"] = {
        "weights": needs.packed_bytes if repack is not False else 0,
        "image encoder": encoder_bytes,
        "cache": cache,
        "working": WORKING_BYTES,
    }
    if need > limit:
        raise InvalidRequest(
            f"{entry.name} cannot fit: it needs {megabytes(need)} "
            f"({megabytes(need - cache - WORKING_BYTES)} of weights, "
            f"{megabytes(cache)} for {cells:,} cells, {megabytes(WORKING_BYTES)} to work with), "
            f"and models may take {megabytes(limit)}; give fewer --cells, or more --memory"
        )
    return ServedModel(entry, path, need, facts, repack)


def _check_adapters(entry: ModelEntry, spec: ModelSpec) -> int:
    """The bytes of a model's adapters; raises for one that is not for this model."""
    target = make_target(spec)
    return sum(read_adapter(path, target).nbytes for _, path in entry.adapters)


def megabytes(nbytes: int) -> str:
    """Bytes for people: `98 MB`."""
    return f"{nbytes / 1e6:,.0f} MB"
