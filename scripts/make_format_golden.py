"""Writes blocks of formats as llama.cpp's library reads and writes them.

    python scripts/make_format_golden.py path/to/libggml-base.so

tests/data/formats.npz has blocks of the small formats and their numbers, tests/data/written.npz numbers and
the bytes of those formats that we write as llama.cpp does. Any shared library that exports ggml's
`dequantize_row_…` and `ggml_quantize_chunk` will do, such as llama-cpp-python's or xllamacpp's.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

from stretto.weights.formats import Format

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
NAMES = (
    "MXFP4", "NVFP4", "TQ1_0", "TQ2_0", "Q1_0",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
)  # fmt: skip
NUMBERS = 512
WRITTEN = ("IQ4_NL", "IQ4_XS", "Q6_K", "Q8_0")
ROWS = 4


def main(library: str) -> None:
    """Write both files."""
    ggml = ctypes.CDLL(library)
    np.savez_compressed(DATA / "formats.npz", **read_blocks(ggml))
    np.savez_compressed(DATA / "written.npz", **write_blocks(ggml))


def write_blocks(ggml: ctypes.CDLL) -> dict[str, np.ndarray]:
    """Numbers, importance of columns, and the bytes of each format without and with it."""
    # A library whose compiler fuses multiply-adds has other bytes in one block of a thousand; here in none.
    rng = np.random.default_rng(14)
    halves = (rng.standard_normal((ROWS, NUMBERS)) * 0.02).astype(np.float16)
    importance = rng.uniform(0.1, 2.0, NUMBERS).astype(np.float32)
    arrays = {"numbers": halves, "importance": importance}
    numbers = halves.astype(np.float32)
    for name in WRITTEN:
        fmt = Format[name]
        for kind, weights in (("plain", None), ("weighed", importance)):
            data = np.empty((ROWS, fmt.row_bytes(NUMBERS)), np.uint8)
            ggml.ggml_quantize_chunk(
                fmt.value,
                numbers.ctypes.data_as(ctypes.c_void_p),
                data.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_int64(0),
                ctypes.c_int64(ROWS),
                ctypes.c_int64(NUMBERS),
                None if weights is None else weights.ctypes.data_as(ctypes.c_void_p),
            )
            arrays[f"{name} {kind}"] = data
    return arrays


def read_blocks(ggml: ctypes.CDLL) -> dict[str, np.ndarray]:
    """Random bytes of each format, and their numbers."""
    arrays = {}
    rng = np.random.default_rng(11)
    for name in NAMES:
        fmt = Format[name]
        data = rng.integers(0, 256, fmt.row_bytes(NUMBERS), dtype=np.uint8)
        numbers = np.empty(NUMBERS, np.float32)
        function = getattr(ggml, f"dequantize_row_{name.lower()}")
        function(
            data.ctypes.data_as(ctypes.c_void_p),
            numbers.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(NUMBERS),
        )
        arrays[f"{name} bytes"], arrays[f"{name} numbers"] = data, numbers
    return arrays


if __name__ == "__main__":
    main(sys.argv[1])
