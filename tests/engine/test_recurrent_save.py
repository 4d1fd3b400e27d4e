"""Saved sequences of models with recurrent layers: exact, whatever happens; hostile files are refused."""

import json
import struct

import numpy as np
import pytest

from recurrent_mock import chain, check, greedy, recurrent_llm, row_of
from stretto import Limits
from stretto.cache.snapshot import SnapshotFile
from stretto.errors import CacheFull, SnapshotError
from stretto.testing import mock_llm

PROMPT = "The quick brown fox jumps over the lazy dog. " * 3
IDS = list(PROMPT.encode())
GREEDY = {"temperature": 0}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.safetensors"


@pytest.fixture
def saved(path):
    with recurrent_llm() as llm:
        seq = llm.sequence(PROMPT, seed=5)
        seq.step(**GREEDY)
        seq.save(path)
        check(llm)
    return path


@pytest.fixture
def llm():
    with recurrent_llm() as llm:
        yield llm
        check(llm)


def test_it_goes_on_as_if_nothing_had_happened(saved, llm):
    seq = llm.restore(saved)
    tokens = [*IDS, *greedy(IDS, 1)]
    assert seq.tokens == tokens
    seq.append("more")
    assert seq.step(**GREEDY).token == greedy([*tokens, *b"more"], 1)[0]
    assert sum(map(len, llm.backend.batches)) == 4  # nothing was replayed


def test_its_logits_come_from_the_checkpoint_in_the_file(saved, llm):
    seq = llm.restore(saved)
    assert np.array_equal(seq.logits, row_of(chain(seq.tokens), 258))
    assert sum(map(len, llm.backend.batches)) == 9


def test_without_a_checkpoint_all_is_replayed(path, llm):
    with recurrent_llm(prefix_cache=False) as other:
        other.sequence(PROMPT).save(path)
    seq = llm.restore(path)
    assert seq.step(**GREEDY).token == greedy(IDS, 1)[0]
    assert sum(map(len, llm.backend.batches)) == len(IDS)


def test_an_empty_one(path, llm):
    llm.sequence("").save(path)
    seq = llm.restore(path)
    seq.append("a")
    assert seq.step(**GREEDY).token == greedy(b"a", 1)[0]


def test_others_go_on_and_evict_while_it_is_written(path):
    with recurrent_llm(slots=5, limits=Limits(checkpoint_bytes=16)) as llm:
        seq = llm.sequence(PROMPT)
        seq.logits  # noqa: B018
        read, reads = llm.backend.read_slots, []

        def read_and_generate(slots):
            reads.append(len(slots))
            seq.truncate(0)  # its checkpoint is nobody's but the file's
            for letter in "abc":
                llm.generate(letter * 60, max_tokens=3, **GREEDY)
            return read(slots)

        llm.backend.read_slots = read_and_generate
        seq.save(path)
        assert len(reads) == 2
        check(llm)
    with recurrent_llm() as llm:
        restored = llm.restore(path)
        check(llm)
        assert restored.step(**GREEDY).token == greedy(IDS, 1)[0]


def test_a_checkpoint_that_is_evicted_while_it_is_read_harms_no_other(saved, monkeypatch):
    with recurrent_llm(slots=3, limits=Limits(checkpoint_bytes=16)) as llm:
        others = [llm.sequence(letter * 60) for letter in "ab"]
        states = SnapshotFile.states

        def states_later(file):
            llm.logits(others)
            yield from states(file)

        monkeypatch.setattr(SnapshotFile, "states", states_later)
        seq = llm.restore(saved)
        check(llm)
        assert others[0].step(**GREEDY).token == greedy(b"a" * 60, 1)[0]
        assert seq.tokens[: len(IDS)] == IDS


def test_with_one_free_slot_only_the_last_state_is_restored(saved):
    with recurrent_llm(slots=2) as llm:
        other = llm.sequence("other")
        other.logits  # noqa: B018
        seq = llm.restore(saved)
        check(llm)
        assert llm.cache.stats().slots_free == 0
        with pytest.raises(CacheFull, match="state slots"):
            llm.restore(saved)
        check(llm)
        assert seq.step(**GREEDY).token == greedy(IDS, 2)[1]


def test_a_model_without_recurrent_layers_is_another_one(saved, path, llm):
    with pytest.raises(SnapshotError, match="states of the kind 'chain of hashes', not ''"):
        mock_llm("abc").restore(saved)
    mock_llm("abc").sequence("abc").save(path)
    with pytest.raises(SnapshotError, match="saved without recurrent states"):
        llm.restore(path)


# -- damage and malice --


def test_damaged_states_are_refused_and_leave_nothing_behind(saved, llm):
    data = bytearray(saved.read_bytes())
    n = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8 : 8 + n])["states"]["data_offsets"]
    for at in (begin, end - 1):
        wrong = bytearray(data)
        wrong[8 + n + at] ^= 1
        saved.write_bytes(wrong)
        with pytest.raises(SnapshotError, match="the states are not those that were saved"):
            llm.restore(saved)
        assert llm.cache.stats().slots_free == llm.cache.stats().slots
        assert llm.cells.n_used == 0


def crafted(path, changes, states=None):
    """The file with other metadata (and states), and checksums that fit."""
    from safetensors.numpy import load_file, save_file

    from stretto.cache.snapshot_head import _checksum

    tensors = load_file(path)
    data = path.read_bytes()
    head = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]
    fields = {key: value for key, value in (head | changes).items() if value is not None}
    fields.pop("checksum")
    if states is not None:
        tensors["states"] = states
    fields["checksum"] = _checksum(fields, tensors["tokens"], tensors["positions"])
    save_file(tensors, path, fields)


@pytest.mark.parametrize(
    ("changes", "states", "message"),
    [
        ({"state_positions": "0 136"}, None, "they must increase, up to all of them"),
        ({"state_positions": "136 136"}, None, "they must increase"),
        ({"state_positions": "128 135"}, None, "they must increase, up to all of them"),
        ({"state_positions": "140 136"}, None, "they must increase"),
        ({"state_positions": "136"}, None, r"states of the shape \[2, 16\], not \[1, 16\]"),
        ({"state_positions": "1 2 136"}, None, "no list of 1 to 2 positions"),
        ({"state_positions": ""}, None, "no list of 1 to 2 positions"),
        ({"state_positions": "9" * 5000}, None, "no list of 1 to 2 positions"),
        ({"state_positions": "-1 136"}, None, "no list of 1 to 2 positions"),
        ({"state_layout": "another"}, None, "states of the kind 'another', not 'chain of hashes'"),
        ({"state_layout": None}, None, "keys are missing or too many: state_layout"),
        ({"version": "1"}, None, "keys are missing or too many"),
        ({"states": "0" * 64}, None, "the states are not those that were saved"),
        ({}, np.zeros((2, 15), np.uint8), r"states of the shape \[2, 15\], not \[2, 16\]"),
        ({}, np.zeros((3, 16), np.uint8), r"states of the shape \[3, 16\]"),
        ({}, np.zeros(32, np.uint8), "U8 is needed"),
        ({}, np.zeros((2, 16), np.int8), "U8 is needed, not I8"),
    ],
)
def test_crafted_files(saved, llm, changes, states, message):
    crafted(saved, changes, states)
    with pytest.raises(SnapshotError, match=message):
        llm.restore(saved)
    assert llm.cells.n_used == 0
    assert llm.cache.stats().slots_free == llm.cache.stats().slots


def test_a_crafted_file_that_says_nothing_wrong(saved, llm):
    crafted(saved, {})
    assert llm.restore(saved).tokens[: len(IDS)] == IDS
