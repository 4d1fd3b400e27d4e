"""The driver's answers about GPUs, by a driver that is made up."""

from stretto.hardware.cuda import CudaDevice, ask


class Driver:
    """As libcuda answers: 0 is success, and results go where pointers say."""

    def __init__(self, names, broken=()):
        self.names, self.broken = names, broken

    def __getattr__(self, name):
        return {
            "cuInit": lambda flags: 0 if self.names else 100,
            "cuDeviceGetCount": lambda count: put(count, len(self.names)),
            "cuDeviceGet": put,
            "cuDeviceGetName": self.name,
            "cuDeviceTotalMem_v2": lambda total, handle: put(total, 150 << 30),
            "cuDeviceGetAttribute": lambda number, which, handle: put(number, {75: 9, 76: 0}[which]),
        }[name]

    def name(self, text, size, handle):
        text.value = self.names[handle.value].encode()
        return 1 if handle.value in self.broken else 0


def put(pointer, value):
    pointer._obj.value = value
    return 0


def test_devices_are_named_in_order():
    first, second = ask(Driver(["NVIDIA H200", "NVIDIA A100"]))
    assert first == CudaDevice("NVIDIA H200", 150 << 30, (9, 0))
    assert second.name == "NVIDIA A100"


def test_a_driver_without_devices_has_none():
    assert ask(Driver([])) == ()


def test_a_device_that_does_not_answer_is_left_out():
    assert [each.name for each in ask(Driver(["a", "b"], broken=(0,)))] == ["b"]


def test_another_library_of_that_name_is_no_driver():
    assert ask(object()) == ()
