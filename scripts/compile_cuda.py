"""Compiles the CUDA C++ kernels for GPUs that are not here: registers, spills, errors.

pip install nvidia-cuda-nvrtc triton          # NVRTC compiles, Triton brings cuobjdump
python scripts/compile_cuda.py --nvrtc …/libnvrtc.so.13 [--arch 80,86,89,90,100,120]
"""

import argparse
import ctypes
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import triton

from stretto.backends.torch import cuda
from stretto.backends.torch.layouts import LAYOUTS, PARTS, part_columns

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
K, N = 14336, 4096
EXPERTS = {"EXPERTS": 1, "GATED": 1, "ACT": 6}
ONE_ROW = {"X": 1, "ROWS": 1}
FORMS = {  # kernels by name, and constants beside those of a format
    "rounding": ("octets", {"X": 0}),
    "1 row": ("few_octets", ONE_ROW),
    "1 row, experts": ("few_octets", {**ONE_ROW, **EXPERTS}),
    "32 rows": ("few_octets", {"X": 3, "ROWS": 32}),
    "64 rows": ("many_octets", {"ROWS": 64, "BLOCK": 4, "STAGES": 2, "SPLIT": 1, "AT_ONCE": 3}),
    "32 rows, experts": (
        "many_octets",
        {"ROWS": 32, "BLOCK": 8, "STAGES": 2, "SPLIT": 0, "AT_ONCE": 2, **EXPERTS},
    ),
}

CHAIN = {"E": 1024, "A": 2048, "F": 3072, "Q": 4096, "FROM": 0, "OUT": 1, "ACT": 1, "CHUNK": 128, "STAGES": 7}
OTHERS = {  # without packed weights
    "chain, 1 row": ("chain", "chain", {**CHAIN, "ROWS": 1}),
    "chain, 8 rows": ("chain", "chain", {**CHAIN, "ROWS": 8}),
    "norms": ("chain", "add_rms", {"E": 4096, "ADD": 1, "Y": 1, "OUT": 1}),
    "router": ("router", "router", {"X": 1, "K": 2048, "N": 128, "ROWS": 1, "BIAS": 0}),
}


def constants_of(fmt, own):
    """All constants of a kernel for a format."""
    layout = LAYOUTS[fmt]
    steps = part_columns(fmt, K) // layout.step
    slices = max(each for each in (1, 2, 4) if each == 1 or steps // each >= 4)
    assert steps * layout.step * PARTS >= K
    common = {"FORMAT": layout.code, "K": K, "N": N, "STEPS": steps, "SLICES": slices, "U": 4}
    common |= {"RESIDENT": 4 // slices, "AHEAD": 1, "OUT": 1, "BIAS": 0, "GATED": 0, "ACT": 0, "EXPERTS": 0}
    return tuple(sorted({**common, **own}.items()))


def compiled(arch, fmt, form):
    """Registers and bytes of a stack, or the first line of an error."""
    if fmt is None:
        source, name, constants = OTHERS[form]
        constants = tuple(sorted(constants.items()))
    else:
        name, own = FORMS[form]
        source, constants = name, constants_of(fmt, own)
    try:
        cubin = cuda.machine_code(f"{source}.cu", name, constants, (arch // 10, arch % 10))
    except Exception as error:  # for another kind of GPU, or by NVRTC
        return "error: " + str(error).partition("\n")[0]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        found = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True).stdout
    usage = dict(word.split(":") for word in found.split() if word.startswith(("REG:", "STACK:")))
    return f"{usage['REG']}, {usage['STACK']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nvrtc", type=Path, required=True, help="libnvrtc.so of CUDA 12.8 or newer")
    parser.add_argument("--arch", default="80,86,89,90,100,120")
    args = parser.parse_args()
    ctypes.CDLL(next(args.nvrtc.parent.glob("libnvrtc-builtins.so*")))
    nvrtc = ctypes.CDLL(args.nvrtc)
    cuda.library = lambda: nvrtc
    archs = [int(arch) for arch in args.arch.split(",")]
    cases = [(arch, fmt, form) for arch in archs for fmt in LAYOUTS for form in FORMS]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as threads:
        os.environ["STRETTO_HOME"] = folder
        found = list(threads.map(lambda case: compiled(*case), cases))
        others = [(arch, None, form) for arch in archs for form in OTHERS]
        more = list(threads.map(lambda case: compiled(*case), others))
    print("registers, bytes of stack\n\n| arch | format | " + " | ".join(FORMS) + " |\n" + "|---" * 8 + "|")
    for i in range(0, len(cases), len(FORMS)):
        arch, fmt, _ = cases[i]
        print(f"| sm_{arch} | {fmt.name} | " + " | ".join(found[i : i + len(FORMS)]) + " |")
    print("\n| arch | " + " | ".join(OTHERS) + " |\n" + "|---" * (len(OTHERS) + 1) + "|")
    for i in range(0, len(others), len(OTHERS)):
        print(f"| sm_{others[i][0]} | " + " | ".join(more[i : i + len(OTHERS)]) + " |")
    raise SystemExit(any("error" in each for each in found + more))


if __name__ == "__main__":
    main()
