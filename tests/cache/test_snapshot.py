"""The file of a saved sequence: what it holds, what is refused, and that damage never becomes a sequence."""

import json
import os
import random
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from stretto.cache import snapshot as module
from stretto.cache.snapshot import Expected, Snapshot, SnapshotFile, write_snapshot
from stretto.cache.snapshot_head import _checksum
from stretto.errors import InvalidRequest, ModelError, SnapshotError

N, CELL = 40, 24
MODEL, LAYOUT = "ab" * 32, "native f16, 1 layers, 1 heads of 6"
CELLS = np.random.default_rng(1).integers(0, 256, (N, CELL), np.uint8)
EXPECTED = Expected(model=MODEL, layout=LAYOUT, cell_bytes=CELL, n_vocab=500, n_embd=6, context_length=64)


def int32(*values):
    return np.array(values, np.int32)


SAVED = Snapshot(
    model=MODEL,
    layout=LAYOUT,
    tokens=np.arange(N, dtype=np.int32) * 7,
    positions=np.arange(N, dtype=np.int32) + (np.arange(N) > 10) * np.int32(5),  # with a hole
    n_prompt=12,
    exact=9,
    seed=(1 << 64) - 1,
    index=3,
    draws=77,
    waiting=b"\xe2\x82",
    fresh=True,
)


def written(path, saved=SAVED, cells=CELLS):
    write_snapshot(path, saved, cells.shape[1], lambda first, last: cells[first:last])
    return path


def read(path, expected=EXPECTED):
    """The snapshot and its cells."""
    with SnapshotFile(path, expected) as file:
        cells = np.zeros((len(file.snapshot.tokens), expected.cell_bytes), np.uint8)
        for first, data in file.pieces():
            cells[first : first + len(data)] = data
        return file.snapshot, cells


def names(folder):
    """What is in it, but for the store that every test has."""
    return [entry.name for entry in folder.iterdir() if entry.name != "stretto-home"]


def same(found, saved=SAVED, cells=CELLS):
    """Whether what was read is what was saved, all of it."""
    arrays = ("tokens", "positions")
    plain = dict.fromkeys(arrays)
    return (
        replace(found[0], **plain) == replace(saved, **plain)
        and all(np.array_equal(getattr(found[0], name), getattr(saved, name)) for name in arrays)
        and np.array_equal(found[1], cells)
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.safetensors"


# -- what is written is read --


@pytest.mark.parametrize("piece", [1, CELL, 7 * CELL + 5, 1 << 20])
def test_what_is_written_is_read(path, monkeypatch, piece):
    monkeypatch.setattr(module, "PIECE_BYTES", piece)
    assert same(read(written(path)))
    assert names(path.parent) == [path.name]


def test_none_is_not_a_number(path):
    saved = replace(SAVED, exact=None, waiting=b"", fresh=False)
    assert same(read(written(path, saved)), saved)
    saved = replace(saved, exact=0)
    assert same(read(written(path, saved)), saved)


def test_an_empty_sequence(path):
    saved = replace(SAVED, tokens=int32(), positions=int32(), n_prompt=0, exact=None)
    assert same(read(written(path, saved, CELLS[:0])), saved, CELLS[:0])


def test_anyone_can_open_it(path):
    tensors = load_file(written(path))
    np.testing.assert_array_equal(tensors["tokens"], SAVED.tokens)
    np.testing.assert_array_equal(tensors["positions"], SAVED.positions)
    np.testing.assert_array_equal(tensors["cells"], CELLS)


def test_what_another_writer_makes_of_it_is_read_too(path):
    metadata = SAVED.metadata(json.loads(head_of(written(path).read_bytes()))["__metadata__"]["cells"])
    tensors = {"tokens": SAVED.tokens, "positions": SAVED.positions, "cells": CELLS}
    path.write_bytes(save(tensors, metadata))
    assert same(read(path))


def test_a_long_one_needs_little_memory(path, monkeypatch):
    monkeypatch.setattr(module, "PIECE_BYTES", 1 << 16)
    n, cell = 4000, 4096
    saved = replace(
        SAVED, tokens=np.zeros(n, np.int32), positions=np.arange(n, dtype=np.int32), n_prompt=n, exact=None
    )
    row = np.arange(cell, dtype=np.int64).astype(np.uint8)
    tracemalloc.start()
    write_snapshot(path, saved, cell, lambda first, last: np.tile(row, (last - first, 1)))
    with SnapshotFile(path, replace(EXPECTED, cell_bytes=cell, context_length=n)) as file:
        assert sum(len(data) for _, data in file.pieces()) == n
    assert tracemalloc.get_traced_memory()[1] < 1 << 20  # of 16 MB
    tracemalloc.stop()


# -- writing --


def test_a_failed_write_leaves_the_old_file(path):
    written(path)

    def fail(first, last):
        raise MemoryError

    with pytest.raises(MemoryError):
        write_snapshot(path, replace(SAVED, draws=1), CELL, fail)
    assert same(read(path))
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize("wrong", [None, 3, b"saved", "", "a\0b", ["a"]])
def test_paths_that_are_none(wrong):
    for use in (lambda: written(wrong), lambda: read(wrong)):
        with pytest.raises(InvalidRequest, match="path must be the path of a file, not"):
            use()


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for where in (tmp_path / "no" / "such", tmp_path, tmp_path / "file" / "below", tmp_path / ("x" * 250)):
        with pytest.raises(SnapshotError, match="cannot be written: ") as raised:
            written(where)
        assert str(raised.value).startswith(f"{where}: ")
        assert raised.value.path == str(where)
    assert names(tmp_path) == ["file"]


def test_what_could_not_be_read_is_not_written(path):
    for wrong in ({"positions": SAVED.positions[::-1].copy()}, {"tokens": SAVED.tokens[1:]}):
        with pytest.raises(SnapshotError):
            written(path, replace(SAVED, **wrong))
    assert not path.exists()


# -- refusals: each in a sentence of its own --


def test_places_that_cannot_be_read(tmp_path):
    with pytest.raises(SnapshotError, match="no such file"):
        read(tmp_path / "none")
    with pytest.raises(SnapshotError, match="is not a file"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SnapshotError, match="is not a file"):
        read(tmp_path / "pipe")
    assert issubclass(SnapshotError, ModelError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "cd" * 32}, f"saved by another model, with the fingerprint '{MODEL}', not '{'cd' * 32}'"),
        ({"layout": "native q8"}, f"saved from a cache of the kind '{LAYOUT}', not 'native q8'; load .* kv"),
        ({"cell_bytes": 20}, "a cell of 24 bytes, not 20"),
        ({"n_vocab": 273}, "token 39 is 273, and the vocabulary has 0 to 272"),
        (
            {"context_length": 44},
            "last token stands at position 44, and the context has 44; load .* more cells",
        ),
        ({"context_length": 39}, "40 tokens, and the context has 39; load the model with more cells"),
    ],
)
def test_what_the_model_cannot_go_on_with(path, change, message):
    with pytest.raises(SnapshotError, match=message) as raised:
        read(written(path), replace(EXPECTED, **change))
    assert raised.value.path == str(path)


def crafted(path, tensors=None, recompute=True, **metadata):
    """A file that says something else, with a checksum to match, as an attacker would make it."""
    written(path)
    fields = json.loads(head_of(path.read_bytes()))["__metadata__"]
    fields |= metadata
    fields = {key: value for key, value in fields.items() if value is not None}
    arrays = {"tokens": SAVED.tokens, "positions": SAVED.positions, "cells": CELLS, **(tensors or {})}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
    if recompute and {"tokens", "positions"} <= arrays.keys():
        fields.pop("checksum", None)
        fields["checksum"] = _checksum(fields, arrays["tokens"], arrays["positions"])
    path.write_bytes(save(arrays, fields))
    return path


def changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


def given(**tensors):
    return {"tensors": tensors}


REFUSED = {
    "another format": ({"format": "pickle"}, "its format is 'pickle', not 'stretto sequence'"),
    "no format": ({"format": None}, "its format is None"),
    "another version": ({"version": "3"}, "version '3' of the format is not known, only '1' and '2'"),
    "no version": ({"version": None}, "version None of the format"),
    "a key less": ({"seed": None}, "keys are missing or too many: seed"),
    "a key more": ({"code": "import os"}, "keys are missing or too many: code"),
    "another checksum": ({"recompute": False, "draws": "78"}, "checksum of its head and tokens is wrong"),
    "another hash of the cells": ({"cells": "0" * 64}, "cells are not those that were saved"),
    "a prompt longer than all": ({"n_prompt": "41"}, "n_prompt: '41' is no number from 0 to 40"),
    "a negative prompt": ({"n_prompt": "-1"}, "n_prompt: '-1' is no number"),
    "more exact than there are": ({"exact": "41"}, "exact: '41' is no number from 0 to 40"),
    "a seed too large": ({"seed": str(1 << 64)}, "seed: .* is no number from 0 to 18446744073709551615"),
    "a number without end": ({"seed": "9" * 5000}, "seed: '9999999999"),
    "no number": ({"index": "0x1"}, "index: '0x1' is no number"),
    "digits of another script": ({"index": "٣"}, "index: '٣' is no number"),
    "draws without end": ({"draws": str((1 << 63) + 1)}, "draws: .* is no number"),
    "no flag": ({"fresh": "2"}, "fresh: '2' is no number from 0 to 1"),
    "too much of a character": ({"waiting": "e2828282"}, "up to three bytes can wait"),
    "no bytes": ({"waiting": "xy"}, "up to three bytes can wait"),
    "no cells": (given(cells=None), "tokens, positions, cells are needed and no others"),
    "a tensor more": (given(more=int32(1)), "tokens, positions, cells are needed and no others"),
    "tokens of 64 bits": (given(tokens=SAVED.tokens.astype(np.int64)), r"I32 is needed, not I64\[40\]"),
    "positions as floats": (given(positions=np.zeros(N, np.float32)), r"I32 is needed, not F32\[40\]"),
    "cells as signed bytes": (given(cells=CELLS.view(np.int8)), r"U8 is needed, not I8\[40, 24\]"),
    "cells in one dimension": (given(cells=CELLS.reshape(-1)), r"U8 is needed, not U8\[960\]"),
    "tokens in two": (given(tokens=SAVED.tokens[None]), r"I32 is needed, not I32\[1, 40\]"),
    "a token less": (given(tokens=SAVED.tokens[1:]), "39 tokens, 40 positions and 40 cells"),
    "a position less": (given(positions=SAVED.positions[1:]), "40 tokens, 39 positions and 40 cells"),
    "a cell less": (given(cells=CELLS[1:]), "40 tokens, 40 positions and 39 cells"),
    "a smaller cell": (given(cells=CELLS[:, 1:]), "a cell of 23 bytes, not 24"),
    "a cell of nothing": (given(cells=CELLS[:, :0]), "a cell of 0 bytes, not 24"),
    "a token too large": (
        given(tokens=changed(SAVED.tokens, 5, 500)),
        "token 5 is 500, and the vocabulary has 0 to 499",
    ),
    "a negative token": (given(tokens=changed(SAVED.tokens, 5, -1)), "token -1 and position 0"),
    "a negative position": (given(positions=changed(SAVED.positions, 0, -1)), "token 0 and position -1"),
    "a position twice": (
        given(positions=changed(SAVED.positions, 5, 4)),
        "token 5 stands at position 4, behind one at 4; positions must increase",
    ),
    "positions that fall": (
        given(positions=changed(SAVED.positions, 39, 0)),
        "token 39 stands at position 0, behind one at 43",
    ),
    "a position beyond the context": (
        given(positions=changed(SAVED.positions, 39, 64)),
        "stands at position 64, and the context has 64",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_crafted_files(path, changes, message):
    with pytest.raises(SnapshotError, match=message) as raised:
        read(crafted(path, **changes))
    assert str(raised.value).startswith(f"{path}")


def test_a_crafted_file_that_says_nothing_wrong(path):
    assert same(read(crafted(path)))
    assert read(crafted(path, draws=str(1 << 63)))[0].draws == 1 << 63


# -- damage --


def head_of(data):
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def refuses_or_reads_the_same(path, data):
    """True if it is refused."""
    path.write_bytes(data)
    try:
        assert same(read(path))
    except SnapshotError:
        return True
    return False


def test_cut_off_anywhere(path):
    data = written(path).read_bytes()
    assert not refuses_or_reads_the_same(path, data)
    for length in range(len(data)):
        assert refuses_or_reads_the_same(path, data[:length])
    for more in (b"\0", b" " * 8, data):
        assert refuses_or_reads_the_same(path, data + more)


def test_every_byte_of_the_head_damaged(path):
    data = written(path).read_bytes()
    start = 8 + len(head_of(data))
    padding = len(head_of(data)) - len(head_of(data).rstrip())
    harmless = 0
    for at in range(start):
        for value in {data[at] ^ 1, data[at] ^ 0x80, 0, 0xFF, ord('"'), ord("9"), ord(" ")} - {data[at]}:
            damaged = data[:at] + bytes([value]) + data[at + 1 :]
            harmless += not refuses_or_reads_the_same(path, damaged)
    assert harmless <= 2 * padding + 40  # a space that became another kind of space, and the like


@pytest.mark.slow
def test_random_damage(path):
    rng, data = random.Random(5), written(path).read_bytes()
    start = 8 + len(head_of(data))
    for i in range(4000):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            at = rng.randrange(start, len(data)) if i % 2 else rng.randrange(len(data))
            damaged[at] ^= 1 << rng.randrange(8)
        refused = refuses_or_reads_the_same(path, bytes(damaged))
        assert refused or damaged[start:] == data[start:]  # what changed the data never goes through
    for _ in range(1000):
        a, b = sorted(rng.randrange(len(data)) for _ in range(2))
        c = rng.randrange(len(data))
        spliced = rng.choice((data[:a] + data[b:], data[:b] + data[a:], data[:a] + data[c:] + data[b:]))
        assert refuses_or_reads_the_same(path, spliced) or spliced == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\0" * 1000,
        b"\xff" * 1000,
        b"GGUF" + b"\0" * 100,
        b"\x80\x04cos\nsystem\n",
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 60_000) + b"{" * 60_000,
        struct.pack("<Q", 60_000) + b'{"a":' * 12_000,
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 8) + b"[1,2,3] ",
        struct.pack("<Q", 4) + b"null",
    ],
    ids=lambda data: repr(data[:16]),
)
def test_files_of_other_kinds(path, data):
    path.write_bytes(data)
    with pytest.raises(SnapshotError):
        read(path)


def test_claims_allocate_nothing(path):
    entry = {"dtype": "I32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}
    text = json.dumps({"__metadata__": SAVED.metadata("0" * 64), "tokens": entry}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with path.open("ab") as file:
        file.truncate(8 + len(text) + (1 << 42))  # all of it there, and nothing on the disk
    tracemalloc.start()
    with pytest.raises(SnapshotError):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
