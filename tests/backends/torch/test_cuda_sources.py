"""The CUDA C++ kernels, run on a CPU: the sources mean what the packed weights mean."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from stretto.errors import Unsupported
from stretto.weights.formats import Format

torch = pytest.importorskip("torch", reason="torch is not installed")

from packed_parts import PACKED, error, packed  # noqa: E402
from stretto.backends.torch import cuda, matrix  # noqa: E402

HERE = Path(__file__).parent
TYPES = {torch.float32: 0, torch.bfloat16: 1}
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or platform.system() != "Linux", reason="sources are compiled by g++ on Linux"
)
CALLS = {
    "gemv": "gemv(x, gain, w, bias, out, 1e-5f)",
    "few": "few((const unsigned short*)x, rows, w, bias, out, stride)",
}
HARNESS = """
static const void* x; static const float *gain, *bias; static void* out; static Weights w;
static int rows; static long stride;
static void body() { %s; ended[current] = true; swapcontext(&fibers[current], &scheduler); }
extern "C" void run(int blocks, void** p, int n, long s) {
  x = p[0], gain = (float*)p[1], bias = (float*)p[2], out = p[3], rows = n, stride = s;
  w = {(char*)p[4], (char*)p[5], (char*)p[6], (char*)p[7], (char*)p[8]};
  run_blocks(blocks, THREADS, body);
}
"""


def run(folder, name, part, x, out, *, blocks, gain=None, bias=None, **constants):
    """A kernel of these constants, compiled for this CPU."""
    source = "".join((cuda.SOURCES / each).read_text() for each in ("batches.cuh", f"{name}.cu"))
    for kind in ("int4", "uint4"):
        source = source.replace(f"extern __shared__ {kind} xs[];", f"{kind}* xs = ({kind}*)dynamic_shared;")
    source = source.replace('extern "C" __global__', "")
    (folder / "kernel.cpp").write_text('#include "cuda_on_cpu.h"\n' + source + HARNESS % CALLS[name])
    steps = part.part // part.layout.step
    constants |= {"FORMAT": part.layout.code, "K": part.columns, "N": part.rows, "STEPS": steps, "U": 4}
    constants |= {"RESIDENT": 1, "OUT": TYPES[out.dtype], "BIAS": int(bias is not None), "AHEAD": 1}
    defined = [f"-D{key}={value}" for key, value in constants.items()]
    command = ["g++", "-O0", "-std=c++17", "-w", "-shared", "-fPIC", f"-I{HERE}", *defined]
    subprocess.run([*command, "-o", folder / "kernel.so", folder / "kernel.cpp"], check=True)
    tensors = (x, gain, bias, out, part.quants, part.high, part.scales, part.minima, part.supers)
    addresses = (ctypes.c_void_p * len(tensors))(*(0 if t is None else t.data_ptr() for t in tensors))
    ctypes.CDLL(folder / "kernel.so").run(blocks, addresses, len(x), ctypes.c_long(out.stride(0)))


@pytest.fixture(autouse=True)
def _seeded():
    """The same numbers each time: one half way between two of 8 bits may be rounded to either."""
    torch.manual_seed(0)


def in_octets(x):
    """x as the kernel rounds it: 8 bits for each 32 columns."""
    blocks = x.double().reshape(-1, 32)
    most = blocks.abs().amax(1, keepdim=True)
    return ((blocks * (127 / most)).round() * most / 127).reshape(x.shape)


@needs_compiler
@pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)
def test_one_row_is_normalised_rounded_multiplied_and_gated(fmt, tmp_path):
    part, x, gain = packed(fmt, 328, 768), torch.randn(1, 768), torch.rand(768) + 0.5
    out = torch.zeros(1, 164)
    run(
        tmp_path,
        "gemv",
        part,
        x,
        out,
        blocks=2,
        gain=gain,
        SLICES=1,
        X=0,
        NORM=1,
        THEN=cuda.GATE,
        ACT=1,
    )
    y = in_octets(x * gain) @ matrix.unpack(part).double().T * torch.rsqrt(x.pow(2).mean() + 1e-5)
    assert error(out, torch.nn.functional.silu(y[:, ::2]) * y[:, 1::2]) < 1e-5


@needs_compiler
def test_slices_of_columns_are_summed_and_added_to_what_is_there(tmp_path):
    part, x, bias = packed(Format.Q4_0, 72, 576), torch.randn(1, 576).bfloat16(), torch.randn(72)
    out = torch.ones(1, 72)
    run(
        tmp_path,
        "gemv",
        part,
        x,
        out,
        blocks=3,
        bias=bias,
        SLICES=2,
        X=1,
        NORM=0,
        THEN=cuda.ADD,
        ACT=0,
    )
    assert error(out, in_octets(x) @ matrix.unpack(part).double().T + bias + 1) < 1e-5


@needs_compiler
@pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)
def test_a_few_rows_are_multiplied_with_weights_rounded_to_bfloat16(fmt, tmp_path):
    part, x, bias = packed(fmt, 88, 768), torch.randn(3, 768).bfloat16(), torch.randn(88)
    out = torch.zeros(3, 44)
    run(tmp_path, "few", part, x, out, blocks=2, bias=bias, SLICES=1, ROWS=4, GATED=1, ACT=1)
    y = x.double() @ matrix.unpack(part).bfloat16().double().T + bias
    assert error(out, torch.nn.functional.silu(y[:, ::2]) * y[:, 1::2]) < 1e-5


CHAIN = """
static Memory memory; static Legs legs; static int rows;
static void body() {
  chain(memory, legs, rows);
  ended[current] = true;
  swapcontext(&fibers[current], &scheduler);
}
extern "C" void run(void** p, float eps, int n) {
  memory = {p[0], (float*)p[1], p[2], p[3], Q, (int*)p[4]};
  for (int i = 0; i < 4; i++) legs.weights[i] = (char*)p[5 + i], legs.biases[i] = (float*)p[9 + i];
  for (int i = 0; i < 2; i++) legs.gains[i] = (float*)p[13 + i], legs.eps[i] = eps;
  rows = n;
  run_blocks(1, THREADS, body);
}
"""


@needs_compiler
@pytest.mark.parametrize(("first", "chunk"), [(0, 64), (0, 128), (3, 64)])
def test_what_stands_between_two_attentions_is_one_kernel(first, chunk, tmp_path):
    sizes = {"E": 128, "A": 256, "F": 384, "Q": 72, "ROWS": 4, "FROM": first, "OUT": 0, "ACT": 1}
    source = (cuda.SOURCES / "chain.cu").read_text().replace('extern "C" __global__', "")
    source = source.replace("extern __shared__ int4 shared[];", "int4* shared = dynamic_shared;")
    (tmp_path / "kernel.cpp").write_text('#include "cuda_on_cpu.h"\n' + source + CHAIN)
    defined = [f"-D{key}={value}" for key, value in {**sizes, "CHUNK": chunk, "STAGES": 4}.items()]
    command = ["g++", "-O0", "-std=c++17", "-w", "-shared", "-fPIC", f"-I{HERE}", *defined]
    subprocess.run([*command, "-o", tmp_path / "kernel.so", tmp_path / "kernel.cpp"], check=True)
    rows, (e, a, f, q) = 3, (sizes[key] for key in "EAFQ")
    x, mixed, out = torch.randn(rows, e), torch.randn(rows, a).bfloat16(), torch.empty(rows, q)
    inner, counters = torch.empty(rows, f).bfloat16(), torch.tensor([0, 0, 1, 0], dtype=torch.int32)
    shapes = ((e, a), (2 * f, e), (e, f), (q, e))
    weights = [(torch.randn(shape) * shape[1] ** -0.5).bfloat16() for shape in shapes]
    biases = [torch.randn(shape[0]) for shape in shapes[:3]]
    gains = [torch.rand(e) + 0.5 for _ in range(2)]
    before = x.double()
    tensors = (x, inner, out, counters, *weights, *biases)
    addresses = [t.data_ptr() for t in (mixed, *tensors)] + [0] + [t.data_ptr() for t in gains]
    library = ctypes.CDLL(tmp_path / "kernel.so")
    library.run((ctypes.c_void_p * len(addresses))(*addresses), ctypes.c_float(1e-5), rows)

    def norm(x, gain):
        return (x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5) * gain).bfloat16().double()

    def times(x, i):
        return x.double() @ weights[i].double().T + (biases[i] if i < 3 else 0)

    if first == 0:
        before = before + times(mixed, 0).bfloat16().double()
        both = times(norm(before, gains[0]), 1)
        gated = torch.nn.functional.silu(both[:, ::2]) * both[:, 1::2]
        before = before + times(gated.bfloat16(), 2).bfloat16().double()
        assert counters.tolist() == [0, 0, 1, 0]
    assert error(x, before) < 2e-3  # where a number is between two in bfloat16
    assert error(out, times(norm(before, gains[1]), 3)) < 1e-2


def test_without_nvrtc_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setattr(cuda, "library", lambda: None)
    with pytest.raises(Unsupported, match="nvidia-cuda-nvrtc, or use exact=True"):
        cuda.require()


def test_compiled_kernels_are_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("STRETTO_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cuda.cache_folder() == tmp_path / "stretto" / "kernels"
    monkeypatch.setenv("STRETTO_HOME", str(tmp_path / "home"))
    assert cuda.cache_folder() == tmp_path / "home" / "kernels"


@pytest.mark.parametrize("columns", [256, 576, 2048, 4096, 14336])
def test_every_slice_of_a_shape_has_steps(columns):
    part = packed(Format.Q8_0, 16, columns)
    slices, batch, resident = cuda.best_shape(part)
    steps = part.part // part.layout.step
    assert slices == 1 or steps // slices >= batch
    assert resident * slices <= 4
