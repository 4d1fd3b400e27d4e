"""What tells a model file from others."""

import shutil

import numpy as np
import pytest

from stretto.weights.gguf import GGUF
from stretto.weights.mapped import SAMPLE_BYTES
from stretto.weights.writer import write_gguf


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.gguf"
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((64, 96)).astype(np.float32) for name in ("a", "b")}
    write_gguf(
        path, {"general.architecture": "llama", "general.name": "one"}, {**tensors, "c": tensors["a"][0]}
    )
    return path


def fingerprint(path):
    with GGUF(path) as file:
        return file.fingerprint()()


def test_of_the_bytes_and_not_of_the_name(path, tmp_path):
    found = fingerprint(path)
    assert len(found) == 64
    shutil.copy(path, tmp_path / "copy.gguf")
    assert fingerprint(tmp_path / "copy.gguf") == found


def test_another_byte_is_another_model(path):
    found, data = fingerprint(path), path.read_bytes()
    with GGUF(path) as file:
        spans = [(tensor.offset, tensor.offset + tensor.nbytes) for tensor in file.tensors.values()]
    seen = {found}
    name = data.index(b"one")
    sampled = [
        name,
        *(at for first, last in spans for at in (first, min(first + SAMPLE_BYTES, last) - 1, last - 1)),
    ]
    for at in sampled:
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        seen.add(fingerprint(path))
    path.write_bytes(data + b"\0")
    seen.add(fingerprint(path))
    assert len(seen) == len(set(sampled)) + 2


def test_it_can_be_had_later(path):
    expected = fingerprint(path)
    with GGUF(path) as file:
        later = file.fingerprint()
    replacement = path.with_name("other.gguf")
    write_gguf(replacement, {"general.architecture": "llama"}, {"a": np.zeros(4, np.float32)})
    replacement.replace(path)
    assert later() == later() == expected  # of the file that was opened
    assert fingerprint(path) != expected
