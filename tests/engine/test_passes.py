"""Scores, embeddings and the logits of sequences are scheduled with everything else."""

import asyncio
import time

import numpy as np
import pytest

import stretto
from stretto import Limits
from stretto.errors import InvalidRequest, QueueFull
from stretto.testing import mock_llm


def endless(seen):
    return ord("x")


def settled(llm):
    llm.cells.check()
    assert llm.cache.stats().held == 0


def test_a_score_shares_passes_with_a_stream():
    llm = mock_llm(endless)
    with llm.stream("s", max_tokens=50, temperature=0) as stream:
        next(stream)
        n = len(llm.backend.batches)
        scores = llm.score("abcdef")
        assert scores.shape == (5,)
        passes = llm.backend.batches[n:]
        assert [ord(letter) for letter in "abcde"] == [t for t in passes[0] if t != ord("x")]
        assert ord("x") in passes[0]  # the stream's token is in the same pass
    settled(llm)


def test_a_sequence_is_computed_in_the_passes_of_those_who_run():
    llm = mock_llm(endless)
    with llm.stream("s", max_tokens=50, temperature=0) as stream, llm.sequence("abc") as seq:
        next(stream)
        n = len(llm.backend.batches)
        assert seq.logits.argmax() == ord("x")
        (batch,) = llm.backend.batches[n:]
        assert sorted(batch) == sorted([*b"abc", ord("x")])
    settled(llm)


def test_a_sequence_does_not_wait_behind_the_queue():
    llm = mock_llm(endless, limits=Limits(max_running=1, max_queue=1))
    first = llm.stream("a", max_tokens=50, temperature=0)
    next(first)
    second = llm.stream("b", max_tokens=50, temperature=0)
    with llm.sequence("abc") as seq:
        assert seq.step(temperature=0).text == "x"
    with pytest.raises(QueueFull) as caught:
        llm.score("abc")
    assert caught.value.n_waiting == 1
    first.cancel(), second.cancel()
    settled(llm)


def test_scores_are_those_of_the_logits(smollm2_path):
    with stretto.load(smollm2_path, cells=512, limits=Limits(max_tokens_per_step=7)) as llm:
        ids = llm.tokenizer.encode("The quick brown fox jumps over the lazy dog")
        alone = llm.score(ids)
        with llm.stream("Once upon a time", max_tokens=100, ignore_eos=True) as stream:
            next(stream)
            np.testing.assert_array_equal(llm.score(ids), alone)  # the same bits beside a stream
        with llm.sequence(ids[:1]) as seq:
            for token, score in zip(ids[1:], alone, strict=True):
                row = seq.logits.astype(np.float64)
                exact = row[token] - row.max() - np.log(np.exp(row - row.max()).sum())
                assert score == pytest.approx(exact, abs=1e-4)
                seq.append(token)
        settled(llm)


def test_embeddings_beside_a_stream_are_the_same(smollm2_path):
    texts = ["one", "a somewhat longer text", "x"] * 5
    with stretto.load(smollm2_path, cells=256, limits=Limits(max_tokens_per_step=16)) as llm:
        alone = llm.embed(texts)
        with llm.stream("Once upon a time", max_tokens=100, ignore_eos=True) as stream:
            next(stream)
            np.testing.assert_array_equal(llm.embed(texts), alone)
        alike = ["a cat sat", "a cat sat down", "a cat"]
        np.testing.assert_array_equal(llm.embed(alike), [llm.embed([text])[0] for text in alike])
        assert llm.embed([]).shape == (0, llm.spec.n_embd)
        settled(llm)


def test_awaited_and_cancelled():
    llm = mock_llm(lambda seen: time.sleep(0.002) or ord("x"), limits=Limits(max_tokens_per_step=8))

    async def score():
        return await llm.ascore("abcdef" * 4)

    async def cancelled():
        task = asyncio.create_task(llm.ascore("abcdef" * 100))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert asyncio.run(score()).shape == (23,)
    asyncio.run(cancelled())
    deadline = time.monotonic() + 10
    while llm.cache.stats().held and time.monotonic() < deadline:
        time.sleep(0.01)
    settled(llm)


def test_a_pass_that_cannot_be_made():
    llm = mock_llm(endless)
    for wrong, param in ((lambda: llm.score("a"), "text"), (lambda: llm.embed("a"), "texts")):
        with pytest.raises(InvalidRequest) as caught:
            wrong()
        assert caught.value.param == param


# -- what a page reads --


def test_step_events_are_a_bounded_ring():
    llm = mock_llm(endless)
    llm.generate("abc", max_tokens=5, temperature=0)
    events = llm.steps.since()
    assert [event.number for event in events] == list(range(5))
    assert [event.n_tokens for event in events] == [3, 1, 1, 1, 1]
    assert llm.steps.since(3) == events[3:]
    assert llm.steps.since(5) == []
    llm.generate("abc", max_tokens=900, temperature=0)
    llm.generate("abc", max_tokens=900, temperature=0)
    assert len(llm.steps.since()) == 1024


def test_changes_of_the_cells_add_up_to_the_table():
    llm = mock_llm(endless, cells=64)
    rng = np.random.default_rng(0)
    seen, tokens, sequences = 0, {}, {}

    def follow():
        nonlocal seen
        found = llm.cells.changes(seen)
        if found.complete:
            tokens.clear(), sequences.clear()
        for cell, token in zip(found.cells.tolist(), found.tokens.tolist(), strict=True):
            tokens[cell] = token
        for sequence in found.removed:
            sequences.pop(sequence, None)
        sequences.update({sequence: cells.tolist() for sequence, cells in found.sequences.items()})
        seen = found.version
        table = llm.cells.snapshot()
        assert {c: t for c, t in tokens.items() if t >= 0} == {u["cell"]: u["token"] for u in table["used"]}
        assert sequences == {one["id"]: one["cells"] for one in table["sequences"]}

    held = []
    for _ in range(60):
        kind = rng.integers(5)
        if kind == 0 or not held:
            held.append(llm.sequence([int(t) for t in rng.integers(97, 120, rng.integers(1, 6))]))
            held[-1].logits  # noqa: B018
        elif kind == 1 and len(held) < 8:
            held.append(held[int(rng.integers(len(held)))].fork())
        elif kind == 2:
            held.pop(int(rng.integers(len(held)))).close(park=bool(rng.integers(2)))
        elif kind == 3:
            held[int(rng.integers(len(held)))].truncate(2)
        else:
            llm.generate("abc", max_tokens=3, temperature=0)
        while llm.cells.n_free < 16:
            held.pop(0).close(park=False)
            llm.cache.clear()
        follow()


def test_prompts_are_scored_token_by_token_with_the_best_ones():
    llm = mock_llm("AB")
    texts = ["xAB", "q"]
    scored, single = llm.prompt_logprobs(texts, top=2)
    assert [token.id for token in scored] == [*b"xAB"]
    assert [token.text for token in scored] == ["x", "A", "B"]
    assert scored[0].logprob is None
    assert [token.logprob for token in scored[1:]] == pytest.approx(llm.score("xAB"))
    assert [token.top[0].token for token in scored[1:]] == [*b"AB"]
    assert [len(token.top) for token in scored] == [0, 2, 2]
    assert [(token.id, token.logprob) for token in single] == [(ord("q"), None)]


def test_a_scored_prompt_stays_in_the_cache_of_its_salt():
    llm = mock_llm("AB")
    llm.prompt_logprobs(["x" * 40], cache_salt="mine")
    assert llm.generate("x" * 40, max_tokens=1).usage.cached_tokens == 0
    assert llm.generate("x" * 40, max_tokens=1, cache_salt="mine").usage.cached_tokens == 39


@pytest.mark.parametrize(
    ("prompts", "param"), [([], "prompts"), ("x", "prompts"), ([""], "prompt"), ([[]], "prompt")]
)
def test_no_prompts_are_not_scored(prompts, param):
    with pytest.raises(InvalidRequest) as refused:
        mock_llm("A").prompt_logprobs(prompts)
    assert refused.value.param == param
