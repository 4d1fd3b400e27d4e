"""Kernels in CUDA C++: compiled by NVRTC, which comes with torch, kept on disk, launched on torch's stream.

kernel = load("gemv.cu", "gemv", {"K": 4096, …}, device)
kernel.launch(blocks, threads, shared_bytes, [c_void_p(x.data_ptr()), …])
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import site
from collections.abc import Mapping, Sequence
from ctypes import c_float, c_int, c_long, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from stretto.backends.torch.device import Tensor, is_hopper_or_newer, multiprocessors
from stretto.backends.torch.launching import compilers
from stretto.backends.torch.layouts import PARTS, TILE_ROWS, Packed
from stretto.errors import StrettoError, Unsupported

SOURCES = Path(__file__).parent / "kernels"
HEADERS = ("ptx.cuh", "batches.cuh")
OCTET_HEADERS = (*HEADERS, "octets.cuh")  # of sources of octets.py
PROGRAMMATIC_SERIALIZATION = 6  # of CUlaunchAttributeID: start before the kernel before has ended
MAX_DYNAMIC_SHARED = 8  # of CUfunction_attribute
FREE_SHARED_BYTES = 16 << 10  # a kernel gets without asking, beside those of its own arrays


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_int * 15),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", ctypes.c_uint),
    )


class Kernel:
    """A kernel on one device."""

    def __init__(self, cubin: bytes, name: str, device: Any) -> None:
        self._device, self._early = device, is_hopper_or_newer(device)
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._shared_bytes = FREE_SHARED_BYTES
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # the device's context is the current one
            _check(_driver().cuModuleLoadData(ctypes.byref(self._module), cubin), "cuModuleLoadData")
        found = _driver().cuModuleGetFunction(ctypes.byref(self._function), self._module, name.encode())
        _check(found, "cuModuleGetFunction")

    def launch(
        self, blocks: int, threads: int, shared_bytes: int, arguments: Sequence[Any], *, early: bool = True
    ) -> None:
        """Launch on torch's current stream; `early`: before the kernel before it has ended."""
        if shared_bytes > self._shared_bytes:
            self._allow(shared_bytes)
        attribute = _Attribute(PROGRAMMATIC_SERIALIZATION, 0, 1)
        config = _Config(
            (blocks, 1, 1),
            (threads, 1, 1),
            shared_bytes,
            torch.cuda.current_stream(self._device).cuda_stream,
            ctypes.pointer(attribute),
            1 if early and self._early else 0,
        )
        values = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        _check(
            _driver().cuLaunchKernelEx(ctypes.byref(config), self._function, values, None), "cuLaunchKernelEx"
        )

    def _allow(self, shared_bytes: int) -> None:
        set_attribute = _driver().cuFuncSetAttribute
        _check(set_attribute(self._function, MAX_DYNAMIC_SHARED, shared_bytes), "cuFuncSetAttribute")
        self._shared_bytes = shared_bytes


def call_host(function: int, argument: int, device: Any) -> None:
    """Have the driver call a C function by its address once torch's current stream has come so far.

    The stream waits for it. The function must not call CUDA, nor wait for what does.
    """
    stream = c_void_p(torch.cuda.current_stream(device).cuda_stream)
    _check(_driver().cuLaunchHostFunc(stream, c_void_p(function), c_void_p(argument)), "cuLaunchHostFunc")


class Unlaunched:
    """A kernel that is compiled ahead of its launches."""

    def launch(self, *_: Any, **__: Any) -> None:
        """Compute nothing."""


def is_available() -> bool:
    """Whether kernels can be compiled here."""
    return library() is not None


def require() -> Any:
    """NVRTC, or `Unsupported` if it is missing."""
    if (lib := library()) is None:
        raise Unsupported(
            "exact=False compiles kernels with NVRTC (libnvrtc), which is not installed; "
            "pip install nvidia-cuda-nvrtc, or use exact=True",
            param="exact",
            value=False,
        )
    return lib


def load(source: str, name: str, constants: Mapping[str, int], device: Any) -> Kernel | Unlaunched:
    """The kernel of a source file with these constants, compiled or from the cache on disk."""
    if (threads := compilers()) is not None:
        capability = torch.cuda.get_device_capability(device)
        threads.submit(machine_code, source, name, tuple(sorted(constants.items())), capability)
        return Unlaunched()
    return _load(source, name, tuple(sorted(constants.items())), torch.device(device))


@lru_cache(maxsize=256)
def _load(source: str, name: str, constants: tuple[tuple[str, int], ...], device: Any) -> Kernel:
    capability = torch.cuda.get_device_capability(device)
    try:
        return Kernel(machine_code(source, name, constants, capability), name, device)
    except StrettoError:  # a damaged file
        return Kernel(machine_code(source, name, constants, capability, again=True), name, device)


def machine_code(
    source: str,
    name: str,
    constants: Sequence[tuple[str, int]],
    capability: tuple[int, int],
    *,
    again: bool = False,
) -> bytes:
    """A kernel for a kind of GPU, from the cache on disk, or compiled; needs no GPU."""
    arch = "".join(map(str, capability))
    options = (f"--gpu-architecture=sm_{arch}", "--std=c++17", *(f"-D{k}={v}" for k, v in constants))
    headers: tuple[str, ...] = HEADERS if "FORMAT" in dict(constants) else HEADERS[:1]
    # Several kernels make the same bits: nothing is fused but what says so.
    if source.endswith(("octets.cu", "chain.cu")):
        options = (*options, "--fmad=false")
    if source.endswith("octets.cu"):
        headers = OCTET_HEADERS
    text = "".join((SOURCES / each).read_text() for each in (*headers, source))
    digest = hashlib.sha256("\n".join((str(torch.version.cuda), *options, text)).encode()).hexdigest()
    kept = cache_folder() / f"{name}-{digest[:32]}.cubin"
    if not again:
        try:
            return kept.read_bytes()
        except OSError:
            pass
    cubin = compile_source(text, source, options)
    _keep(kept, cubin)
    return cubin


def cache_folder() -> Path:
    """Where compiled kernels are kept: `kernels` in $STRETTO_HOME, or in the user's cache."""
    if home := os.environ.get("STRETTO_HOME"):
        return Path(home) / "kernels"
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = cache if cache.is_absolute() else Path.home() / ".cache"
    return base / "stretto" / "kernels"


def _keep(path: Path, cubin: bytes) -> None:
    """Write a file whole or not at all; a folder that cannot be written costs time only."""
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(cubin)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)


def compile_source(text: str, name: str, options: Sequence[str]) -> bytes:
    """Machine code of a source, or `Unsupported` if NVRTC is missing."""
    lib = require()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    made = lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    _check(made, "nvrtcCreateProgram")
    encoded = (ctypes.c_char_p * len(options))(*(each.encode() for each in options))
    failed = lib.nvrtcCompileProgram(program, len(options), encoded)
    if failed:
        _check(lib.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "nvrtcGetProgramLogSize")
        log = ctypes.create_string_buffer(size.value)
        _check(lib.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
        raise StrettoError(
            f"NVRTC cannot compile {name} with {' '.join(options)}: {log.value.decode()[:2000]}"
        )
    _check(lib.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    cubin = ctypes.create_string_buffer(size.value)
    _check(lib.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin.raw


def _check(code: int, call: str) -> None:
    if code:
        raise StrettoError(f"{call} failed with code {code}")


@lru_cache(maxsize=1)
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@lru_cache(maxsize=1)
def library() -> Any:
    """NVRTC of the CUDA version that torch was built for: of the system, or of the packages torch brings."""
    version = getattr(torch.version, "cuda", None)
    if version is None:
        return None
    name = f"libnvrtc.so.{version.split('.')[0]}"
    folders = [*map(Path, site.getsitepackages()), Path(torch.__file__).parent.parent]
    found = [path for folder in folders for path in folder.glob(f"nvidia/*/lib/{name}")]
    for each in (name, *map(str, found)):
        try:
            return ctypes.CDLL(each)
        except OSError:
            continue
    return None


# One row times packed weights by whole numbers (kernels/gemv.cu): for `exact=False`.
#
# The row is rounded to 8 bits for each 32 columns, as llama.cpp does on CPUs. Norm before, and gate × up or
# the residual sum behind, are in the same kernel.

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WRITE, ADD, GATE = 0, 1, 2  # what happens with the product
GemvShape = tuple[int, int, int]  # slices of a part, steps in a batch, blocks of a multiprocessor


def gemv(
    x: Tensor,
    part: Packed,
    out: Tensor,
    *,
    gain: Tensor | None = None,
    eps: float = 0.0,
    bias: Tensor | None = None,
    then: int = WRITE,
    act: int = 0,
    shape: GemvShape | None = None,
    ahead: bool = True,
    early: bool = True,
) -> None:
    """Write the product of x[1, columns] with a part into `out`, or add it there."""
    slices, batch, resident = shape or best_shape(part)
    constants = {
        "FORMAT": part.layout.code, "K": part.columns, "N": part.rows, "STEPS": part.part // part.layout.step,
        "SLICES": slices, "U": batch, "RESIDENT": resident, "X": TYPES[x.dtype], "OUT": TYPES[out.dtype],
        "NORM": int(gain is not None), "BIAS": int(bias is not None), "THEN": then, "ACT": act,
        "AHEAD": int(ahead),
    }  # fmt: skip
    kernel = load("gemv.cu", "gemv", constants, x.device)
    arguments = (
        c_void_p(address(x)), c_void_p(address(gain)), tensor_addresses(part), c_void_p(address(bias)),
        c_void_p(address(out)), c_float(eps),
    )  # fmt: skip
    tiles, processors = tiles_and_processors(part, x.device)
    blocks = min(tiles, resident * processors)
    kernel.launch(blocks, 32 * PARTS * slices, 2 * PARTS * part.part, arguments, early=early)


def best_shape(part: Packed) -> GemvShape:
    """Slices, steps in a batch, and blocks of a multiprocessor for a part."""
    steps = part.part // part.layout.step
    slices = max(each for each in (1, 2, 4) if each == 1 or steps // each >= 4)
    return slices, 4, 4 // slices


def tensor_addresses(part: Packed) -> Any:
    """The addresses of a part's tensors, as kernels take them."""
    tensors = (part.quants, part.high, part.scales, part.minima, part.supers)
    return (c_void_p * len(tensors))(*(address(each) for each in tensors))


def tiles_and_processors(part: Packed, device: Any) -> tuple[int, int]:
    """How many tiles of rows there are, and multiprocessors to walk them."""
    return -(-part.rows // TILE_ROWS), multiprocessors(device)


def address(tensor: Tensor | None) -> int:
    """Where a tensor is; 0 if there is none."""
    return 0 if tensor is None else int(tensor.data_ptr())


# A few rows times packed weights by a CUDA C++ kernel (kernels/few.cu): the bits of all other products.

SHARED_BYTES = 96 << 10  # for x, of a block
Shape = tuple[int, int]  # steps in a batch, blocks of a multiprocessor
VARIANTS: tuple[Shape, ...] = ((4, 4), (4, 6), (8, 4))


def fits(x: Tensor, part: Packed, act: int) -> bool:
    """Whether the kernel can multiply these rows."""
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and len(x) <= 8
        and act <= 1
        and _shared_bytes(len(x), part) <= SHARED_BYTES
        and is_available()
    )


def few(
    x: Tensor,
    part: Packed,
    out: Tensor,
    bias: Tensor | None,
    act: int,
    gated: bool,
    *,
    shape: Shape = VARIANTS[0],
    early: bool = True,
) -> None:
    """Write the product of bfloat16 x[n, columns], n up to 8, with a part into `out`."""
    x = x.contiguous()
    batch, resident = shape
    constants = {
        "FORMAT": part.layout.code, "K": part.columns, "N": part.rows, "STEPS": part.part // part.layout.step,
        "SLICES": 1, "U": batch, "RESIDENT": resident, "ROWS": _rows(len(x)), "OUT": TYPES[out.dtype],
        "BIAS": int(bias is not None), "GATED": int(gated), "ACT": act, "AHEAD": 1,
    }  # fmt: skip
    kernel = load("few.cu", "few", constants, x.device)
    arguments = (
        c_void_p(address(x)), c_int(len(x)), tensor_addresses(part), c_void_p(address(bias)),
        c_void_p(address(out)), c_long(out.stride(0)),
    )  # fmt: skip
    tiles, processors = tiles_and_processors(part, x.device)
    blocks = min(tiles, resident * processors)
    kernel.launch(blocks, 32 * PARTS, _shared_bytes(len(x), part), arguments, early=early)


def _rows(n: int) -> int:
    return next(each for each in (1, 2, 4, 8) if each >= n)


def _shared_bytes(n: int, part: Packed) -> int:
    return 2 * _rows(n) * PARTS * part.part if n <= 8 else SHARED_BYTES + 1


# Rows times a small matrix of float32 (kernels/router.cu): one order of sums for any number of rows.

ROUTER_ROWS = 4  # of x, that a block multiplies where there are many


def routes(x: Tensor, weight: Tensor) -> bool:
    """Whether `router` can multiply these."""
    return (
        x.is_cuda
        and x.dtype in (torch.float32, torch.bfloat16)
        and weight.dtype == torch.float32
        and x.shape[1] % 4 == 0
        and weight.data_ptr() % 16 == 0
        and is_available()
    )


def router(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """float32[n, rows of the matrix]: the product of rows with a matrix of float32."""
    x = x.contiguous()
    (n, columns), rows = x.shape, len(weight)
    out = torch.empty(n, rows, dtype=torch.float32, device=x.device)
    each = 1 if n <= ROUTER_ROWS else ROUTER_ROWS
    constants = {"X": TYPES[x.dtype], "K": columns, "N": rows, "ROWS": each, "BIAS": int(bias is not None)}
    arguments = [c_void_p(address(t)) for t in (x, weight, bias, out)]
    kernel = load("router.cu", "router", constants, x.device)
    kernel.launch(-(-rows // 4) * -(-n // each), 128, 0, [arguments[0], c_int(n), *arguments[1:]])
    return out


# Norms of rows in the order of sums of kernels/chain.cu: for models whose shortest passes run there.


def add_rms(x: Tensor, y: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x += y, in place, if there is one; returns x divided by its root mean square, times weights."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    given = x if y is None else y
    constants = {"E": x.shape[1], "ADD": int(y is not None), "Y": TYPES[given.dtype], "OUT": TYPES[dtype]}
    arguments = (
        c_void_p(address(x)), c_void_p(address(given)), c_long(given.stride(0)), c_void_p(address(weight)),
        c_float(eps), c_void_p(address(out)),
    )  # fmt: skip
    load("chain.cu", "add_rms", constants, x.device).launch(len(x), 256, 0, arguments)
    return out
