"""GPUs as NVIDIA's library names them, by one that is made up."""

import pytest

from stretto.hardware.gpus import CudaDevice, ask


class Library:
    """As the library answers: 0 is success, and results go where pointers say."""

    def __init__(self, names, broken=()):
        self.names, self.broken = names, broken

    def __getattr__(self, name):
        return {
            "nvmlInit_v2": lambda: 0 if self.names else 9,
            "nvmlDeviceGetCount_v2": lambda count: put(count, len(self.names)),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, handle: put(handle, index + 1),
            "nvmlDeviceGetName": lambda handle, text, size: self.write(handle, text, ""),
            "nvmlDeviceGetUUID": lambda handle, text, size: self.write(handle, text, "GPU-"),
            "nvmlDeviceGetMemoryInfo": memory,
            "nvmlDeviceGetCudaComputeCapability": lambda handle, a, b: put(a, 9) or put(b, 0),
            "nvmlDeviceGetMemoryBusWidth": lambda handle, bits: put(bits, 6144),
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind, clock: put(clock, 3201 if kind == 2 else 1980),
        }[name]

    def write(self, handle, text, prefix):
        text.value = (prefix + self.names[handle.value - 1]).encode()
        return 1 if handle.value - 1 in self.broken else 0


def put(pointer, value):
    pointer._obj.value = value
    return 0


def memory(handle, pointer):
    pointer._obj.total = 150 << 30
    return 0


def names(visible=None, broken=()):
    return [each.name for each in ask(Library(["a", "b", "c"], broken), visible)]


def test_devices_are_named_in_order():
    first, second = ask(Library(["NVIDIA H200", "NVIDIA A100"]))
    assert first == CudaDevice("NVIDIA H200", 150 << 30, (9, 0), 2 * 3201e6 * 6144 / 8)
    assert second.name == "NVIDIA A100"


def test_a_library_without_a_driver_has_none():
    assert ask(Library([])) == ()


def test_a_device_that_does_not_answer_is_left_out():
    assert names(broken=(0,)) == ["b", "c"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1", "b"), ("2,0", "ca"), ("", ""), ("-1", ""), ("0,7,1", "a"), ("GPU-c, 0", "ca"), ("GPU-x", "")],
)
def test_only_visible_devices_count(visible, expected):
    assert names(visible) == list(expected)


def test_another_library_of_that_name_is_none():
    assert ask(object()) == ()


def test_a_library_that_knows_no_bandwidth_says_none():
    class Old(Library):
        def __getattr__(self, name):
            if name == "nvmlDeviceGetMemoryBusWidth":
                raise AttributeError(name)
            return super().__getattr__(name)

    (device,) = ask(Old(["NVIDIA A100"]))
    assert device.bandwidth == 0
