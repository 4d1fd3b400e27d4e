"""Packed weights in a file that processes share."""

import asyncio
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import stretto
from live_cluster import live, replicas, visiting
from stretto.backends.native import NativeBackend
from stretto.weights.memory import Placement
from stretto.weights.packed_file import PackedMatrix, open_packed, packed_file
from tiny_models import FOLDER, N_CELLS, answer, text_logits, tiny_file, tiny_spec

MODEL = FOLDER / "llama.gguf"


def some(seed=0, n=1000):
    data = np.random.default_rng(seed).integers(0, 256, n, np.uint8)
    return [("a", PackedMatrix(2, 16, 32, data)), ("b", PackedMatrix(8, 1, 32, data[:77]))]


def make(tmp_path, key="key", seed=0):
    return packed_file(tmp_path, key, MODEL, "", lambda: some(seed))


def test_a_file_has_what_was_packed_and_is_made_once(tmp_path):
    made = []
    for _ in range(2):
        file = packed_file(tmp_path, "key", MODEL, "", lambda: made.append(1) or some())
        for name, matrix in some():
            found = file.matrices[name]
            assert (found.code, found.rows, found.columns) == (matrix.code, matrix.rows, matrix.columns)
            assert np.array_equal(found.data, matrix.data)
            assert found.data.ctypes.data % 64 == 0
            assert not found.data.flags.writeable
    assert made == [1]


def test_many_at_once_make_one_file(tmp_path):
    made, files = [], []
    threads = [
        threading.Thread(
            target=lambda: files.append(
                packed_file(tmp_path, "key", MODEL, "", lambda: made.append(1) or some())
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(files)) == (1, 4)


@pytest.mark.parametrize("at", [0, 20, 60, 4096, 5000, -1])
def test_a_damaged_file_is_made_again(tmp_path, at):
    path = make(tmp_path).path
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert open_packed(path, "key", MODEL) is None
    assert make(tmp_path).path == path
    assert open_packed(path, "key", MODEL) is not None


@pytest.mark.parametrize("n", [0, 10, 4096, 5000])
def test_a_cut_file_is_made_again(tmp_path, n):
    path = make(tmp_path).path
    os.truncate(path, n)
    assert open_packed(path, "key", MODEL) is None
    assert make(tmp_path).matrices.keys() == {"a", "b"}


def test_a_file_that_others_may_have_written_is_not_read(tmp_path):
    path = make(tmp_path).path
    path.chmod(0o666)
    assert open_packed(path, "key", MODEL) is None


def test_a_changed_model_has_a_new_file_and_the_old_one_goes(tmp_path):
    old = make(tmp_path).path
    new = make(tmp_path, key="other").path
    assert [path for path in (old, new) if path.exists()] == [new]


def test_no_room_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(stretto.ModelError, match="repack='auto'"):
        packed_file(tmp_path / "file", "key", MODEL, "", some)


PLACEMENTS = {shared: Placement(True, 0, 0, None, shared=shared) for shared in (False, True)}


def native(name, shared):
    return NativeBackend(
        tiny_file(name), tiny_spec(name), N_CELLS, threads=1, n_slots=2, placement=PLACEMENTS[shared]
    )


@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "deepseek2-lite", "gpt-oss", "qwen3moe", "granitehybrid"]
)
def test_a_model_computes_the_same_bits_with_shared_weights(store_home, name):
    tokens = answer(name, "tokens.0").tolist()
    expected = text_logits(native(name, shared=False), tokens)
    for _ in range(2):  # packed, and found
        assert np.array_equal(text_logits(native(name, shared=True), tokens), expected)
    assert len(list((store_home / "packed").glob("*.packed"))) == 1


def test_no_memory_of_the_process_holds_weights():
    own, shared = native("llama", shared=False), native("llama", shared=True)
    assert own.decoder.weight_bytes > 0
    assert shared.decoder.weight_bytes == 0


def test_a_packed_file_that_is_cut_while_it_is_used_is_an_error(store_home, smollm2_path):
    with stretto.load(smollm2_path, repack="shared", cells=256, threads=1) as llm:
        assert str(llm.backend.placement).startswith("weights packed in a file that processes share")
        (path,) = (store_home / "packed").glob("*.packed")
        os.truncate(path, 1 << 20)
        with pytest.raises(stretto.ModelError, match="the file was cut or overwritten"):
            llm.generate("Hello", max_tokens=4)


def test_the_native_core_refuses_bytes_that_are_no_packed_matrix():
    decoder = native("llama", shared=False).decoder
    name, rows, columns = next(one for one in decoder.tensors() if one[2])
    for data in (np.zeros(64, np.uint8), decoder.packed(name)[1:]):
        with pytest.raises(ValueError, match="not the packed bytes"):
            decoder.set_packed(name, 1, rows, columns, data)
    with pytest.raises(ValueError, match="no use for the matrix"):
        decoder.set_packed("other", 1, 16, 32, np.zeros(64, np.uint8))


def test_repack_takes_these_values_only():
    with pytest.raises(
        stretto.InvalidRequest, match="repack must be True, False, 'auto' or 'shared', not 'yes'"
    ):
        stretto.load(MODEL, repack="yes")


def mapped_bytes(pid):
    """PSS and private bytes of the packed weights that a process maps, from /proc."""
    found, counting = {"Pss": 0, "Private_Clean": 0, "Private_Dirty": 0}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counting = line.endswith(".packed")
        elif counting and (name := line.partition(":")[0]) in found:
            found[name] += int(line.split()[1]) * 1024
    return found


@live
def test_a_second_replica_adds_none_of_the_weights(two_replicas):
    async def pids():
        async with visiting(two_replicas.url) as web:
            return [int(name.partition(":")[2]) for name in await replicas(web, 2)]

    (file,) = (Path(two_replicas.environment["STRETTO_HOME"]) / "packed").glob("*.packed")
    found = [mapped_bytes(pid) for pid in asyncio.run(pids())]
    total = sum(one["Pss"] for one in found)
    print(f"packed weights: {file.stat().st_size:,} bytes, mapped {len(found)} times: {total:,} of PSS")
    assert 0 < total <= 1.1 * file.stat().st_size
    assert max(one["Private_Dirty"] for one in found) == 0
