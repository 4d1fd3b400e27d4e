"""Writes tests/data/formats.npz: blocks of the small formats, and what llama.cpp's library makes of them.

    python scripts/make_format_golden.py path/to/libggml-base.so

Any shared library that exports ggml's `dequantize_row_…` functions will do, such as llama-cpp-python's.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

from stretto.weights.formats import Format

OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "formats.npz"
NAMES = (
    "MXFP4", "NVFP4", "TQ1_0", "TQ2_0", "Q1_0",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
)  # fmt: skip
NUMBERS = 512


def main(library: str) -> None:
    """Write the file."""
    ggml = ctypes.CDLL(library)
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
    np.savez_compressed(OUT, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
