"""Rows in 8 bits times packed weights, by the CUDA C++ kernels run on a CPU: their meaning and their bits."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from stretto.weights.formats import Format

torch = pytest.importorskip("torch", reason="torch is not installed")

from packed_parts import PACKED, error, packed, rounded  # noqa: E402
from stretto.backends.torch import cuda, matrix, octets  # noqa: E402

HERE = Path(__file__).parent
MULTIPROCESSORS = 2
pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or platform.system() != "Linux", reason="sources are compiled by g++ on Linux"
)
NAMES = {  # the types of a kernel's arguments
    "octets": "const void*, Octets, int, int",
    "few_octets": "const void*, Octets, int, Weights, const float*, void*, long, const int*, int, float, "
    "float",
    "many_octets": "Octets, int, int, Weights, const float*, void*, long, const int*, const int*, int, "
    "float, float, float*, int*, int",
}
HARNESS = """
#include <tuple>
static std::tuple<%s> given;
static void body() {
  std::apply(%s, given);
  ended[current] = true;
  swapcontext(&fibers[current], &scheduler);
}
template <class Tuple, size_t... I> static void take_all(Tuple& to, void** from, std::index_sequence<I...>) {
  ((std::get<I>(to) = *(std::tuple_element_t<I, Tuple>*)from[I]), ...);
}
extern "C" void run(int blocks, int threads, void** p) {
  take_all(given, p, std::make_index_sequence<std::tuple_size_v<decltype(given)>>());
  run_blocks(blocks, threads, body);
}
"""


class Kernel:
    """A kernel of a source file with these constants, compiled for this CPU."""

    def __init__(self, folder, source, name, constants):
        text = "".join((cuda.SOURCES / each).read_text() for each in ("batches.cuh", "octets.cuh", source))
        text = text.replace("extern __shared__ int4 xs[];", "int4* xs = dynamic_shared;")
        text = text.replace('extern "C" __global__', "")
        made = folder / "-".join([name, *(f"{key}{value}" for key, value in sorted(constants.items()))])
        code = made.with_suffix(".cpp")
        code.write_text('#include "cuda_on_cpu.h"\n' + text + HARNESS % (NAMES[name], name))
        defined = [f"-D{key}={value}" for key, value in constants.items()]
        command = ["g++", "-O1", "-std=c++17", "-w", "-shared", "-fPIC", f"-I{HERE}", *defined]
        subprocess.run([*command, "-o", made.with_suffix(".so"), code], check=True)
        self._run = ctypes.CDLL(made.with_suffix(".so")).run

    def launch(self, blocks, threads, shared_bytes, arguments, *, early=True):
        """As `cuda.Kernel.launch`."""
        assert shared_bytes <= 16 << 14
        self._run(
            blocks, threads, (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        )


@pytest.fixture(autouse=True)
def _on_this_cpu(monkeypatch, tmp_path):
    made = {}

    def load(source, name, constants, device):
        key = name, tuple(sorted(constants.items()))
        if key not in made:
            made[key] = Kernel(tmp_path, source, name, constants)
        return made[key]

    torch.manual_seed(0)
    monkeypatch.setattr(octets, "load", load)
    monkeypatch.setattr(octets, "multiprocessors", lambda device: MULTIPROCESSORS)


@pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)
def test_any_number_of_rows_has_the_same_bits(fmt):
    part, x, bias = packed(fmt, 88, 1280), torch.randn(19, 1280).bfloat16(), torch.randn(88)
    y = rounded(x, part) @ matrix.unpack(part).double().T + bias
    expected = torch.nn.functional.silu(y[:, ::2]) * y[:, 1::2]
    found = {}
    for n in (1, 2, 5, 19):
        out = torch.full((n, 44), torch.nan)
        octets.multiply(x[:n], part, out, bias, 1, True)
        assert error(out, expected[:n]) < 1e-5
        found[n] = out
    assert all(torch.equal(found[19][:n], found[n]) for n in found)
    for tile in ((8, 4, 3, 1), (64, 8, 2, 2)):
        out = torch.full((19, 44), torch.nan)
        octets.many(octets.round_rows(x, part), part, out, bias, 1, True, tile=tile)
        assert torch.equal(out, found[19])


@pytest.mark.parametrize(
    ("fmt", "columns"), [(Format.Q8_0, 2880), (Format.MXFP4, 2880), (Format.Q4_K, 14336)]
)
def test_sums_of_parts_of_narrow_matrices_are_those_of_wide_ones(fmt, columns, monkeypatch):
    part, x = packed(fmt, 72, columns), torch.randn(9, columns)
    alone, split, whole = (torch.full((9, 72), torch.nan) for _ in range(3))
    for i in range(9):
        octets.multiply(x[i : i + 1], part, alone[i : i + 1], None, 0, False)
    rounded_x, tile = octets.round_rows(x, part), (16, 2, 2, 1)
    octets.many(rounded_x, part, whole, None, 0, False, tile=tile)
    monkeypatch.setattr(octets, "multiprocessors", lambda device: 64)
    for _ in range(2):  # counters are left as they were
        octets.many(rounded_x, part, split.fill_(torch.nan), None, 0, False, tile=tile)
        assert torch.equal(split, alone)
    assert torch.equal(whole, alone)
    assert error(alone, rounded(x, part) @ matrix.unpack(part).double().T) < 1e-5


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("fmt", [Format.Q4_0, Format.Q6_K], ids=lambda fmt: fmt.name)
def test_pairs_have_the_bits_of_their_experts_alone(fmt, size):
    n_expert, n, used = 3, 5, 2
    part, x = packed(fmt, 48 * n_expert, 512), torch.randn(n, 512).bfloat16()
    chosen = torch.tensor([[0, 2], [2, 1], [2, 0], [2, 1], [0, 1]], dtype=torch.int32)
    bias = torch.randn(n_expert, 48)
    single = torch.full((n * used, 48), torch.nan)
    pairs = octets.Chosen(48, chosen.flatten(), None, used)
    octets.few(x, part, single, bias, 0, False, chosen=pairs)
    for pair, expert in enumerate(chosen.flatten().tolist()):
        its = part.tiles(slice(3 * expert, 3 * expert + 3), 48)
        y = rounded(x[pair // used], its) @ matrix.unpack(its).double().T + bias[expert]
        assert error(single[pair], y) < 1e-5
    blocks = torch.full((4, size), -1, dtype=torch.int32)
    for expert in range(n_expert):
        its = (chosen.flatten() == expert).nonzero()[:, 0]
        blocks[expert, : len(its)] = its
    experts = torch.tensor([0, 1, 2, -1], dtype=torch.int32)
    out = torch.full((n * used, 48), torch.nan)
    pairs = octets.Chosen(48, experts, blocks, used)
    octets.many(octets.round_rows(x, part), part, out, bias, 0, False, chosen=pairs)
    assert torch.equal(out, single)


@pytest.mark.parametrize("fmt", PACKED, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("columns", [2048, 14336, 28672])
def test_blocks_fit_the_shared_memory_of_every_gpu(fmt, columns):
    part, cpu = packed(fmt, 16, columns), torch.device("cpu")
    for rows in (33, 64, 65, 4096):
        assert octets.block_bytes(part, octets.choose_tile(rows, part, cpu)) <= octets.LEAST_SHARED_BYTES
    for rows in (8, 16, 32):
        assert octets.block_bytes(part, (rows, *octets.EXPERTS_TILE)) <= octets.LEAST_SHARED_BYTES
