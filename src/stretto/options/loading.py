"""The options of `stretto.load`, and of every command that loads a model; `LoadOptions` holds one load's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

from stretto.errors import InvalidRequest
from stretto.options.option import Option, table

CacheType = Literal["f16", "q8", "f32", "bf16", "fp8"]
GPU_CACHE_TYPES = ("bf16", "fp8")  # that only GPUs have
Precision = Literal["standard", "high"]
Packing = bool | Literal["auto", "shared"]

_TASKS = "embed rerank classify detect segment read transcribe"
_COMMANDS = "run chat parallel score eval perplexity bench loops serve deploy"


def is_choice_of_experts(value: Any) -> bool:
    """Whether the option `experts` takes a value: a word, a number of layers, or patterns of names."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value >= 0
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(each, str) and each for each in value)
    return value is None or (isinstance(value, str) and value != "")


MACHINE = table(
    Option("backend", str, "auto",
        'What runs the model: native, torch, onnx …; "auto" takes the fastest that can (stretto docs '
        "routing).",
        more="llm.route says what was chosen, what else was possible, and why not."),
    Option("device", str, "auto", 'Where it runs: "cpu", "cuda" …; "auto" chooses by measurement.',
        commands=f"{_COMMANDS} {_TASKS}"),
    Option("threads", int | None, None, "Threads that compute; by default as many as suit the machine.",
        low=1, high=1024, commands=f"{_COMMANDS} {_TASKS} imatrix compare devices",
        aka=("n_threads", "num_thread", "num_threads", "n_threads_batch", "threads_batch")),
    Option("cells", int | Literal["auto"], 8192,
        'Size of the KV cache in tokens, shared by all sequences, and so the longest context; "auto" takes '
        "what is free on a GPU (stretto docs cuda), and 8,192 on a CPU.",
        low=1, high=1 << 24, commands="run chat parallel score eval bench serve deploy inspect",
        aka=("n_ctx", "num_ctx", "ctx_size", "context_size", "context_length", "max_model_len", "max_seq_len",
            "max_seq_length", "max_context_len")),
    Option("kv", CacheType, "f16",
        'Type of the KV cache; "q8" halves its memory, "f32" doubles it and rounds nothing; "bf16" and "fp8" '
        "are for GPUs (stretto docs cuda).",
        commands=f"{_COMMANDS} inspect",
        aka=("kv_cache_dtype", "type_k", "type_v", "cache_type_k", "cache_type_v", "cache_implementation")),
    Option("precision", Precision, "standard",
        'Activations in 8 bits; "high": in 16, nearer to the weights, and slower (stretto docs precision).'),
    Option("repack", Packing, "auto",
        "Pack the weights in memory. False reads them from the file, for one larger than memory: a little "
        'slower, the same results. "auto" does so if they do not fit; llm.backend.placement says what was '
        'chosen and why. "shared" packs them into a file under ~/.cache/stretto/packed that all processes '
        "map, so that many processes hold them once.",
        more="For an ONNX folder on the CPU, False leaves its products to ONNX Runtime; llm.backend.packing "
        "says who computes them.",
        commands=_COMMANDS.replace(" deploy", "")),
    Option("experts", "str | int | Sequence[str] | None", None,
        'Experts that the CPU computes where a model is larger than the GPU: "auto" those of as few layers '
        'as will do, "cpu" all, a number those of so many layers, or patterns of their tensors\' names, such '
        'as "blk.[0-9].*" (stretto docs cuda).',
        words="str | int | list[str] | None", unit="auto|cpu|N|PATTERN",
        test=is_choice_of_experts, takes='"auto", "cpu", a number of layers or patterns of names',
        commands=f"{_COMMANDS} inspect", aka=("n_cpu_moe", "cpu_moe", "override_tensor")),
    Option("gpu_memory", int | None, None,
        "What a model may take of the GPU's memory; by default all that is free.",
        low=1, high=1 << 50, unit="bytes", commands=f"{_COMMANDS} inspect"),
    at="load", commands=_COMMANDS, panel="Backend",
)  # fmt: skip

LOAD = MACHINE + table(
    Option("quantize", str | None, None,
        'Quantise the weights while they are loaded, such as "q4_k" (stretto docs mixes has the names), '
        "for a file or folder in F16, BF16 or F32; the file stays as it is.",
        aka=("quantization", "quantization_config", "load_in_4bit", "load_in_8bit")),
    Option("exact", bool, True,
        "False lets a GPU use its fastest kernels, whose last bits depend on what else is in the batch; a "
        "CPU is exact either way."),
    Option("chat_template", "str | PathLike[str] | None", None,
        "A chat template in place of the model's own: Jinja, the path of a file with it, or a name such as "
        "chatml or llama3."),
    Option("prefix_cache", bool, True, "Keep the KV cache of prompts for later ones that begin alike.",
        aka=("enable_prefix_caching", "cache_prompt", "prompt_cache")),
    Option("limits", "Limits | None", None,
        "A stretto.Limits: how many requests may run and wait, how long a step may take, how many bytes the "
        "checkpoints of recurrent layers may take (stretto docs cache).",
        aka=("max_num_seqs", "max_num_batched_tokens", "n_batch", "n_ubatch", "num_batch", "batch_size",
            "n_parallel", "n_seq_max")),
    Option("vision", "str | PathLike[str] | None", None,
        "The mmproj file that lets the model see images or hear sounds.",
        words="path | None", commands="run chat", unit="file",
        aka=("mmproj", "clip_model_path", "mmproj_path", "projector")),
    Option("image_cache", "bool | str | PathLike[str] | ImageCache", True,
        "Keep encoded images, 64 MiB in memory and 512 MiB in files under ~/.cache/stretto/images, so that "
        "none is encoded twice; another folder, a stretto.ImageCache with limits of your own, or False to "
        "keep nothing.",
        words="bool | path | ImageCache"),
    at="load",
)  # fmt: skip
DISK = table(
    Option("cache", Literal["memory", "disk"], "memory",
        'Where the KV cache of finished prompts is kept for later ones; "disk": in files too, so that no '
        "prompt is computed twice, not even after a restart (stretto docs cache)."),
    Option("cache_dir", "str | PathLike[str] | None", None,
        "The folder of these files, which nobody else may enter; by default prefixes in ~/.cache/stretto.",
        words="path | None", unit="folder"),
    Option("cache_size", int, 2 << 30, "What they may take; those used longest ago are removed.",
        low=0, high=1 << 50, unit="bytes"),
    Option("cache_writes", int, 64 << 30, "What may be written to them in a day, as disks wear out.",
        low=0, high=1 << 50, unit="bytes"),
    at="load", commands="serve deploy", panel="Models and memory",
)  # fmt: skip
LOAD += DISK
BY_NAME = {option.name: option for option in LOAD}


@dataclass(frozen=True)
class LoadOptions:
    """The options of one `stretto.load`, checked; they go through `stretto.loading` whole.

    >>> LoadOptions(kv="q8", cells="auto").n_cells
    8192
    """

    backend: str = "auto"
    device: str = "auto"
    threads: int | None = None
    cells: int | str = 8192
    kv: str = "f16"
    precision: str = "standard"
    repack: bool | str = "auto"
    experts: str | int | Sequence[str] | None = None
    gpu_memory: int | None = None
    quantize: str | None = None
    exact: bool = True
    chat_template: str | PathLike[str] | None = None
    prefix_cache: bool = True
    limits: Any = None  # a `stretto.Limits`
    vision: str | PathLike[str] | None = None
    image_cache: Any = True  # bool, path, or a `stretto.ImageCache`
    cache: str = "memory"
    cache_dir: str | PathLike[str] | None = None
    cache_size: int = 2 << 30
    cache_writes: int = 64 << 30

    def __post_init__(self) -> None:
        for option in LOAD:
            option.check(getattr(self, option.name))
        if self.cache == "disk" and not self.prefix_cache:
            raise InvalidRequest(
                'cache="disk" keeps the prefix cache in files, and prefix_cache=False is without one; '
                "leave one of them out",
                param="cache",
            )

    @property
    def chosen_experts(self) -> str | int | tuple[str, ...] | None:
        """The option `experts`, with patterns as a tuple."""
        experts = self.experts
        if isinstance(experts, str) and experts not in ("auto", "cpu"):
            return (experts,)
        return experts if isinstance(experts, (str, int)) or experts is None else tuple(experts)

    @property
    def n_cells(self) -> int:
        """The number of cells; with "auto" that of a CPU, and a GPU takes what is free."""
        return 8192 if isinstance(self.cells, str) else self.cells
