"""Continuations are packed into one pass; each scores as behind its prompt alone, to the last bit."""

import asyncio
import random

import numpy as np
import pytest

from recurrent_mock import recurrent_llm
from stretto.backends.native import NativeBackend
from stretto.backends.reference import ReferenceBackend
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.llm import LLM
from stretto.sampling.transforms import log_softmax
from stretto.testing import byte_tokenizer, mock_llm
from tiny_models import tiny_file, tiny_spec

PROMPT = [5, 6, 7, 5, 6, 9]


def tiny(name="llama", n_cells=256, backend=NativeBackend, **options):
    threads = (2,) if backend is NativeBackend else ()
    made = backend(tiny_file(name), tiny_spec(name), n_cells, *threads, n_slots=4)
    return LLM(made, byte_tokenizer(), **options)


def bunch(seed, n=12, most=6, n_vocab=6):
    rng = random.Random(seed)
    return [[rng.randrange(n_vocab) for _ in range(rng.randrange(1, most + 1))] for _ in range(n)]


def alone(llm, prompt, continuation):
    return llm.score([*prompt, *continuation])[len(prompt) - 1 :]


def settled(llm):
    assert llm.cache.stats().held == 0
    llm.cells.check()


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2", "granitehybrid"])
@pytest.mark.parametrize("seed", range(3))
def test_each_continuation_has_the_bits_of_its_text_alone(name, seed):
    with tiny(name) as llm:
        several = bunch(seed)
        found = llm.score(PROMPT, several)
        for continuation, scores in zip(several, found, strict=True):
            np.testing.assert_array_equal(scores, alone(llm, PROMPT, continuation))
        settled(llm)


def test_each_continuation_has_the_bits_of_a_fork():
    with tiny() as llm, llm.sequence(PROMPT) as seq:
        for continuation, scores in zip(several := bunch(5), llm.score(seq, several), strict=True):
            with seq.fork() as fork:
                for token, score in zip(continuation, scores, strict=True):
                    assert score == np.float32(log_softmax(fork.logits)[token])
                    fork.append(token)


def test_the_reference_backend_scores_them_too():
    with tiny(backend=ReferenceBackend) as llm:
        several = bunch(1, 5)
        for continuation, scores in zip(several, llm.score(PROMPT, several), strict=True):
            assert scores == pytest.approx(alone(llm, PROMPT, continuation), abs=1e-5)


def test_one_pass_computes_shared_tokens_once():
    llm = mock_llm("x")
    llm.score("ab", ["cde", "cdf", "cg", "h"])
    assert [sorted(batch) for batch in llm.backend.batches] == [list(b"ab"), list(b"cd")]
    llm.score("ab", ["cde", "xyz", "cd"])  # the prompt is cached, but for its last token
    assert [sorted(batch) for batch in llm.backend.batches[2:]] == [list(b"b"), list(b"cdxy")]
    settled(llm)


def test_continuations_of_one_token_need_no_pass_of_their_own():
    llm = mock_llm("x")
    assert llm.score("ab", ["x", "y"])[0] > llm.score("ab", ["x", "y"])[1]
    assert [len(batch) for batch in llm.backend.batches] == [2, 1]
    assert llm.score("ab", []) == []


def test_more_continuations_than_a_pass_holds():
    with tiny(n_cells=40) as llm:
        several = bunch(2, 40, 8)
        found = llm.score(PROMPT, several)
        for continuation, scores in zip(several, found, strict=True):
            np.testing.assert_array_equal(scores, alone(llm, PROMPT, continuation))
        settled(llm)


def test_a_sequence_stays_as_it_is():
    with tiny() as llm, llm.sequence(PROMPT) as seq:
        before = seq.logits.copy()
        found = llm.score(seq, [[1, 2], [3]])
        assert seq.tokens == PROMPT
        assert (seq.logits == before).all()
        assert llm.cells.sequences == [seq.id]
        np.testing.assert_array_equal(found[0], alone(llm, PROMPT, [1, 2]))
        edited = llm.score(seq, [[1, 2]])  # again, with cells that were used before
        np.testing.assert_array_equal(edited[0], found[0])


def test_beside_a_stream_both_have_the_same_bits():
    with tiny() as llm:
        several = bunch(3)
        plain, text = llm.score(PROMPT, several), llm.generate([1, 2], seed=1, max_tokens=30, ignore_eos=True)
        stream = iter(llm.stream([1, 2], seed=1, max_tokens=30, ignore_eos=True))
        first = next(stream)
        found = llm.score(PROMPT, several)
        assert [first.id, *(token.id for token in stream)] == text.tokens
        for one, other in zip(plain, found, strict=True):
            np.testing.assert_array_equal(one, other)
        settled(llm)


def test_scores_to_await():
    with tiny() as llm:
        plain = llm.score(PROMPT, [[1, 2], [3]])
        found = asyncio.run(llm.ascore(PROMPT, [[1, 2], [3]]))
        assert [one.tolist() for one in found] == [one.tolist() for one in plain]


def test_recurrent_layers_take_one_continuation_after_the_other():
    with recurrent_llm(slots=4) as llm:
        several = ["abc", "abd", "x"]
        for continuation, scores in zip(several, llm.score("ab", several), strict=True):
            assert scores == pytest.approx(llm.score("ab" + continuation)[1:], rel=1e-6)


def test_an_error_frees_the_cells():
    llm = mock_llm("x", cells=16)
    with llm.sequence("0123456789"), pytest.raises(InvalidRequest, match="continuation 1 has no tokens"):
        llm.score("ab", ["cd", ""])
    settled(llm)


@pytest.mark.parametrize(
    ("prompt", "continuations", "error", "words"),
    [
        ("ab", "cd", InvalidRequest, "continuations must be a list"),
        ("ab", 3, InvalidRequest, "continuations must be a list"),
        ("ab", [[999]], InvalidRequest, "not in the vocabulary"),
        ([], ["cd"], InvalidRequest, "the prompt is empty"),
        ("ab", ["x" * 80], ContextOverflow, "does not fit into a context of 64"),
    ],
)
def test_what_cannot_be_scored_is_refused(prompt, continuations, error, words):
    with mock_llm("x", cells=64) as llm:
        with pytest.raises(error, match=words):
            llm.score(prompt, continuations)
        settled(llm)


def test_a_sequence_without_continuations_is_refused():
    with (
        mock_llm("x") as llm,
        llm.sequence("ab") as seq,
        pytest.raises(InvalidRequest, match="continuations"),
    ):
        llm.score(seq)
