"""Kernels are launched by the compiled form that Triton would choose."""

import inspect
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from stretto.backends.torch import launching  # noqa: E402
from stretto.backends.torch.launching import Form  # noqa: E402


class Compiled:
    """What Triton returns of a launch."""

    packed_metadata, function = "metadata", "function"

    def __init__(self):
        self.launches = []
        self.run = SimpleNamespace(
            global_scratch_size=0, profile_scratch_size=0, launch_cooperative_grid=False, launch_pdl=True,
            launch=lambda *given: self.launches.append(given),
        )  # fmt: skip


class Kernel:
    """A kernel of Triton's, as far as a launcher looks at it; it counts the launches that are Triton's."""

    def __init__(self):
        names = ("x", "out", "n", "scale", "WIDTH", "KEEP")
        some, last = inspect.Parameter.POSITIONAL_OR_KEYWORD, {"KEEP": False}
        self.signature = inspect.Signature(
            [inspect.Parameter(name, some, default=last.get(name, inspect.Parameter.empty)) for name in names]
        )
        self.params = [
            SimpleNamespace(name=name, is_constexpr=name.isupper()) for name in self.signature.parameters
        ]
        self.compiled = []

    def __getitem__(self, grid):
        def run(*args, **constants):
            self.compiled.append(Compiled())
            return self.compiled[-1]

        return run


@pytest.fixture
def kernel(monkeypatch):
    """A kernel, on a machine that has a GPU as far as it can tell."""
    pytest.importorskip("triton", reason="Triton is not installed")
    runtime = import_module("triton.runtime.driver")
    active = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 7)
    monkeypatch.setattr(runtime, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(launching, "is_known", lambda kernel: True)
    return Kernel()


def test_a_known_form_is_launched_with_addresses_and_constants(kernel):
    x, out = torch.zeros(8), torch.zeros(8)
    for n in (5, 6):
        launching.launch(kernel, (3, 2), x, out, n, 0.5, WIDTH=8, num_warps=4)
    (compiled,) = kernel.compiled
    ((*head, at_x, at_out, n, scale, width, keep),) = compiled.launches
    assert head == [3, 2, 1, 7, "function", False, True, None, None, "metadata", None, None, None]
    assert (at_x, at_out, n, scale, width, keep) == (x.data_ptr(), out.data_ptr(), 6, 0.5, 8, False)


@pytest.mark.parametrize(
    "change",
    [
        {"n": 16},
        {"n": 1},
        {"n": 1 << 31},
        {"x": torch.zeros(9)[1:]},
        {"x": torch.zeros(8, dtype=torch.float16)},
        {"WIDTH": 4},
        {"num_warps": 8},
        {"KEEP": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_form_is_found_by_triton(kernel, change):
    given = {"x": torch.zeros(8), "n": 5, "WIDTH": 8, "num_warps": 4, **change}
    for each in ({"x": torch.zeros(8), "n": 5, "WIDTH": 8, "num_warps": 4}, given, given):
        constants = {name: value for name, value in each.items() if name not in ("x", "n")}
        launching.launch(kernel, (1,), each["x"], torch.zeros(8), each["n"], 0.5, **constants)
    assert [len(compiled.launches) for compiled in kernel.compiled] == [0, 1]


def test_an_empty_grid_launches_nothing(kernel):
    for _ in range(2):
        launching.launch(kernel, (0,), torch.zeros(8), torch.zeros(8), 5, 0.5, WIDTH=8)
    assert not kernel.compiled[0].launches


def test_same_keys_mean_the_same_specialisation(kernel):
    """Of any two arguments that the key does not tell apart, Triton tells none apart either."""
    library = pytest.importorskip("triton._C.libtriton")
    if not hasattr(library, "native_specialize_impl"):
        pytest.skip("this Triton specialises in Python")
    from triton.backends.nvidia.compiler import CUDABackend

    specialize = library.native_specialize_impl
    numbers = [0, 1, 2, 15, 16, 17, 48, -1, -16, 1 << 31, (1 << 31) + 16, -(1 << 31), 1 << 40, 1.0, 0.5, True]
    tensors = [torch.zeros(64, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.int32)]
    tensors += [each[i:] for each in tensors for i in (1, 2, 4, 8)]
    found = {}
    form = Form(kernel, {})
    for value in (*numbers, *tensors, None):
        key, _ = form._specialize(0, (value,))
        theirs = specialize(CUDABackend, value, False, True, True)
        assert found.setdefault(key, theirs) == theirs


def test_triton_launches_with_arguments_of_other_types(kernel):
    for _ in range(2):
        launching.launch(kernel, (1,), torch.zeros(8), torch.zeros(8), np.int32(5), 0.5, WIDTH=8)
    assert [len(compiled.launches) for compiled in kernel.compiled] == [0, 0]


def test_triton_launches_what_is_not_known(kernel, monkeypatch):
    monkeypatch.setattr(launching, "is_known", lambda kernel: False)
    for _ in range(2):
        launching.launch(kernel, (1,), torch.zeros(8), torch.zeros(8), 5, 0.5, WIDTH=8)
    assert [len(compiled.launches) for compiled in kernel.compiled] == [0, 0]


def test_kernels_are_compiled_ahead_without_being_launched(kernel):
    asked, x = [], torch.zeros(4)
    kernel.warmup = lambda *args, grid, **constants: asked.append((grid, constants))
    form = Form(kernel, {"WIDTH": 8})
    with launching.compiling():
        for _ in range(2):
            form.launch((3,), x, x, 5, 0.5)
        form.launch((3,), x, x, 16, 0.5)  # of which Triton makes another form
    assert asked == [((3,), {"WIDTH": 8})] * 2
    assert not kernel.compiled
    form.launch((3,), x, x, 5, 0.5)
    assert len(kernel.compiled) == 1


def test_launches_are_launches_again_after_an_error(kernel):
    form, x = Form(kernel, {"WIDTH": 8}), torch.zeros(4)
    with pytest.raises(ZeroDivisionError), launching.compiling():
        raise ZeroDivisionError
    form.launch((3,), x, x, 5, 0.5)
    assert len(kernel.compiled) == 1
