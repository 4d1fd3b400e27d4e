"""Prompts that are cached texts with parts cut out or replaced: made from its cells where that is allowed."""

import time
from dataclasses import replace

import numpy as np
import pytest

from recurrent_mock import recurrent_llm
from stretto.backends.native import NativeBackend
from stretto.cache.disk import DiskStore
from stretto.engine.edited import find_runs
from stretto.engine.engine import Engine
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
CHANCE = np.random.default_rng(3)
TEXT = CHANCE.integers(0, 96, 600).tolist()
CUT = [*TEXT[:100], 7, 8, 9, *TEXT[250:]]  # 150 tokens of it replaced by three
TWICE = [*TEXT[:100], 7, 8, 9, *TEXT[250:350], 5, *TEXT[450:], *TEXT[:20]]


def tiny_llm(cells=2048, folder=None):
    file, spec = tiny_file("llama"), replace(tiny_spec("llama"), context_length=1024)
    made = LLM(NativeBackend(file, spec, cells, 2), byte_tokenizer(), fingerprint=file.fingerprint())
    if folder is not None:
        made.engine.keep_on_disk(DiskStore(folder), lambda: "model")
    return made


@pytest.fixture
def llm():
    with tiny_llm() as llm:
        yield llm


def made_by_hand(tokens, *edits, mode):
    """The answer of a sequence that was edited so, and its edit mode."""
    with tiny_llm() as other, other.sequence(TEXT) as sequence:
        sequence.logits  # noqa: B018  # it computes
        for start, stop, new in edits:
            sequence.replace(start, stop, new, mode=mode)
        sequence.append(tokens[sequence.position :])
        return other.generate(sequence, **GREEDY).tokens, sequence.edit_mode


@pytest.mark.parametrize(
    ("old", "new", "runs"),
    [
        (TEXT, TEXT, [(0, 0, 600)]),
        (TEXT, CUT, [(0, 0, 100), (250, 103, 350)]),
        (TEXT, TWICE, [(0, 0, 100), (250, 103, 100), (450, 204, 150)]),
        (TEXT, [*TEXT[:100], *TEXT[400:500], *TEXT[200:300]], [(0, 0, 100), (400, 100, 100)]),
        (TEXT, [*TEXT[:100], *TEXT[200:240]], [(0, 0, 100)]),  # too short
        (TEXT, [*TEXT[:9], *TEXT], [(0, 0, 9), (9, 18, 591)]),  # put in, not cut out
        ([], TEXT, [(0, 0, 0)]),
    ],
)
def test_runs_of_equal_tokens(old, new, runs):
    assert [tuple(run) for run in find_runs(old, new)] == runs


def test_runs_of_repeated_tokens_take_linear_time():
    same = [5] * 80_000
    begun = time.thread_time()
    runs = find_runs([*TEXT, *same], [*TEXT, 7, *same, 8, *same])
    assert time.thread_time() - begun < 2  # searched one by one, the places of an anchor take many seconds
    assert [tuple(run) for run in runs] == [(0, 0, 600), (608, 601, 79_992)]


@pytest.mark.parametrize("mode", ["shift", "heal"])
def test_edits_with_more_new_tokens_than_a_pass_takes_are_computed_in_turns(llm, mode, monkeypatch):
    at_once = []
    compute = Engine.compute

    def counted(self, tracks):
        several = list(tracks)
        at_once.extend(track.n_pending for track in several)
        compute(self, several)

    monkeypatch.setattr(Engine, "compute", counted)
    llm.engine.runner.chunk = 100
    new = [*CUT[:300], *TEXT[:99], *CUT[300:]]  # where it leaves the cached text for the second time
    llm.generate(TEXT, **GREEDY)
    result = llm.generate(new, edits=mode, **GREEDY)
    assert result.usage.edit_mode == mode  # of the first edit
    assert 0 < max(at_once) <= 100
    assert len(new) - result.usage.cached_tokens >= 99 + len(CUT) - 300


@pytest.mark.parametrize("mode", ["shift", "heal"])
def test_a_cut_prompt_is_made_as_a_sequence_is_edited(llm, mode):
    llm.generate(TEXT, **GREEDY)
    result = llm.generate(CUT, edits=mode, **GREEDY)
    assert result.tokens == made_by_hand(CUT, (100, 250, [7, 8, 9]), mode=mode)[0]
    assert result.usage.edit_mode == mode
    n_computed = {"shift": 3 + 1, "heal": 3 + 32 + 64}[mode]
    assert len(CUT) - result.usage.cached_tokens == pytest.approx(n_computed, abs=1)
    llm.cells.check()


def test_several_cuts_and_a_longer_prompt(llm):
    llm.generate(TEXT, **GREEDY)
    result = llm.generate(TWICE, edits="shift", **GREEDY)
    wanted, mode = made_by_hand(TWICE, (100, 250, [7, 8, 9]), (203, 303, [5]), mode="shift")
    assert (result.tokens, result.usage.edit_mode) == (wanted, mode)
    assert result.usage.cached_tokens == len(TWICE) - 20 - 4
    again = llm.generate([*TWICE, *result.tokens, 1, 2, 3], edits="shift", **GREEDY)  # the next turn
    assert again.usage.cached_tokens >= len(TWICE) + len(result.tokens) - 1
    assert again.usage.edit_mode == "shift"
    llm.cells.check()


def test_who_does_not_allow_it_gets_exact_cells(llm):
    llm.generate(TEXT, **GREEDY)
    with tiny_llm() as plain:
        wanted = plain.generate(CUT, **GREEDY).tokens
    llm.generate(CUT, edits="shift", **GREEDY)
    result = llm.generate(CUT, **GREEDY)
    assert (result.tokens, result.usage.cached_tokens, result.usage.edit_mode) == (wanted, 100, None)
    again = llm.generate(CUT, edits="shift", **GREEDY)  # exact ones are there now
    assert (again.tokens, again.usage.edit_mode) == (wanted, None)


def test_texts_of_another_salt_are_not_edited(llm):
    llm.generate(TEXT, cache_salt="a", **GREEDY)
    for salt, n_least in ((None, 0), ("b", 0), ("a", 400)):
        result = llm.generate(CUT, edits="shift", cache_salt=salt, **GREEDY)
        assert result.usage.cached_tokens >= n_least
        assert (result.usage.edit_mode is None) == (n_least == 0)
    n_free = llm.cache.stats().free
    llm.cache.forget(CUT, cache_salt="a")
    assert llm.cache.stats().free > n_free


def test_edited_cells_stay_off_the_disk(tmp_path):
    with tiny_llm(folder=tmp_path / "prefixes") as llm:
        llm.generate(TEXT, **GREEDY)
        assert llm.generate(CUT, edits="heal", **GREEDY).usage.edit_mode == "heal"
    assert DiskStore(tmp_path / "prefixes").usage().blocks == 600 // 64
    with tiny_llm(folder=tmp_path / "prefixes") as llm:
        found = llm.generate(CUT, edits="heal", **GREEDY)  # nothing edited is left: it is computed
        assert (found.usage.cached_tokens, found.usage.edit_mode) == (64, None)


def test_several_texts_beside_others(llm):
    llm.generate(TEXT, **GREEDY)
    with llm.stream(TEXT[::-1], max_tokens=60, ignore_eos=True) as stream:
        next(stream)
        first, second = llm.generate(CUT, edits="heal", n=2, **GREEDY)
        rest = list(stream)
    assert first.tokens == second.tokens == made_by_hand(CUT, (100, 250, [7, 8, 9]), mode="heal")[0]
    assert len(rest) >= 59
    llm.cells.check()


def test_requests_that_wait_hold_no_cells():
    texts = [np.random.default_rng(seed).integers(0, 96, 300).tolist() for seed in range(4)]
    cut = [[*text[:80], *text[150:], *text[:20]] for text in texts]
    with tiny_llm(cells=1400) as llm:
        llm.generate(texts, **GREEDY)
        options = {**GREEDY, "max_tokens": 120}
        results = llm.generate(cut, edits="shift", **options)
        assert [len(one.tokens) for one in results] == [120] * 4
        llm.cells.check()


def test_without_room_it_is_computed():
    with tiny_llm(cells=700) as llm, tiny_llm() as plain:
        llm.generate(TEXT[:450], **GREEDY)
        prompt = [*TEXT[:100], *TEXT[200:450]]
        with llm.sequence(TEXT[::-1][:120]) as held:
            held.logits  # noqa: B018  # it computes
            result = llm.generate(prompt, edits="shift", **GREEDY)
        assert result.tokens
        llm.cells.check()
        assert plain.generate(prompt, **GREEDY).tokens


def test_a_prompt_is_computed_if_a_text_between_two_edits_is_longer_than_the_context(llm):
    text = np.random.default_rng(5).integers(0, 96, 900).tolist()
    llm.generate(text, **GREEDY)
    prompt = [*text[:100], *TEXT[:200], *text[100:500], *text[750:]]  # 200 put in, then 250 cut out
    result = llm.generate(prompt, edits="shift", **GREEDY)
    assert (result.usage.cached_tokens, result.usage.edit_mode) == (100, None)
    with tiny_llm() as plain:
        assert result.tokens == plain.generate(prompt, **GREEDY).tokens
    llm.cells.check()


def test_models_that_cannot_move_tokens_compute_them():
    with recurrent_llm() as llm, recurrent_llm() as plain:
        llm.generate(TEXT[:300], **GREEDY)
        prompt = [*TEXT[:64], *TEXT[128:300]]
        assert llm.generate(prompt, edits="shift", **GREEDY).tokens == plain.generate(prompt, **GREEDY).tokens


def test_other_modes_are_refused(llm):
    with pytest.raises(InvalidRequest, match="edits"):
        llm.generate(TEXT, edits="hole", **GREEDY)
