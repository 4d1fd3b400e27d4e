"""Checkpoints of PyTorch are read without PyTorch, and nothing in them is run."""

import io
import os
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.weights.torch_file import read_torch

NUMBERS = np.arange(24, dtype=np.float32)


class Storage:
    def __init__(self, kind, key, n):
        self.entry = ("storage", kind, key, "cpu", n)


class Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.arguments = (storage, offset, shape, strides, False, OrderedDict())

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.arguments


@pytest.fixture
def torch(monkeypatch):
    """Just enough of PyTorch for pickle to write its names."""
    package, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "BFloat16Storage", "LongStorage"):
        setattr(package, name, type(name, (), {"__module__": "torch"}))

    def rebuild(*arguments):
        raise AssertionError("nothing is called")

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild
    monkeypatch.setitem(sys.modules, "torch", package)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return package


def pickled(value, protocol=2):
    file = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, made):
            return made.entry if isinstance(made, Storage) else None

    Pickler(file, protocol).dump(value)
    return file.getvalue()


def old_form(value, keys, data):
    head = [pickled(0x1950A86A20F9469CFC6C), pickled(1001), pickled({"little_endian": True})]
    return b"".join([*head, pickled(value), pickled(keys), *data])


def new_form(value, stored, protocol=2):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model/data.pkl", pickled(value, protocol))
        for key, data in stored.items():
            archive.writestr(f"model/data/{key}", data)
    return file.getvalue()


def state(torch, shape=(4, 6), strides=(6, 1), offset=0, kind="FloatStorage", n=24):
    storage = Storage(getattr(torch, kind), "7", n)
    return OrderedDict(a=Tensor(storage, offset, shape, strides), step=3)


@pytest.fixture
def read(tmp_path):
    def reads(data):
        path = tmp_path / "model.pth"
        path.write_bytes(data)
        return read_torch(path)

    return reads


def test_the_old_form_is_read(torch, read):
    made = read(old_form(state(torch), ["7"], [struct.pack("<q", 24), NUMBERS.tobytes()]))
    assert list(made) == ["a"]
    assert (made["a"] == NUMBERS.reshape(4, 6)).all()


@pytest.mark.parametrize("protocol", [2, 4])
def test_the_zip_form_is_read(torch, read, protocol):
    transposed = state(torch, shape=(5, 4), strides=(1, 6), offset=1)
    made = read(new_form({"state_dict": transposed, "epoch": 9}, {"7": NUMBERS.tobytes()}, protocol))
    assert (made["a"] == NUMBERS.reshape(4, 6)[:, 1:].T).all()


def test_bfloat16_becomes_float32(torch, read):
    halves = (NUMBERS.view(np.uint32) >> 16).astype(np.uint16)
    made = read(new_form(state(torch, kind="BFloat16Storage"), {"7": halves.tobytes()}))
    assert made["a"].dtype == np.float32
    assert (made["a"] == NUMBERS.reshape(4, 6)).all()


def test_code_in_a_pickle_is_not_run(read, tmp_path):
    class Bad:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was-run"),)

    with pytest.raises(ModelError, match=r"mkdir, which is not run"):
        read(new_form({"a": Bad()}, {}))
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    "layout",
    [
        {"shape": (5, 6), "strides": (6, 1)},  # more numbers than there are
        {"offset": 20},
        {"shape": (1000, 1000), "strides": (0, 0)},  # one number, many times
        {"shape": (4, 6), "strides": (600, 1)},
        {"shape": (1 << 40,), "strides": (1,)},
    ],
)
def test_tensors_beyond_their_storage_are_refused(torch, read, layout):
    with pytest.raises(ModelError, match="reaches beyond"):
        read(new_form(state(torch, **layout), {"7": NUMBERS.tobytes()}))


def test_storages_that_differ_from_their_size_are_refused(torch, read):
    with pytest.raises(ModelError, match="has 96 bytes for 25 numbers"):
        read(new_form(state(torch, n=25), {"7": NUMBERS.tobytes()}))
    with pytest.raises(ModelError, match="lacks the storage"):
        read(new_form(state(torch), {"8": NUMBERS.tobytes()}))
    with pytest.raises(ModelError, match=r"has 9223372036854775807 numbers in the file"):
        read(old_form(state(torch), ["7"], [struct.pack("<q", 2**63 - 1)]))
    with pytest.raises(ModelError, match="lacks storages"):
        read(old_form(state(torch), [], []))


@pytest.mark.parametrize(
    "value",
    [[1, 2], {"a": pickle}, {"a": {1, 2}}, {"a": range(3)}, {(1, 2): 3}],
    ids=["list", "module", "set", "range", "key"],
)
def test_other_pickles_are_refused(read, value):
    try:
        data = new_form(value, {})
    except TypeError:  # a module cannot be pickled
        data = b"\x80\x02cpickle\nloads\n."
    with pytest.raises(ModelError):
        read(data)


def test_damaged_files_are_model_errors(torch, read):
    whole = old_form(state(torch), ["7"], [struct.pack("<q", 24), NUMBERS.tobytes()])
    for end in range(0, len(whole), 7):
        with pytest.raises(ModelError):
            read(whole[:end])
    generator = np.random.default_rng(1)
    for _ in range(300):
        data = bytearray(whole)
        data[generator.integers(len(data) - 96)] = generator.integers(256)
        try:
            made = read(bytes(data))
        except ModelError:
            continue
        assert all(array.size <= 24 for array in made.values())
