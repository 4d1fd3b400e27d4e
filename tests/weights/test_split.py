"""Split models: all parts are read as one file, and a set of parts that does not fit is refused."""

import json
import shutil
import subprocess
from contextlib import closing

import gguf
import numpy as np
import pytest

import tiny_models
from serving import STRETTO
from stretto.backends.native import NativeBackend
from stretto.errors import ModelError
from stretto.models import read_spec
from stretto.weights.files import part_name
from stretto.weights.gguf import GGUF
from stretto.weights.part import Part
from stretto.weights.writer import write_gguf, write_split

METADATA = {"general.architecture": "llama", "general.name": "split"}
TENSORS = {f"t{i}": np.full((4, 64), i, np.float32) for i in range(5)}


@pytest.fixture
def parts(tmp_path):
    return write_split(tmp_path / "m.gguf", METADATA, TENSORS, 3)


def rewritten(path, **changes):
    """Write a part again with other keys; None leaves one out."""
    with closing(Part(path)) as file:
        keys = {**file.metadata, **{name.replace("__", "."): value for name, value in changes.items()}}
        keys = {key: value for key, value in keys.items() if value is not None}
        write_gguf(path, keys, dict(file.tensors))


@pytest.mark.parametrize("given", range(3))
def test_any_part_gives_the_whole_model(parts, given):
    assert [path.name for path in parts] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    with GGUF(parts[given]) as file:
        assert list(file.tensors) == list(TENSORS)
        assert all((file.tensors[name].dequantize() == values).all() for name, values in TENSORS.items())
        assert file.metadata["general.name"] == "split"
        assert (file.path, file.files) == (parts[0], tuple(parts))
        assert file.nbytes == sum(path.stat().st_size for path in parts)
        assert [file.find_file(tensor) for tensor in file.tensors.values()] == [
            parts[i] for i in (0, 0, 1, 1, 2)
        ]
        assert "3 parts" in repr(file)


def test_pages_are_dropped_in_the_file_of_a_tensor_and_read_again(parts):
    with GGUF(parts[0]) as file:
        last = file.tensors["t4"]
        assert last.dequantize()[0, 0] == 4
        file.forget(last)
        file.forget(last, end=8)
        file.forget()
        assert last.dequantize()[0, 0] == 4
    assert last.dequantize()[0, 0] == 4  # a view keeps its mapping


def test_the_fingerprint_depends_on_every_part(parts, tmp_path):
    with GGUF(parts[0]) as file:
        found = file.fingerprint()
    assert len(found()) == 64
    with GGUF(parts[2]) as file:
        assert file.fingerprint()() == found()
    data = bytearray(parts[2].read_bytes())
    data[-1] ^= 1
    parts[2].write_bytes(data)
    with GGUF(parts[0]) as file:
        assert file.fingerprint()() != found()


def test_the_parts_are_as_others_write_them(parts):
    keys = [gguf.GGUFReader(path).fields for path in parts]
    assert [int(fields["split.no"].contents()) for fields in keys] == [0, 1, 2]
    assert all(fields["split.tensors.count"].types == [gguf.GGUFValueType.INT32] for fields in keys)
    assert ["general.name" in fields for fields in keys] == [True, False, False]


def test_a_first_part_may_have_no_tensors(tmp_path):
    path = tmp_path / "m-00001-of-00002.gguf"
    keys = {"split.count": np.uint16(2), "split.tensors.count": np.int32(5)}
    write_gguf(path, {**METADATA, **keys, "split.no": np.uint16(0)})
    write_gguf(path.with_name("m-00002-of-00002.gguf"), {**keys, "split.no": np.uint16(1)}, TENSORS)
    with GGUF(path) as file:
        assert list(file.tensors) == list(TENSORS)


@pytest.mark.parametrize("repack", [True, False])
def test_a_split_model_computes_as_the_whole_does(tmp_path, repack):
    whole = tiny_models.tiny_file("llama")
    parts = write_split(
        tmp_path / "tiny.gguf", whole.metadata, dict(whole.tensors), 4, types=whole.metadata.types
    )
    expected, found = (
        tiny_models.text_logits(NativeBackend(file, read_spec(file), 64, 1, repack=repack), [1, 2, 3])
        for file in (whole, GGUF(parts[2]))
    )
    assert (expected == found).all()


def test_a_missing_part_is_named(parts):
    parts[1].unlink()
    with pytest.raises(ModelError, match=r"m-00002-of-00003.gguf in split.count: part 2 of 3 is missing"):
        GGUF(parts[2])


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        (1, {"split__no": np.uint16(2)}, r"m-00002-of-00003.gguf in split.no: it is 2, not 1, by its name"),
        (2, {"split__no": None}, r"m-00003-of-00003.gguf in split.no: the key is missing"),
        (1, {"split__count": np.uint16(4)}, r"m-00002-of-00003.gguf in split.count: it is 4, not 3"),
        (0, {"split__count": np.uint16(4)}, r"m-00001-of-00003.gguf in split.count: 4 parts, but its name"),
        (0, {"split__count": np.uint16(4000)}, r"split.count: 4000 parts, but at most 1024 are read"),
        (0, {"split__count": "three"}, r"split.count: must be an integer, found string"),
        (2, {"split__tensors__count": np.int32(6)}, r"m-00003-.* in split.tensors.count: it is 6, not 5"),
        (0, {"split__tensors__count": None}, r"m-00001-.* in split.tensors.count: the key is missing"),
    ],
)
def test_keys_that_do_not_fit_are_named(parts, part, changes, message):
    rewritten(parts[part], **changes)
    with pytest.raises(ModelError, match=message):
        GGUF(parts[0])


def test_a_part_of_another_model_is_refused(parts, tmp_path):
    shutil.copy(parts[1], parts[2])
    with pytest.raises(ModelError, match=r"m-00003-of-00003.gguf in split"):
        GGUF(parts[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path):
    keys = {"split.count": np.uint16(2), "split.tensors.count": np.int32(2)}
    for number in (1, 2):
        write_gguf(
            tmp_path / f"m-0000{number}-of-00002.gguf",
            {**METADATA, **keys, "split.no": np.uint16(number - 1)},
            {"same": TENSORS["t0"]},
        )
    with pytest.raises(ModelError, match=r"tensor 'same': the tensor is in m-00001-of-00002.gguf too"):
        GGUF(tmp_path / "m-00002-of-00002.gguf")


def test_a_renamed_part_says_what_its_name_has_to_be(parts, tmp_path):
    parts[1].rename(tmp_path / "mine.gguf")
    with pytest.raises(ModelError, match=r"has to end with -00002-of-00003.gguf; rename it"):
        GGUF(tmp_path / "mine.gguf")


def test_a_damaged_part_is_named(parts):
    parts[2].write_bytes(parts[2].read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"m-00003-of-00003.gguf at byte"):
        GGUF(parts[0])


def test_a_name_alone_makes_no_split(tmp_path):
    path = tmp_path / "m-00001-of-00003.gguf"
    write_gguf(path, METADATA, TENSORS)
    with GGUF(path) as file:
        assert file.files == (path,)


def test_inspect_shows_all_parts(parts):
    command = [*STRETTO, "inspect", str(parts[1]), "--json"]
    document = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert document["bytes"] == sum(path.stat().st_size for path in parts)
    assert document["files"] == [str(path) for path in parts]
    assert [tensor["file"] for tensor in document["tensors"]][-1] == parts[2].name
    assert document["memory"]["weights"] == 5 * 4 * 64 * 4


@pytest.mark.parametrize(
    "name",
    ["m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-1-of-3.gguf", "m-00001-of-99999.gguf"],
)
def test_other_names_are_no_parts(name):
    assert part_name(name) is None
