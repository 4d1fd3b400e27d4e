"""Types of the native core; the code is in csrc/."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

dequantizable: tuple[int, ...]
quantizable: tuple[int, ...]

def dequantize(code: int, data: NDArray[np.uint8]) -> NDArray[np.float32]: ...
def quantize(code: int, values: NDArray[np.float32]) -> NDArray[np.uint8]: ...
def kernels() -> str: ...
def kernel_names() -> list[str]: ...
def cpu_features() -> tuple[str, ...]: ...
def dot_instructions() -> tuple[str, ...]: ...
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
    tokens: NDArray[np.int32],
    n_prompt: int,
    biased: NDArray[np.int32],
    bias: NDArray[np.float32],
) -> int: ...

def uniform(seed: int, index: int, draw: int) -> float: ...

class Decoder:
    kernels: str
    threads: int
    weight_bytes: int
    cache_bytes: int

    def __init__(self, spec: dict[str, Any], n_cells: int, kv: str, threads: int, kernels: str) -> None: ...
    def set_unpacked(
        self, name: str, code: int, rows: int, columns: int, data: NDArray[np.uint8]
    ) -> None: ...
    def pack_rows(
        self, name: str, code: int, rows: int, columns: int, data: NDArray[np.uint8], count: int
    ) -> None: ...
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
    ) -> NDArray[np.float32]: ...
    def loop(
        self,
        logits: NDArray[np.float32],
        cells: NDArray[np.int32],
        position: int,
        view: NDArray[np.int32],
        table: NDArray[np.int32],
        sampling: tuple[float, ...],
        tokens: NDArray[np.int32],
        n_prompt: int,
        biased: NDArray[np.int32],
        bias: NDArray[np.float32],
        seed: int,
        index: int,
        draws: int,
        ends: list[int],
        last: bool,
    ) -> tuple[list[int], NDArray[np.float32], int]: ...
    def copy_cells(self, source: NDArray[np.int32], target: NDArray[np.int32]) -> None: ...
    def turn_cells(self, cells: NDArray[np.int32], delta: int) -> None: ...
