"""The reader and the writer, on files made here and on real ones."""

import os
import struct

import gguf
import numpy as np
import pytest

from stretto.errors import InvalidRequest, ModelError
from stretto.weights.formats import Format, dequantize, quantize
from stretto.weights.gguf import GGUF
from stretto.weights.metadata import ValueType
from stretto.weights.writer import Quantized, write_gguf

METADATA = {
    "general.architecture": "llama",
    "general.name": "naïve ☕",
    "a.bool": True,
    "a.uint8": np.uint8(255),
    "a.int8": np.int8(-128),
    "a.uint16": np.uint16(65535),
    "a.int16": np.int16(-32768),
    "a.uint32": 2**32 - 1,
    "a.int32": -5,
    "a.float32": 0.5,
    "a.float64": np.float64(0.1),
    "a.uint64": 2**64 - 1,
    "a.int64": -(2**63),
    "a.empty": "",
    "list.strings": ["a", "", "größer"],
    "list.ints": [1, -2, 3],
    "list.big": [2**40],
    "list.bools": [True, False],
    "list.floats": np.array([0.5, 1.5], np.float32),
    "list.nested": [[1, 2], [3], []],
    "list.nested.strings": [["a"], ["b", "c"]],
    "list.empty": [],
}


def tensors():
    rng = np.random.default_rng(0)
    return {
        "f32": rng.standard_normal((3, 5)).astype(np.float32),
        "f16": rng.standard_normal(7).astype(np.float16),
        "q8": Quantized(rng.standard_normal((2, 3, 64)).astype(np.float32), Format.Q8_0),
        "q4": Quantized(rng.standard_normal((4, 32)).astype(np.float32), Format.Q4_1),
        "i32": np.arange(6, dtype=np.int32),
    }


@pytest.fixture
def path(tmp_path):
    write_gguf(tmp_path / "t.gguf", METADATA, tensors())
    return tmp_path / "t.gguf"


def plain(value):
    """Reader's values as plain Python ones."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (str, int, float)):
        return value
    return [plain(item) for item in value]


def test_round_trip(path):
    with GGUF(path) as file:
        assert file.version == 3
        assert file.alignment == 32
        assert {k: plain(v) for k, v in file.metadata.items()} == {
            k: v.item() if isinstance(v, np.generic) else plain(v) for k, v in METADATA.items()
        }
        assert isinstance(file.metadata["a.bool"], bool)
        source = tensors()
        assert list(file.tensors) == list(source)
        assert file.tensors["q8"].shape == (2, 3, 64)
        assert file.tensors["q8"].format is Format.Q8_0
        assert np.array_equal(file.tensors["q8"].data, quantize(source["q8"].array, Format.Q8_0))
        assert np.array_equal(file.tensors["f32"].dequantize(), source["f32"])
        assert np.array_equal(file.tensors["f16"].dequantize(), source["f16"].astype(np.float32))
        for tensor in file.tensors.values():
            assert tensor.offset % 32 == 0
            assert not tensor.data.flags.owndata  # a view into the file
            assert not tensor.data.flags.writeable


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_versions_and_alignments(tmp_path, version, alignment):
    metadata = {"general.alignment": alignment, "x": "y"}
    write_gguf(tmp_path / "t.gguf", metadata, tensors(), version=version)
    with GGUF(tmp_path / "t.gguf") as file:
        assert (file.version, file.alignment) == (version, alignment)
        assert all(t.offset % alignment == 0 for t in file.tensors.values())
        assert np.array_equal(file.tensors["f32"].dequantize(), tensors()["f32"])


def test_a_file_written_again_is_the_same(path, tmp_path):
    with GGUF(path) as file:
        write_gguf(tmp_path / "again.gguf", file.metadata, file.tensors, types=file.metadata.types)
    assert (tmp_path / "again.gguf").read_bytes() == path.read_bytes()


def test_views_outlive_the_file(path):
    with GGUF(path) as file:
        tensor = file.tensors["f32"]
        words = file.metadata["list.strings"]
    path.unlink()
    assert np.array_equal(tensor.dequantize(), tensors()["f32"])
    assert list(words) == ["a", "", "größer"]


def test_typed_getters(path):
    with GGUF(path) as file:
        meta = file.metadata
        assert meta.integer("a.int32") == -5
        assert meta.number("a.int32") == -5.0
        assert meta.flag("a.bool") is True
        assert meta.text("nothing", "default") == "default"
        assert meta.strings("list.strings") == ["a", "", "größer"]
        assert meta.array("list.floats").tolist() == [0.5, 1.5]
        with pytest.raises(ModelError, match=r"t\.gguf in a\.bool: must be an integer, found bool"):
            meta.integer("a.bool")
        with pytest.raises(ModelError, match=r"in nothing: the key is missing"):
            meta.integer("nothing")
        for getter in (meta.number, meta.flag, meta.strings, meta.array):
            with pytest.raises(ModelError, match=r"in a\.empty: must be"):
                getter("a.empty")
        with pytest.raises(ModelError, match="must be a string, found array"):
            meta.text("list.ints")


@pytest.mark.golden
def test_pypi_gguf_reads_what_we_write(path):
    reader = gguf.GGUFReader(path)
    for key, value in METADATA.items():
        if key in ("list.nested", "list.nested.strings", "list.empty"):
            continue  # it does not read nested or empty arrays back as such
        field = reader.fields[key]
        assert field.contents() == (value.item() if isinstance(value, np.generic) else plain(value)), key
    for theirs in reader.tensors:
        with GGUF(path) as file:
            ours = file.tensors[theirs.name]
            assert tuple(reversed([int(n) for n in theirs.shape])) == ours.shape
            assert theirs.tensor_type.name == ours.format.name
            assert theirs.data_offset == ours.offset


@pytest.mark.golden
def test_we_read_what_pypi_gguf_writes(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_array("tokens", ["x", "y"])
    writer.add_float32("eps", 1e-5)
    array = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    writer.add_tensor("w", array)
    q = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor("q", q, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUF(tmp_path / "t.gguf") as file:
        assert file.metadata["general.architecture"] == "llama"
        assert file.metadata.strings("tokens") == ["x", "y"]
        assert np.array_equal(file.tensors["w"].dequantize(), array)
        assert np.array_equal(file.tensors["q"].dequantize(), dequantize(q, Format.Q5_1))


@pytest.mark.golden
def test_real_files_equal_pypi_gguf(smollm2_path):
    reader = gguf.GGUFReader(smollm2_path)
    with GGUF(smollm2_path) as file:
        theirs = {k: v for k, v in reader.fields.items() if not k.startswith("GGUF.")}
        assert list(file.metadata) == list(theirs)
        for key, field in theirs.items():
            assert plain(file.metadata[key]) == field.contents(), key
        assert [t.name for t in reader.tensors] == list(file.tensors)
        for tensor in reader.tensors:
            ours = file.tensors[tensor.name]
            assert np.array_equal(ours.data.reshape(-1), np.asarray(tensor.data).view(np.uint8).reshape(-1))


@pytest.mark.golden
def test_rewritten_real_file_is_identical(smollm2_path, tmp_path):
    with GGUF(smollm2_path) as file:
        write_gguf(tmp_path / "again.gguf", file.metadata, file.tensors, types=file.metadata.types)
    assert (tmp_path / "again.gguf").read_bytes() == smollm2_path.read_bytes()


@pytest.mark.golden
def test_gemma_opens(gemma3_path):
    with GGUF(gemma3_path) as file:
        assert len(file.metadata.strings("tokenizer.ggml.tokens")) == 262_144
        formats = {tensor.format.name for tensor in file.tensors.values()}
        assert formats == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}


# -- files that cannot be used --


def test_wrong_paths(tmp_path, path):
    with pytest.raises(ModelError, match="no such file"):
        GGUF(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="is a directory"):
        GGUF(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelError, match="empty"):
        GGUF(tmp_path / "empty.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="pipe"):
        GGUF(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError):
        GGUF("nul\0.gguf")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_no_permission(path):
    path.chmod(0)
    with pytest.raises(ModelError, match="no permission"):
        GGUF(path)


def test_no_permission_as_seen_by_root(path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(ModelError, match="no permission to read it"):
        GGUF(path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"GGUF" + struct.pack("<I", 1), "version 1 is no longer in use"),
        (b"GGUF" + struct.pack("<I", 4), "version 4 is not known"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"FUGG" + struct.pack(">I", 3), "big-endian"),
        (b"PK\x03\x04", "zip archive"),
        (b"version https://git-lfs", "git lfs pull"),
        (b"\x10\0\0\0\0\0\0\0{}", "safetensors"),
        (b"G", "not a GGUF file"),
        (b"GGUF", "are left"),
    ],
)
def test_other_files(tmp_path, head, message):
    (tmp_path / "x.gguf").write_bytes(head + b"\0" * (24 if len(head) > 4 else 0))
    with pytest.raises(ModelError, match=message) as caught:
        GGUF(tmp_path / "x.gguf")
    assert caught.value.offset is not None
    assert caught.value.field == "header"


def test_the_error_says_where(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 16])
    with pytest.raises(ModelError, match=r"t\.gguf at byte \d+ in tensor 'i32': 24 bytes are announced"):
        GGUF(path)


@pytest.mark.parametrize("n", [20, 24, 30, 60, 200, -16])
def test_a_file_that_is_cut_off_says_to_fetch_it_again(path, n):
    path.write_bytes(path.read_bytes()[:n])
    with pytest.raises(ModelError, match="cut off or damaged; fetch it again"):
        GGUF(path)


# -- the writer's own errors --


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"x": 2**64}, "does not fit into 64 bits"),
        ({"x": object()}, "object cannot be stored"),
        ({"x": b"bytes"}, "bytes cannot be stored"),
        ({"x": ["a", 1]}, "list of one type"),
        ({"x": np.zeros((2, 2))}, "one axis"),
        ({"": 1}, "1 to 65535 bytes"),
        ({"general.alignment": 12}, "power of two"),
    ],
)
def test_unwritable_metadata(tmp_path, metadata, message):
    with pytest.raises(InvalidRequest, match=message):
        write_gguf(tmp_path / "t.gguf", metadata)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (np.zeros((0, 3), np.float32), "none of 0"),
        (np.zeros((1, 1, 1, 1, 1), np.float32), "1 to 4 dimensions"),
        (np.zeros(3, np.complex64), "complex64"),
        (Quantized(np.zeros(33, np.float32), Format.Q4_0), "blocks of 32"),
        (Quantized(np.full(32, np.inf, np.float32), Format.Q4_0), "NaN or infinity"),
    ],
)
def test_unwritable_tensors_leave_nothing_behind(tmp_path, tensor, message):
    with pytest.raises(InvalidRequest, match=message):
        write_gguf(tmp_path / "t.gguf", {}, {"t": tensor})
    assert list(tmp_path.iterdir()) == []


def test_types_are_kept_and_can_be_forced(tmp_path):
    write_gguf(tmp_path / "t.gguf", {"x": 5}, types={"x": ValueType.UINT64})
    with GGUF(tmp_path / "t.gguf") as file:
        assert file.metadata.types["x"] is ValueType.UINT64
