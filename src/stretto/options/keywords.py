"""Options as type checkers read them; `scripts/option_types.py` writes this file from the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from stretto.drafts import Drafter
    from stretto.engine.inside import Capture, Patch
    from stretto.engine.types import Token
    from stretto.parallel.types import Member, ParallelStep
    from stretto.structured import Grammar
    from stretto.tools.check import Choice, Tools


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of everything that samples."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None


class Keywords(SamplingOptions, total=False):
    """Keyword arguments of `generate`, `stream` and `chat`."""

    max_tokens: int | None
    seed: int | None
    stop: str | Callable[[str], bool] | Iterable[str | Callable[[str], bool]]
    stop_tokens: Iterable[int]
    ignore_eos: bool
    repeat_guard: bool
    min_tokens: int
    include_stop: bool
    special: bool
    timeout: float | None
    logprobs: int
    logprob_tokens: Iterable[int]
    sampled_logprobs: bool
    hooks: Iterable[Callable[[NDArray[np.float32], list[int]], None]]
    grammar: Grammar | Mapping[str, Any] | None
    callback: Callable[[Token], Any] | None
    loop: Literal["auto", "python", "fused"]
    priority: int
    best_of: int | None
    beams: int | None
    length_penalty: float
    overflow: Literal["error", "shift"]
    keep: int
    edits: Literal["recompute", "shift", "heal"]
    draft: Drafter | str | None
    draft_branches: int
    reasoning: bool
    reasoning_budget: int | None
    adapter: str | Mapping[str, float] | None
    capture: Capture | None
    patch: Patch | Iterable[Patch]
    cache_salt: str | None
    continues: int


class BranchKeywords(Keywords, total=False):
    """Keyword arguments of `generate`, with `n`."""

    n: int | None


class OptionKeywords(BranchKeywords, total=False):
    """Keyword arguments of `stretto.Options`: all there are."""

    template: Mapping[str, Any] | None


class GenerateKeywords(Keywords, total=False):
    """Keyword arguments of `generate`."""

    progress: bool


class ChatKeywords(Keywords, total=False):
    """Keyword arguments of `chat` and `achat`."""

    tools: Tools | None
    tool_choice: Choice | None
    parallel_tool_calls: bool | None
    template: Mapping[str, Any] | None


class ParallelOptions(TypedDict, total=False):
    """Keyword arguments of `llm.parallel`."""

    threshold: float | Callable[[float], float]
    mode: Literal["isolated", "visible"] | ArrayLike | Callable[[list[Member]], ArrayLike]
    max_width: int
    combine: Literal["mixture", "best"]
    prune: float | None
    prune_after: int
    temperature: float
    delay: int
    attention: bool | Literal["mean"]
    max_tokens: int | None
    stop: str | Callable[[str], bool] | Iterable[str | Callable[[str], bool]]
    stop_tokens: Iterable[int]
    ignore_eos: bool
    timeout: float | None
    hooks: Iterable[Callable[[NDArray[np.float32], list[int]], None]]
    grammar: Grammar | Mapping[str, Any] | None
    callback: Callable[[ParallelStep], Any] | None
    priority: int
    adapter: str | Mapping[str, float] | None
    cache_salt: str | None


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of a server, beside its models, keys and limits of requests."""

    backend: str = "auto"
    device: str = "auto"
    threads: int | None = None
    cells: int | Literal["auto"] = 8192
    kv: Literal["f16", "q8", "f32", "bf16", "fp8"] = "f16"
    precision: Literal["standard", "high"] = "standard"
    repack: bool | Literal["auto", "shared"] = "auto"
    experts: str | int | Sequence[str] | None = None
    gpu_memory: int | None = None
    host: str = "127.0.0.1"
    local: bool = False
    port: int = 8080
    share_prefixes: bool = False
    no_auth: bool = False
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    slot_path: Path | None = None
    remote_images: bool = False
    billing_line: bool = False
    strict: bool = False
    memory: int | None = None
    idle_seconds: float | None = None
    load_seconds: float = 120.0
    checkpoint_bytes: int = 536870912
    max_running: int = 64
    max_queue: int = 256
    key_requests: int | None = None
    key_tokens: int | None = None
    key_cells: int | None = None
    max_sequences: int = 64
    sequence_seconds: float = 600.0
    grace_seconds: float = 10.0
    log: Literal["quiet", "text", "json"] = "quiet"
    cache: Literal["memory", "disk"] = "memory"
    cache_dir: str | PathLike[str] | None = None
    cache_size: int = 2147483648
    cache_writes: int = 68719476736
    repeat_guard: bool = False
