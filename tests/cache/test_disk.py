"""The disk store: files that are written, found, evicted, and refused."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from stretto.cache.disk import BLOCK_TOKENS, HEAD_BYTES, DiskStore
from stretto.errors import InvalidRequest


@pytest.fixture
def store(tmp_path):
    return DiskStore(tmp_path / "prefixes")


def block(number, nbytes=1000):
    return np.random.default_rng(number).integers(0, 256, nbytes).astype(np.uint8)


def files(store):
    return sorted(path for path in store.folder.glob("*/*") if len(path.name) == 64)


def test_a_block_is_found_again_by_another_store(store):
    root = store.root("model", "salt")
    (key,) = store.chain(root, list(range(BLOCK_TOKENS)))
    assert store.read(root, key, 1000) is None
    assert store.write(root, key, block(1))
    other = DiskStore(store.folder)
    assert (other.read(other.root("model", "salt"), key, 1000) == block(1)).all()


def test_keys_depend_on_everything_before(store):
    root, tokens = store.root("model"), list(range(3 * BLOCK_TOKENS + 5))
    keys = list(store.chain(root, tokens))
    assert len(keys) == len(set(keys)) == 3
    assert list(store.chain(root, tokens[: 2 * BLOCK_TOKENS])) == keys[:2]
    assert list(store.chain(root, tokens, 1)) == keys[:1]
    changed = list(store.chain(root, [7, *tokens[1:]]))
    assert not set(changed) & set(keys)
    for other in (store.root("model", "salt"), store.root("another"), store.root("model", "")):
        assert not set(store.chain(other, tokens)) & set(keys)


def test_another_secret_makes_other_names(store, tmp_path):
    tokens = list(range(BLOCK_TOKENS))
    other = DiskStore(tmp_path / "other")
    assert [*other.chain(other.root("model"), tokens)] != [*store.chain(store.root("model"), tokens)]
    assert other.salt("key") != store.salt("key") == DiskStore(store.folder).salt("key")


def _flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"",
        lambda data: _flip(data, 3),
        lambda data: _flip(data, 20),
        lambda data: _flip(data, HEAD_BYTES - 1),
        lambda data: _flip(data, HEAD_BYTES),
        lambda data: _flip(data, len(data) - 1),
    ],
)
def test_a_damaged_block_is_a_miss_and_can_be_written_again(store, damage):
    root = store.root("model")
    (key,) = store.chain(root, list(range(BLOCK_TOKENS)))
    store.write(root, key, block(1))
    (path,) = files(store)
    path.write_bytes(damage(path.read_bytes()))
    assert store.read(root, key, 1000) is None
    assert store.write(root, key, block(1))
    assert (store.read(root, key, 1000) == block(1)).all()


def test_a_block_under_another_name_or_from_another_store_is_a_miss(store, tmp_path):
    root = store.root("model")
    first, second = store.chain(root, list(range(2 * BLOCK_TOKENS)))
    store.write(root, first, block(1))
    (path,) = files(store)
    (path.parent / second.hex()).write_bytes(path.read_bytes())
    assert store.read(root, second, 1000) is None
    foreign = DiskStore(tmp_path / "other")
    foreign.write(root, second, block(2))
    (forged,) = files(foreign)
    (path.parent / second.hex()).write_bytes(forged.read_bytes())
    assert store.read(root, second, 1000) is None
    assert (store.read(root, first, 1000) == block(1)).all()


def test_links_and_pipes_are_not_read(store):
    root = store.root("model")
    first, second = store.chain(root, list(range(2 * BLOCK_TOKENS)))
    store.write(root, first, block(1))
    (path,) = files(store)
    target = path.rename(store.folder / "elsewhere")
    path.symlink_to(target)
    os.mkfifo(path.parent / second.hex())
    assert store.read(root, first, 1000) is None
    assert store.read(root, second, 1000) is None


def test_the_least_recently_used_blocks_go_first(tmp_path):
    store = DiskStore(tmp_path / "prefixes", max_bytes=10 * (1000 + HEAD_BYTES))
    root = store.root("model")
    keys = list(store.chain(root, list(range(30 * BLOCK_TOKENS))))
    for number, key in enumerate(keys[:10]):
        store.write(root, key, block(number))
    assert len(files(store)) == 10
    assert store.read(root, keys[0], 1000) is not None
    for number, key in enumerate(keys[10:15], 10):
        store.write(root, key, block(number))
        assert store.usage().nbytes <= store.usage().max_bytes
    assert [store.has(root, keys[number]) for number in (0, 1, 14)] == [True, False, True]


def test_of_blocks_that_are_used_together_the_last_go_first(tmp_path):
    store = DiskStore(tmp_path / "prefixes", max_bytes=4 * (1000 + HEAD_BYTES))
    root = store.root("model")
    keys = list(store.chain(root, list(range(4 * BLOCK_TOKENS))))
    for depth, key in enumerate(keys):
        store.write(root, key, block(depth), depth)
    for depth, key in enumerate(keys):
        store.read(root, key, 1000, 1000 * depth)
    (other,) = store.chain(store.root("another"), list(range(BLOCK_TOKENS)))
    store.write(root, other, block(9))
    assert [store.has(root, key) for key in keys] == [True, True, True, False]


def test_no_more_is_written_than_a_day_allows(tmp_path):
    store = DiskStore(tmp_path / "prefixes", max_written=3 * (1000 + HEAD_BYTES))
    root = store.root("model")
    keys = list(store.chain(root, list(range(5 * BLOCK_TOKENS))))
    assert [store.write(root, key, block(1)) for key in keys] == [True, True, True, False, False]
    assert store.usage().written == 3 * (1000 + HEAD_BYTES)
    other = DiskStore(store.folder, max_written=3 * (1000 + HEAD_BYTES))
    assert not other.write(root, keys[3], block(1))


def test_clearing_one_salt_leaves_the_others(store):
    roots = [store.root("model", salt) for salt in ("a", "b", None)]
    keys = [next(store.chain(root, list(range(BLOCK_TOKENS)))) for root in roots]
    for root, key in zip(roots, keys, strict=True):
        store.write(root, key, block(1))
    assert store.usage().owners == 3
    assert store.clear("a") == 1000 + HEAD_BYTES
    assert [store.has(root, key) for root, key in zip(roots, keys, strict=True)] == [False, True, True]
    store.clear(everything=True)
    assert store.usage().blocks == 0


def test_limits_hold_for_all_processes(store):
    root = store.root("model")
    keys = list(store.chain(root, list(range(10 * BLOCK_TOKENS))))
    for key in keys:
        store.write(root, key, block(1))
    store.limit(4 * (1000 + HEAD_BYTES))
    assert store.usage().nbytes <= 4 * (1000 + HEAD_BYTES)
    other = DiskStore(store.folder)
    for key in keys:
        other.write(root, key, block(1))
    assert other.usage().nbytes <= 4 * (1000 + HEAD_BYTES)


def test_damaged_counts_are_counted_again(tmp_path):
    store = DiskStore(tmp_path / "prefixes", max_bytes=5 * (1000 + HEAD_BYTES))
    root = store.root("model")
    keys = list(store.chain(root, list(range(9 * BLOCK_TOKENS))))
    for key in keys[:5]:
        store.write(root, key, block(1))
    (store.folder / "counts").write_text("[1, 2")
    for key in keys[5:]:
        assert store.write(root, key, block(1))
    assert store.usage().nbytes <= store.usage().max_bytes


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_folder_that_others_can_enter_is_refused(tmp_path, mode):
    (tmp_path / "prefixes").mkdir()
    (tmp_path / "prefixes").chmod(mode)
    with pytest.raises(InvalidRequest, match="chmod 700"):
        DiskStore(tmp_path / "prefixes")


def test_a_secret_that_others_can_read_is_refused(store):
    assert (store.folder / "secret").stat().st_mode & 0o777 == 0o600
    assert store.folder.stat().st_mode & 0o777 == 0o700
    (store.folder / "secret").chmod(0o644)
    with pytest.raises(InvalidRequest, match="secret"):
        DiskStore(store.folder)


KILLED = """
    import sys, time
    import numpy as np
    from stretto.cache import disk
    store = disk.DiskStore(sys.argv[1])
    root = store.root("model")
    (key,) = store.chain(root, list(range(64)))
    import contextlib
    @contextlib.contextmanager
    def half(path, durable):
        part = path.with_name(f".{path.name}.{'0' * 16}.part")
        part.write_bytes(b"half")
        print("writing", flush=True)
        time.sleep(600)
        yield
    write = disk.atomic_write
    def chosen(path, durable=True):
        return half(path, durable) if len(path.name) == 64 else write(path, durable=durable)
    disk.atomic_write = chosen
    store.write(root, key, np.zeros(1000, np.uint8))
"""


def test_a_killed_writer_leaves_neither_a_lock_nor_a_file(store):
    script = textwrap.dedent(KILLED)
    with subprocess.Popen([sys.executable, "-c", script, store.folder], stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"writing\n"
        writer.send_signal(signal.SIGKILL)
    assert list(store.folder.glob("*/.*.part"))
    root = store.root("model")
    (key,) = store.chain(root, list(range(BLOCK_TOKENS)))
    begun = time.monotonic()
    assert store.read(root, key, 1000) is None
    assert store.write(root, key, block(1))
    assert time.monotonic() - begun < 60
    assert not list(store.folder.glob("*/.*.part"))
    assert (store.read(root, key, 1000) == block(1)).all()


FORKED = """
    import os, sys, time
    from stretto.cache.disk import DiskStore
    store = DiskStore(sys.argv[1])
    with store._locked():
        if not (child := os.fork()):
            time.sleep(600)
            os._exit(0)
        print(child, flush=True)
        if sys.argv[2] == "killed":
            time.sleep(600)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["killed", "goes on"])
def test_a_child_that_was_forked_while_a_block_was_written_holds_no_lock(store, monkeypatch, end):
    monkeypatch.setattr("stretto.cache.disk.LOCK_SECONDS", 60)
    script = textwrap.dedent(FORKED)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script, store.folder, end], **pipes) as writer:
        child = int(writer.stdout.readline())
        try:
            if end == "killed":
                writer.kill()
                writer.wait()
            root = store.root("model")
            (key,) = store.chain(root, list(range(BLOCK_TOKENS)))
            assert store.write(root, key, block(1))
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_store_is_opened_and_read_while_another_process_holds_its_lock(store, monkeypatch):
    root = store.root("model")
    first, second = store.chain(root, list(range(2 * BLOCK_TOKENS)))
    assert store.write(root, first, block(1))
    monkeypatch.setattr("stretto.cache.disk.LOCK_SECONDS", 0.1)
    with store._locked() as is_locked:
        assert is_locked
        other = DiskStore(store.folder)
        assert (other.read(root, first, 1000) == block(1)).all()
        assert not other.write(root, second, block(2))
    assert other.write(root, second, block(2))


def test_a_disk_that_is_nearly_full_is_left_alone(store, monkeypatch):
    root = store.root("model")
    (key,) = store.chain(root, list(range(BLOCK_TOKENS)))
    monkeypatch.setattr("stretto.cache.disk.SPARE_BYTES", 1 << 60)
    assert not store.write(root, key, block(1))
    assert store.usage().written == store.usage().nbytes == 0


def test_blocks_from_a_time_to_come_are_evicted_in_their_turn(tmp_path):
    store = DiskStore(tmp_path / "prefixes", max_bytes=10 * (HEAD_BYTES + 1000))
    root = store.root("model")
    keys = list(store.chain(root, list(range(40 * BLOCK_TOKENS))))
    for key in keys[:10]:
        store.write(root, key, block(1))
    for path in files(store):  # the clock was ahead by a year
        os.utime(path, (time.time() + 3e7,) * 2)
    for key in keys[10:]:
        assert store.write(root, key, block(1))
    assert [store.has(root, key) for key in keys[:10]] == [False] * 10
    assert sum(store.has(root, key) for key in keys[-9:]) == 9


WRITER = """
    import sys
    import numpy as np
    from stretto.cache.disk import DiskStore
    store = DiskStore(sys.argv[1], max_bytes=20_000)
    root = store.root("model", sys.argv[2])
    for key in store.chain(root, list(range(100 * 64))):
        assert store.write(root, key, np.frombuffer(key * 32, np.uint8))
"""


def test_two_processes_write_within_one_limit(store):
    script = textwrap.dedent(WRITER)
    several = [subprocess.Popen([sys.executable, "-c", script, store.folder, salt]) for salt in ("a", "b")]
    assert [one.wait() for one in several] == [0, 0]
    assert 10_000 < store.usage().nbytes <= 20_000
    for salt in ("a", "b"):
        root = store.root("model", salt)
        for key in store.chain(root, list(range(100 * BLOCK_TOKENS))):
            found = store.read(root, key, 1024)
            assert found is None or found.tobytes() == key * 32
