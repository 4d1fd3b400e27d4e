"""The image cache, in memory and in a folder: found by content, never trusted."""

import os
import random
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file

import stretto
from stretto import ImageCache, InvalidRequest
from stretto.vision.cache import Folder, VectorCache
from tiny_vision import NAMES, picture, seeing_llm

GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
SHAPE = (4, 8)


def key(i):
    return bytes([i]) * 32


def numbers(i, shape=SHAPE):
    return np.random.default_rng(i).standard_normal(shape).astype(np.float32)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "images"


def files(place):
    return sorted(path.name for path in place.iterdir())


def ask(place, name="mlp", i=0, **limits):
    """An answer about a picture by a model that has just been loaded, and how many tiles it had to encode."""
    with seeing_llm(name, image_cache=ImageCache(folder=place, **limits)) as llm:
        return llm.generate((picture(i), "AB"), **GREEDY).tokens, llm.vision.n_encoded


# -- in a folder --


@pytest.mark.parametrize("name", NAMES)
def test_another_process_need_not_encode_it(name, place):
    first, n_encoded = ask(place, name)
    assert n_encoded > 0
    assert ask(place, name) == (first, 0)
    assert ask(place, name, i=1)[1] > 0
    with seeing_llm(name, image_cache=ImageCache(memory=0, disk=0)) as llm:
        assert llm.generate((picture(0), "AB"), **GREEDY).tokens == first
    assert len(files(place)) == 2


def test_the_file_is_safetensors(place):
    ask(place)
    (name,) = files(place)
    with seeing_llm("mlp") as llm:
        token = llm.sequence((picture(0),)).tokens[0]
        assert name == f"{token.digest.hex()}.image.safetensors"
        assert (load_file(place / name)["vectors"] == token.image.vectors()).all()


def test_another_encoder_or_kernel_set_has_files_of_its_own(place):
    ask(place)
    with seeing_llm("mlp", image_cache=ImageCache(folder=place)) as llm:
        llm.vision.fingerprint = lambda: "another file"
        llm.generate((picture(0), "AB"), **GREEDY)
        assert llm.vision.n_encoded == 1
    with seeing_llm("mlp", image_cache=ImageCache(folder=place)) as llm:
        llm.vision.encoder.name = "native 1 portable"
        llm.generate((picture(0), "AB"), **GREEDY)
        assert llm.vision.n_encoded == 1
    assert len(files(place)) == 3


def test_damage_is_encoded_again(place):
    """Any byte changed, any piece missing or too many: as if it was not there, and whole again afterwards."""
    folder, rng = Folder(place, 1 << 20), random.Random(2)
    folder.write(key(1), numbers(1))
    (name,) = files(place)
    whole = (place / name).read_bytes()
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        (place / name).write_bytes(damaged)
        assert folder.read(key(1), SHAPE) is None
    for n in (0, 7, 8, 100, len(whole) - 1):
        (place / name).write_bytes(whole[:n])
        assert folder.read(key(1), SHAPE) is None
    (place / name).write_bytes(whole + b"\0")
    assert folder.read(key(1), SHAPE) is None
    folder.write(key(1), numbers(1))
    assert (place / name).read_bytes() == whole
    assert (folder.read(key(1), SHAPE) == numbers(1)).all()


def test_a_damaged_file_does_not_change_the_answer(place):
    right = ask(place)[0]
    path = place / files(place)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + b"\0\0\x80\x7f")  # an infinity
    assert ask(place) == (right, 1)
    assert path.read_bytes() == whole


def test_what_belongs_to_another_picture_is_not_taken(place):
    folder = Folder(place, 1 << 20)
    folder.write(key(1), numbers(1))
    (place / files(place)[0]).rename(place / f"{key(2).hex()}.image.safetensors")
    assert folder.read(key(2), SHAPE) is None
    folder.write(key(3), numbers(3))
    assert folder.read(key(3), (8, 4)) is None  # as many numbers, another shape


def test_things_that_are_no_files(place):
    folder = Folder(place, 1 << 20)
    for i, make in enumerate((os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"))):
        place.mkdir(exist_ok=True)
        path = place / f"{key(i).hex()}.image.safetensors"
        make(path)
        assert folder.read(key(i), SHAPE) is None
        folder.write(key(i), numbers(i))
        found = folder.read(key(i), SHAPE)
        assert found is None if path.is_dir() else (found == numbers(i)).all()


def test_a_large_file_is_not_read(place):
    place.mkdir()
    with (place / f"{key(1).hex()}.image.safetensors").open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    assert Folder(place, 1 << 20).read(key(1), SHAPE) is None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_the_least_recently_used_go(place):
    size = len(_written(place))
    folder = Folder(place, 4 * size)
    for i in range(1, 5):
        folder.write(key(i), numbers(i))
    assert folder.read(key(1), SHAPE) is not None  # used just now
    folder.write(key(5), numbers(5))
    there = {i for i in range(1, 6) if Folder(place, 4 * size).read(key(i), SHAPE) is not None}
    assert there == {1, 3, 4, 5}


def _written(place):
    Folder(place, 1 << 20).write(key(0), numbers(0))
    (path,) = place.iterdir()
    data = path.read_bytes()
    path.unlink()
    return data


def test_the_limit_holds_with_several_writers(place):
    size = len(_written(place))
    folders = [Folder(place, 32 * size) for _ in range(3)]
    for i in range(200):
        folders[i % 3].write(key(i), numbers(i))
        total = sum(path.stat().st_size for path in place.iterdir())
        assert total <= (32 + 3 * 2) * size  # each looks again after a sixteenth
    assert len(files(place)) >= 20


def test_what_is_larger_than_the_limit_is_not_written(place):
    Folder(place, 100).write(key(1), numbers(1))
    assert not place.exists() or not files(place)


def test_other_files_are_left_alone(place):
    place.mkdir()
    (place / "holiday.safetensors").write_bytes(b"x" * 5000)
    (place / f"{key(1).hex()}.safetensors").write_bytes(b"x" * 5000)
    part = place / f".{key(1).hex()}.image.safetensors.{'ab' * 8}.part"
    part.write_bytes(b"half")
    fresh = place / f".{key(2).hex()}.image.safetensors.{'ab' * 8}.part"
    fresh.write_bytes(b"half")
    os.utime(part, (1, 1))  # nobody writes it any more
    folder = Folder(place, 1000)
    for i in range(5):
        folder.write(key(i), numbers(i))
    assert {"holiday.safetensors", f"{key(1).hex()}.safetensors", fresh.name} < set(files(place))
    assert not part.exists()
    folder.clear()
    assert set(files(place)) == {"holiday.safetensors", f"{key(1).hex()}.safetensors", fresh.name}


def test_a_folder_that_cannot_be_used(tmp_path):
    """No folder, no harm."""
    (tmp_path / "file").write_bytes(b"")
    right = ask(tmp_path / "fine")[0]
    assert ask(tmp_path / "file") == (right, 1)
    assert ask(tmp_path / "file" / "below") == (right, 1)


WRITER = """
import sys, random
import numpy as np
from stretto.vision.cache import Folder
folder, rng = Folder(sys.argv[1], 12_000), random.Random(int(sys.argv[2]))
hits = 0
for _ in range(600):
    i = rng.randrange(40)
    wanted = np.random.default_rng(i).standard_normal((4, 8)).astype(np.float32)
    found = folder.read(bytes([i]) * 32, (4, 8))
    if found is None:
        folder.write(bytes([i]) * 32, wanted)
    else:
        assert (found == wanted).all()
        hits += 1
assert hits > 50, hits
"""


def test_several_processes_at_once(place):
    """Reading, writing and removing the same files: each finds what is right, or nothing."""
    command = [sys.executable, "-c", WRITER, str(place)]
    running = [subprocess.Popen([*command, str(i)]) for i in range(3)]
    assert [process.wait(300) for process in running] == [0, 0, 0]
    assert all(name.endswith(".image.safetensors") for name in files(place))
    assert sum(path.stat().st_size for path in place.iterdir()) < 20_000


# -- in memory --


def test_memory_has_a_limit_too():
    cache = VectorCache(ImageCache(memory=3 * 128, disk=0))
    for i in range(4):
        cache.keep(key(i), numbers(i))
        cache.find(key(0), SHAPE)
    there = [cache.find(key(i), SHAPE) is not None for i in range(4)]
    assert there == [True, False, True, True]
    cache.keep(key(9), numbers(9, (100, 100)))  # larger than all of it: nothing else has to go
    assert cache.find(key(9), (100, 100)) is None
    assert cache.find(key(0), SHAPE) is not None
    cache.clear()
    assert cache.find(key(0), SHAPE) is None


def test_what_is_found_cannot_be_changed(place):
    with seeing_llm("mlp", image_cache=ImageCache(folder=place)) as llm:
        token = llm.sequence((picture(0),)).tokens[0]
        with pytest.raises(ValueError, match="read-only"):
            token.image.vectors()[0, 0] = 1
    with seeing_llm("mlp", image_cache=ImageCache(folder=place)) as llm:
        token = llm.sequence((picture(0),)).tokens[0]
        with pytest.raises(ValueError, match="read-only"):
            token.image.vectors()[0, 0] = 1
        assert llm.vision.n_encoded == 0


# -- options --


def test_where_files_go_by_default(store_home):
    cache = VectorCache(ImageCache())
    cache.keep(key(1), numbers(1))
    assert files(store_home / "images") == [f"{key(1).hex()}.image.safetensors"]
    if os.name == "posix":
        assert (store_home / "images").stat().st_mode & 0o77 == 0  # nobody else's business


def test_no_home_no_files(monkeypatch):
    monkeypatch.delenv("STRETTO_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    cache = VectorCache(ImageCache())
    cache.keep(key(1), numbers(1))
    assert cache.find(key(1), SHAPE) is not None


def test_what_the_option_takes(tmp_path):
    assert ImageCache.of(True) == ImageCache()
    assert ImageCache.of(False) == ImageCache(memory=0, disk=0)
    assert ImageCache.of(tmp_path) == ImageCache(folder=tmp_path)
    mine = ImageCache(memory=1, disk=2)
    assert ImageCache.of(mine) is mine
    for wrong in (None, 3, "", b"x", "a\0b"):
        with pytest.raises(InvalidRequest, match="image_cache must be"):
            ImageCache.of(wrong)
    with pytest.raises(InvalidRequest, match="image_cache must be"):
        stretto.load("m.gguf", image_cache=7)
    for wrong in ({"memory": -1}, {"disk": 1.5}, {"disk": True}, {"folder": 3}, {"folder": ""}):
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            ImageCache(**wrong)
