"""Types of the native core; the code is in csrc/."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

dequantizable: tuple[int, ...]
quantizable: tuple[int, ...]
packed_version: int

def dequantize(code: int, data: NDArray[np.uint8]) -> NDArray[np.float32]: ...
def strings_end(data: NDArray[np.uint8], offset: int, count: int) -> int | None: ...
def read_strings(data: NDArray[np.uint8], offset: int, count: int) -> list[str]: ...
def merge_ids(
    data: NDArray[np.uint8], tokens_at: int, n_tokens: int, merges_at: int, n_merges: int
) -> NDArray[np.int32] | None: ...
def kernels() -> str: ...
def kernel_names(compiled: bool = True) -> list[str]: ...
def cpu_features() -> tuple[str, ...]: ...
def dot_instructions() -> tuple[str, ...]: ...
def finish_unlocked(seconds: float) -> None: ...
def guard(mapped: Any) -> int: ...
def unguard(number: int) -> None: ...
def is_broken(number: int) -> bool: ...
def broken_mappings() -> int: ...
def json_outline(
    data: bytes, piece_bytes: int, max_depth: int
) -> tuple[int, int, int, bool, list[tuple[int, int, int]]]: ...
def read_bandwidth(nbytes: int, threads: list[int], seconds: float) -> list[float]: ...
def integer_peak(instruction: str, threads: int, seconds: float) -> float: ...
def sample(
    logits: NDArray[np.float32],
    uniform: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition: float,
    presence: float,
    frequency: float,
    tokens: NDArray[np.int32] | None = None,
    n_prompt: int = 0,
    biased: NDArray[np.int32] | None = None,
    bias: NDArray[np.float32] | None = None,
    mask: NDArray[np.uint32] | None = None,
) -> int: ...
def log_probability(logits: NDArray[np.float32], token: int) -> float: ...
def draw_rows(
    rows: list[NDArray[np.float32]],
    numbers: tuple[float, int, float, float],
    uniforms: list[float],
    decoder: Decoder | None = None,
) -> list[tuple[int, float]]: ...
def sample_rows(
    rows: NDArray[np.float32],
    numbers: list[tuple[float, int, float, float]],
    uniforms: list[float],
    decoder: Decoder | None = None,
) -> list[int]: ...

class OnnxMatrix:
    number: int

    def __init__(
        self,
        code: int,
        data: NDArray[np.uint8],
        rows: int,
        columns: int,
        threads: int,
        kernels: str = "",
    ) -> None: ...

expert_function: int

def expert_failures() -> int: ...

class ExpertTask:
    address: int

    def __init__(
        self,
        decoder: Decoder | None,
        layer: int,
        rows: NDArray[np.float32],
        chosen: NDArray[np.int32],
        weights: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None: ...
    def run(self) -> None: ...
    def take_failure(self) -> bool: ...

class Mixture:
    error: int

    def __init__(
        self,
        rows: NDArray[np.float32],
        order: list[int],
        temperature: float = 1.0,
        decoder: Decoder | None = None,
    ) -> None: ...
    def pick(
        self, weights: list[float], threshold: float, most: int
    ) -> tuple[int, list[int], list[float]]: ...
    def probabilities(self, tokens: list[int]) -> list[list[float]]: ...
    def log_probabilities(self, tokens: list[int]) -> list[list[float]]: ...

def call_hook(function: int, state: int, logits: NDArray[np.float32], tokens: NDArray[np.int32]) -> None: ...
def uniform(seed: int, index: int, draw: int) -> float: ...
def check_spec(spec: dict[str, Any]) -> None: ...

SPAN: int
ALIGN: int
SHARED_ROWS: int
PROMPT_ROWS: int

class DevicePlanner:
    unsent: int
    capacity: int

    def __init__(
        self, n_cells: int, n_vocab: int, n_slots: int, capacity: int, kinds: list[tuple[int, bool]], few: int
    ) -> None: ...
    def decode(
        self,
        tokens: list[int],
        positions: list[int],
        cells: list[int],
        sequences: list[int],
        edits: list[int],
        counts: list[int],
        stores: list[NDArray[np.int32]],
        table: NDArray[np.int32],
        slots: list[int],
        rotated: NDArray[np.int32] | None,
        bucket: int,
        most_slots: int,
        block: NDArray[np.int32],
    ) -> tuple[int, bool]: ...
    def plan(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        cells: NDArray[np.int32],
        views: list[NDArray[np.int32]],
        sequences: list[int],
        edits: list[int],
        view_of: NDArray[np.int32],
        lengths: NDArray[np.int32],
        causal: NDArray[np.int32] | None,
        table: NDArray[np.int32],
        slots: NDArray[np.int32] | None,
        rotated: NDArray[np.int32] | None,
        n_padded: int,
    ) -> tuple[int, int, list[int]]: ...
    def blank(self, bucket: int, block: NDArray[np.int32]) -> int: ...
    def copy_block(self, block: NDArray[np.int32]) -> None: ...
    def copy_unsent(self, block: NDArray[np.int32]) -> None: ...
    def clear(self) -> None: ...

class Decoder:
    kernels: str
    threads: int
    active_threads: int
    weight_bytes: int
    cache_bytes: int
    cell_bytes: int
    n_slots: int
    slot_bytes: int
    n_deferred: int

    def __init__(
        self,
        spec: dict[str, Any],
        n_cells: int,
        kv: str,
        threads: int,
        kernels: str,
        precision: str = "standard",
        n_slots: int = 0,
    ) -> None: ...
    def tensors(self) -> list[tuple[str, int, int]]: ...
    def set_unpacked(
        self, name: str, code: int, rows: int, columns: int, data: NDArray[np.uint8]
    ) -> None: ...
    def pack_rows(
        self, name: str, code: int, rows: int, columns: int, data: NDArray[np.uint8], count: int
    ) -> None: ...
    def renew(self, name: str) -> None: ...
    def defer(self, name: str, code: int, rows: int, columns: int, data: NDArray[np.uint8]) -> None: ...
    def pack_deferred(self, stop: NDArray[np.uint8]) -> None: ...
    def set_packed(self, name: str, code: int, rows: int, columns: int, data: NDArray[np.uint8]) -> None: ...
    def packed(self, name: str) -> NDArray[np.uint8]: ...
    def set_vector(self, name: str, data: NDArray[np.float32]) -> None: ...
    def forward(
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        cells: NDArray[np.int32],
        views: list[NDArray[np.int32]],
        view_of: NDArray[np.int32],
        lengths: NDArray[np.int32],
        table: NDArray[np.int32],
        wanted: NDArray[np.int32],
        vectors: dict[int, NDArray[np.float32]],
        hidden: bool,
        probes: NDArray[np.int32],
        watched: NDArray[np.int32],
        rotated: NDArray[np.int32] | None = None,
        slots: NDArray[np.int32] | None = None,
        causal: NDArray[np.int32] | None = None,
        types: NDArray[np.int32] | None = None,
        adapters: list[tuple[int, NDArray[np.float32]]] = ...,
        taps: list[tuple[int, int, NDArray[np.int32], NDArray[np.float32], bool]] = ...,
        change: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]: ...
    def project(self, name: str, rows: NDArray[np.float32]) -> NDArray[np.float32]: ...
    def decode(
        self,
        tokens: list[int],
        positions: list[int],
        cells: list[int],
        views: list[NDArray[np.int32]],
        lengths: list[int],
        table: NDArray[np.int32],
        slots: list[int] = ...,
        adapters: list[tuple[int, NDArray[np.float32]]] = ...,
    ) -> NDArray[np.float32]: ...
    def add_change(
        self,
        adapter: int,
        name: str,
        rank: int,
        scale: float,
        a_code: int,
        a: NDArray[np.uint8],
        b_code: int,
        b: NDArray[np.uint8],
    ) -> None: ...
    def add_vector(self, adapter: int, layer: int, vector: NDArray[np.float32]) -> None: ...
    def remove_adapter(self, adapter: int) -> None: ...
    def copy_slots(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None: ...
    def clear_slots(self, slots: NDArray[np.int32]) -> None: ...
    def read_slots(self, slots: NDArray[np.int32]) -> NDArray[np.uint8]: ...
    def write_slots(self, slots: NDArray[np.int32], data: NDArray[np.uint8]) -> None: ...
    def collect(self, wanted: bool) -> None: ...
    def collected(self) -> list[tuple[str, NDArray[np.float64], int]]: ...
    def received(self) -> NDArray[np.float32]: ...
    def watched(self) -> NDArray[np.float32]: ...
    def loop(
        self,
        logits: NDArray[np.float32],
        cells: NDArray[np.int32],
        position: int,
        view: NDArray[np.int32],
        n_view: int,
        table: NDArray[np.int32],
        sampling: tuple[float, ...],
        tokens: NDArray[np.int32] | None,
        n_prompt: int,
        biased: NDArray[np.int32] | None,
        bias: NDArray[np.float32] | None,
        seed: int,
        index: int,
        draws: int,
        ends: list[int],
        hooks: list[tuple[int, int]],
        mask: NDArray[np.uint32] | None,
        guide: Callable[[int, int], tuple[list[int], bool]] | None,
        interrupt: NDArray[np.uint8] | None = None,
        slot: int = -1,
        adapters: list[tuple[int, float]] = ...,
    ) -> tuple[list[int], NDArray[np.float32], int, int, int, float]: ...
    def copy_cells(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None: ...
    def rotate_cells(self, cells: NDArray[np.int32], delta: int) -> None: ...
    def read_cells(self, cells: NDArray[np.int32]) -> NDArray[np.uint8]: ...
    def write_cells(self, cells: NDArray[np.int32], data: NDArray[np.uint8]) -> None: ...

class Vision:
    kernels: str
    threads: int

    def __init__(
        self,
        n_embd: int,
        n_ff: int,
        n_head: int,
        norm_eps: float,
        activation: str,
        threads: int,
        kernels: str,
        precision: str = "standard",
    ) -> None: ...
    def set_matrix(self, name: str, code: int, rows: int, columns: int, data: NDArray[np.uint8]) -> None: ...
    def set_vector(self, name: str, data: NDArray[np.float32]) -> None: ...
    def set_clamp(self, name: str, low: float, high: float, low_out: float, high_out: float) -> None: ...
    def set_attention(self, scale: float, value_norm: bool, pairs: NDArray[np.int32]) -> None: ...
    def multiply(self, name: str, x: NDArray[np.float32], activation: str) -> NDArray[np.float32]: ...
    def norm(self, name: str, x: NDArray[np.float32], eps: float) -> NDArray[np.float32]: ...
    def look(
        self,
        name: str,
        x: NDArray[np.float32],
        q: NDArray[np.float32],
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        rotation: NDArray[np.float32],
        first: int,
        last: int,
    ) -> None: ...
    def mix(
        self,
        name: str,
        x: NDArray[np.float32],
        q: NDArray[np.float32],
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        windows: NDArray[np.int32],
        first: int,
        last: int,
    ) -> None: ...

class _Governor:
    """Decides how many threads of a pool to use."""

    active: int

    def __init__(self, most: int) -> None: ...
    def add(self, wall: float, computed: float, now: float) -> None: ...

class _Operators:
    """The submodule `ops`: the operators of the decoder, each alone; `kernels=""` are the best."""

    Governor: type[_Governor]

    def quantize_rows(
        self, x: NDArray[np.float32], kernels: str = "", precision: str = "standard"
    ) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]: ...
    def matmul(
        self,
        code: int,
        data: NDArray[np.uint8],
        rows: int,
        columns: int,
        x: NDArray[np.float32],
        kernels: str = "",
        precision: str = "standard",
    ) -> NDArray[np.float32]: ...
    def add_narrow(
        self,
        data: NDArray[np.uint8],
        rank: int,
        x: NDArray[np.float32],
        y: NDArray[np.float32],
        kernels: str = "",
    ) -> NDArray[np.float32]: ...
    def packed_bytes(self, code: int, rows: int, columns: int) -> int: ...
    def unpack(self, code: int, data: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.float32]: ...
    def rms_norm(
        self, x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, kernels: str = ""
    ) -> NDArray[np.float32]: ...
    def add(
        self, x: NDArray[np.float32], y: NDArray[np.float32], kernels: str = ""
    ) -> NDArray[np.float32]: ...
    def silu(
        self, gate: NDArray[np.float32], up: NDArray[np.float32], kernels: str = ""
    ) -> NDArray[np.float32]: ...
    def gelu(
        self, gate: NDArray[np.float32], up: NDArray[np.float32], kernels: str = ""
    ) -> NDArray[np.float32]: ...
    def gelu_erf(
        self, gate: NDArray[np.float32], up: NDArray[np.float32], kernels: str = ""
    ) -> NDArray[np.float32]: ...
    def ffn(
        self,
        code: int,
        gate: NDArray[np.uint8],
        up: NDArray[np.uint8],
        down: NDArray[np.uint8],
        n_ff: int,
        x: NDArray[np.float32],
        activation: str = "silu",
        kernels: str = "",
    ) -> NDArray[np.float32]: ...
    def rope(
        self,
        x: NDArray[np.float32],
        positions: NDArray[np.int32],
        frequencies: NDArray[np.float64],
        pairs: str,
        magnitude: float = 1.0,
    ) -> NDArray[np.float32]: ...
    def store_heads(self, x: NDArray[np.float32], kv: str, kernels: str = "") -> NDArray[np.uint8]: ...
    def load_heads(
        self, data: NDArray[np.uint8], head_size: int, kv: str, kernels: str = ""
    ) -> NDArray[np.float32]: ...
    def attention(
        self,
        queries: NDArray[np.float32],
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        view: NDArray[np.int32],
        begins: NDArray[np.int32],
        ends: NDArray[np.int32],
        scale: float,
        cap: float = 0.0,
        kv: str = "f16",
        kernels: str = "",
    ) -> NDArray[np.float32]: ...
    def convolve(
        self,
        x: NDArray[np.float32],
        taps: NDArray[np.float32],
        bias: NDArray[np.float32],
        history: NDArray[np.float32],
        parts: int = 1,
        kernels: str = "",
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
    def convolve_gated(
        self,
        bcx: NDArray[np.float32],
        taps: NDArray[np.float32],
        history: NDArray[np.float32],
        parts: int = 1,
        kernels: str = "",
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
    def delta_net(
        self,
        qkv: NDArray[np.float32],
        gate: NDArray[np.float32],
        beta: NDArray[np.float32],
        alpha: NDArray[np.float32],
        a: NDArray[np.float32],
        dt_bias: NDArray[np.float32],
        norm: NDArray[np.float32],
        eps: float,
        n_key_head: int,
        tiled: bool,
        state: NDArray[np.float32],
        parts: int = 1,
        kernels: str = "",
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
    def mamba2(
        self,
        projected: NDArray[np.float32],
        a: NDArray[np.float32],
        d: NDArray[np.float32],
        dt_bias: NDArray[np.float32],
        norm: NDArray[np.float32],
        eps: float,
        head_size: int,
        n_group: int,
        state_size: int,
        state: NDArray[np.float32],
        parts: int = 1,
        kernels: str = "",
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
    def time_mix(
        self,
        given: NDArray[np.float32],
        vectors: NDArray[np.float32],
        eps: float,
        head_size: int,
        state: NDArray[np.float32],
        parts: int = 1,
        kernels: str = "",
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...

ops: _Operators

class Quantizer:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def convert(
        self,
        source: int,
        data: NDArray[np.uint8],
        target: int,
        columns: int,
        importance: NDArray[np.float32] | None = None,
    ) -> NDArray[np.uint8]: ...
