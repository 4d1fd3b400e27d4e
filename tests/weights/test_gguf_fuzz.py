"""A hostile file may say anything; the reader answers with a file or with a ModelError that says where.

First every number in a valid file lies, one at a time; then bytes are flipped, cut, doubled and spliced at
random. What parses is then used: every string decoded, every tensor's bytes read.
"""

import random
import struct
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from stretto.errors import ModelError
from stretto.weights.formats import READABLE, Format
from stretto.weights.metadata import SCALARS, Strings, ValueType
from stretto.weights.parser import Parser
from stretto.weights.writer import Quantized, write_gguf

STAGES = ("header", "metadata", "tensor", "used")


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "valid.gguf"
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "flag": True,
        "f64": np.float64(1.5),
        "u64": np.uint64(7),
        "tokens": [f"token {i}" for i in range(50)],
        "scores": np.arange(50, dtype=np.float32),
        "flags": [True, False, True],
        "nested": [[1, 2, 3], [4]],
        "words": [["a", "b"], ["c"]],
    }
    weights = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
    tensors = {
        "f32": weights,
        "f16": weights.astype(np.float16),
        "q8": Quantized(weights, Format.Q8_0),
        "q4": Quantized(weights.reshape(2, 2, 64), Format.Q4_0),
        "vector": np.ones(9, np.float32),
    }
    write_gguf(path, metadata, tensors)
    return path.read_bytes()


def numbers(data):
    """(name, offset, size) of every count, length, type, dimension and offset: an independent walk."""
    found = []
    at = 0

    def number(name, size):
        nonlocal at
        found.append((name, at, size))
        value = int.from_bytes(data[at : at + size], "little")
        at += size
        return value

    def text(name):
        nonlocal at
        length = number(f"{name} length", 8)
        at += length

    def value(name, kind):
        if kind == ValueType.STRING:
            text(name)
        elif kind == ValueType.ARRAY:
            item = number(f"{name} item type", 4)
            for _ in range(number(f"{name} count", 8)):
                value(f"{name} item", item)
        else:
            number(f"{name} value", SCALARS[ValueType(kind)][0].size)

    for name, size in (("magic", 4), ("version", 4)):
        number(name, size)
    n_tensors, n_keys = number("tensor count", 8), number("key count", 8)
    for _ in range(n_keys):
        text("key")
        value("metadata", number("type", 4))
    for _ in range(n_tensors):
        text("tensor name")
        for _ in range(number("dimensions", 4)):
            number("dimension", 8)
        number("format", 4)
        number("offset", 8)
    return found


def lies(true, size, file_size):
    """Other values for a number of `size` bytes."""
    top = 1 << 8 * size
    near = (0, 1, 2, 3, 7, 8, true - 1, true + 1, true * 2, true + 8, true ^ 0x80, file_size, file_size + 1)
    edges = (top - 1, top - 2, top - 8, top // 2, top // 2 - 1, top // 2 + 1)
    overflows = (2**31, 2**32 - 1, 2**32, 2**32 + true, 2**61, 2**62 + 1, 2**63, 2**64 - 32, 2**64 // 18 + 1)
    return sorted({value % top for value in near + edges + overflows} - {true})


def use(value):
    if isinstance(value, Strings):
        return sum(map(len, value))
    if isinstance(value, list):
        return sum(map(use, value))
    return value.sum() if isinstance(value, np.ndarray) else 0


def stage(data):
    """How far the reader got: the stage that refused the file, or "used"."""
    try:
        parser = Parser(memoryview(data), Path("fuzzed.gguf"))
        parser.parse()
        with np.errstate(all="ignore"):
            for value in parser.metadata.values():
                use(value)
            for tensor in parser.tensors.values():
                if tensor.format in READABLE:
                    assert tensor.dequantize().shape == tensor.shape
        return "used"
    except ModelError as caught:
        error = caught
    assert error.offset is not None
    assert error.offset >= 0
    assert error.field
    place = error.field.removeprefix("fuzzed.gguf ").split()[0]
    assert place in STAGES
    return place


def report(capsys, what, counts):
    with capsys.disabled():
        reached = ", ".join(f"{name} {counts[name]}" for name in STAGES)
        print(f"\n  {what}: {counts.total()} cases; refused in or reached: {reached}")


def test_one_number_lies(valid, capsys):
    assert stage(valid) == "used"
    counts = Counter()
    tracemalloc.start()
    try:
        for _, offset, size in numbers(valid):
            true = int.from_bytes(valid[offset : offset + size], "little")
            for lie in lies(true, size, len(valid)):
                data = bytearray(valid)
                data[offset : offset + size] = lie.to_bytes(size, "little")
                counts[stage(data)] += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    report(capsys, "one number lies", counts)
    assert counts.total() > 2000
    assert min(counts[name] for name in STAGES) >= 30
    assert peak < 4 << 20  # nothing is allocated because a file says so


def test_every_truncation_is_noticed(valid, capsys):
    counts = Counter(stage(valid[:length]) for length in range(1, len(valid) - 32))
    report(capsys, "truncated", counts)
    assert counts["used"] == 0
    assert min(counts[name] for name in STAGES[:3]) > 10


def test_random_mutations(valid, capsys):
    rng = random.Random(20)
    head = len(valid) - 1500  # most mutations where the structure is
    counts = Counter()
    for _ in range(6000):
        data = bytearray(valid)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(head if rng.random() < 0.9 else len(data))
            match rng.randrange(5):
                case 0:
                    data[at] ^= 1 << rng.randrange(8)
                case 1:
                    data[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**32, 2**63, 2**64 - 1)))
                case 2:
                    del data[at : at + rng.randrange(1, 40)]
                case 3:
                    data[at:at] = data[at : at + rng.randrange(1, 40)]
                case 4:
                    data[at : at + 16] = rng.randbytes(16)
        counts[stage(data)] += 1
    report(capsys, "random mutations", counts)
    assert min(counts[name] for name in STAGES[1:]) >= 100


def test_deep_nesting_is_refused():
    def nest(depth):
        value = struct.pack("<IQ", ValueType.ARRAY, 1) * depth + struct.pack("<IQ", ValueType.INT32, 0)
        key = struct.pack("<Q", 1) + b"k" + struct.pack("<I", ValueType.ARRAY)
        return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + value

    assert stage(nest(3)) == "used"
    assert stage(nest(100_000)) == "metadata"


def test_overlapping_tensors_are_refused(valid):
    offsets = [(at, size) for name, at, size in numbers(valid) if name == "offset"]
    data = bytearray(valid)
    data[offsets[1][0] : offsets[1][0] + 8] = bytes(8)  # the second starts where the first does
    with pytest.raises(ModelError, match="its bytes overlap those of 'f"):
        Parser(memoryview(data), Path("x")).parse()
