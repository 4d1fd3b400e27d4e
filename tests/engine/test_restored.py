"""Restored cells and others: a file may be forged, so nothing of it is shared unless asked for."""

import numpy as np
import pytest

from stretto.backends.native import NativeBackend
from stretto.engine.sequence import track_in
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

OPEN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def prompt(n, seed=0):
    return np.random.default_rng(seed).integers(0, 90, n).tolist()


@pytest.fixture
def llm():
    file, spec = tiny_file("llama"), tiny_spec("llama")
    with LLM(
        NativeBackend(file, spec, 128, 2, "f16"), byte_tokenizer(), fingerprint=file.fingerprint()
    ) as made:
        yield made


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.safetensors"


def forged(llm, path):
    """A whole file with right checksums, whose K and V are not those of its tokens."""
    seq = llm.sequence(prompt(12, seed=1))
    seq.logits  # noqa: B018
    track_in(llm.engine, seq).tokens = prompt(12)
    seq.save(path)
    seq.close(park=False)


@pytest.mark.parametrize("closed", [False, True])
def test_a_restored_file_changes_no_other_request(llm, path, closed):
    wanted = llm.generate([*prompt(12), 3], max_tokens=6, temperature=0).tokens
    llm.cache.clear()
    forged(llm, path)
    with llm.restore(path) as restored, restored.fork() as fork:
        if closed:
            restored.close()
            fork.close()
        found = llm.generate([*prompt(12), 3], max_tokens=6, temperature=0)
        assert (found.usage.cached_tokens, found.tokens) == (0, wanted)
    assert llm.cache.stats().held == 0


def test_what_was_restored_is_shared_if_asked_for(llm, path):
    with llm.sequence(prompt(12)) as seq:
        seq.save(path)
    for options in ({}, {"cache_salt": "a"}):
        llm.cache.clear()
        with llm.restore(path, share=True, **options) as restored:
            pin = llm.cache.pin(restored)
        assert llm.generate([*prompt(12), 3], max_tokens=1, **options).usage.cached_tokens == 12
        pin.release()
        assert llm.generate([*prompt(12), 3], max_tokens=1, cache_salt="b").usage.cached_tokens == 0
    with pytest.raises(InvalidRequest, match="share=True"), llm.restore(path) as restored:
        llm.cache.pin(restored)


def test_a_file_says_nothing_of_the_salt(llm, path):
    with llm.sequence(prompt(8), cache_salt="secret-salt") as seq:
        seq.save(path)
    assert b"secret-salt" not in path.read_bytes()


def test_a_restored_sequence_that_is_preempted_goes_on(llm, path):
    with llm.sequence(prompt(20), seed=3) as seq:
        seq.save(path)
        wanted = [seq.step(**OPEN).token for _ in range(4)]
    restored = llm.restore(path)
    with llm.engine.lock:
        llm.engine.runner.release(track_in(llm.engine, restored))
    assert [restored.step(**OPEN).token for _ in range(4)] == wanted
