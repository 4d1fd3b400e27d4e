"""What a machine lacks to run models on a GPU, told without importing torch."""

import sys

import pytest

from stretto.backends.torch import device
from stretto.errors import Unsupported
from stretto.hardware.gpus import CudaDevice


@pytest.fixture
def machine(monkeypatch):
    """Sets up a machine: its packages and its GPU's compute capability, if it has one."""

    def make(packages=("torch", "triton"), capability=None):
        monkeypatch.setattr(device, "find_spec", lambda name: object() if name in packages else None)
        monkeypatch.setattr(device, "has_triton", lambda: "triton" in packages)
        gpus = () if capability is None else (CudaDevice("a GPU", 1 << 34, capability),)
        monkeypatch.setattr(device, "cuda_devices", lambda: gpus)

    return make


@pytest.mark.parametrize(
    ("packages", "capability", "words"),
    [
        ((), (9, 0), "torch is not installed: pip install 'stretto[cuda]'"),
        (("torch",), (9, 0), "Triton is not installed"),
        (("torch", "triton"), None, "no CUDA device is visible here"),
        (("torch", "triton"), (7, 5), "compute capability 8.0 is needed, and this GPU has 7.5"),
    ],
)
def test_what_is_missing_is_named(machine, packages, capability, words):
    machine(packages, capability)
    before = "torch" in sys.modules
    assert words in device.missing("cuda")
    assert ("torch" in sys.modules) == before
    with pytest.raises(Unsupported, match="device='cpu' works") as caught:
        device.open_device("cuda")
    assert caught.value.param == "device"


def test_a_gpu_that_will_do_lacks_nothing(machine):
    machine(capability=(8, 0))
    assert device.missing("cuda") == ""


def test_a_cpu_needs_torch_alone(machine):
    machine(("torch",))
    assert device.missing("cpu") == ""


def test_a_torch_that_cannot_use_the_gpu_says_so(machine):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this torch can use a GPU")
    machine(capability=(9, 0))
    with pytest.raises(Unsupported, match="torch"):
        device.open_device("cuda")
