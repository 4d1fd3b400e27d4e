"""Rows that are sampled together give the tokens and log-probabilities that each gives alone."""

import asyncio

import numpy as np
import pytest

from stretto import LLM, _native
from stretto.backends.native import NativeBackend
from stretto.errors import ContextOverflow, InvalidRequest
from stretto.sampling import SamplingParams
from stretto.sampling.sampler import log_probability
from stretto.testing import byte_tokenizer
from tiny_models import tiny_file, tiny_spec

CHAINS = [
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 40, 0.9, 0.0),
    (1.3, 0, 0.8, 0.05),
    (0.5, 3, 1.0, 0.2),
]


def alone(row, chain, uniform):
    return _native.sample(row, uniform, *chain, 1.0, 0.0, 0.0)


@pytest.fixture(params=[0, 1, 3], ids=["no threads", "one thread", "three threads"])
def decoder(request):
    """A decoder that lends its threads, or None."""
    if not request.param:
        yield None
        return
    backend = NativeBackend(tiny_file("llama"), tiny_spec("llama"), 64, request.param)
    yield backend.decoder
    backend.close()


@pytest.mark.parametrize("n", [1, 127, 3000, 49_152])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_rows_are_drawn_as_if_alone(decoder, n, count):
    rng = np.random.default_rng(n + count)
    rows = rng.normal(0, 4, (count, n)).astype(np.float32)
    uniforms = rng.random(count).tolist()
    for chain in CHAINS:
        drawn = _native.draw_rows(list(rows), chain, uniforms, decoder)
        tokens = [alone(row, chain, uniform) for row, uniform in zip(rows, uniforms, strict=True)]
        assert [token for token, _ in drawn] == tokens
        assert [logprob for _, logprob in drawn] == [
            log_probability(row, token) for row, token in zip(rows, tokens, strict=True)
        ]


def test_each_row_has_parameters_of_its_own(decoder):
    rng = np.random.default_rng(5)
    rows = rng.normal(0, 4, (len(CHAINS), 3000)).astype(np.float32)
    uniforms = rng.random(len(CHAINS)).tolist()
    tokens = _native.sample_rows(rows, CHAINS, uniforms, decoder)
    assert tokens == [alone(*each) for each in zip(rows, CHAINS, uniforms, strict=True)]


def test_a_row_without_a_token_has_a_code(decoder):
    rows = np.zeros((4, 300), np.float32)
    rows[1, 200], rows[2], rows[3, 7] = np.nan, -np.inf, np.inf
    codes = [0, -1, -2, -3]
    assert _native.sample_rows(rows, [CHAINS[0]] * 4, [0.0] * 4, decoder) == codes
    assert [token for token, _ in _native.draw_rows(list(rows), CHAINS[0], [0.0] * 4, decoder)] == codes


def test_what_does_not_fit_is_refused():
    rows = np.zeros((2, 8), np.float32)
    with pytest.raises(ValueError, match="for each row"):
        _native.sample_rows(rows, [CHAINS[0]], [0.0, 0.0])
    with pytest.raises(ValueError, match="for each row"):
        _native.draw_rows(list(rows), CHAINS[0], [0.0])
    with pytest.raises(ValueError, match="same length"):
        _native.draw_rows([rows[0], rows[1, :4]], CHAINS[0], [0.0, 0.0])
    with pytest.raises(ValueError, match="at least one"):
        _native.sample_rows(rows[:, :0], [CHAINS[0]] * 2, [0.0] * 2)
    with pytest.raises(ValueError, match="out of range"):
        _native.sample_rows(rows, [(-1.0, 0, 1.0, 0.0)] * 2, [0.0] * 2)
    with pytest.raises(TypeError):
        _native.sample_rows(rows.astype(np.float64), [CHAINS[0]] * 2, [0.0] * 2)
    assert _native.draw_rows([], CHAINS[0], []) == []


def tiny_llm(threads=2):
    return LLM(NativeBackend(tiny_file("llama"), tiny_spec("llama"), 512, threads), byte_tokenizer())


OPTIONS = [
    {"temperature": 0},
    {"temperature": 0.9, "top_k": 20},
    {"temperature": 1.0, "repetition_penalty": 1.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_steps_of_several_are_steps_of_each(options):
    with tiny_llm() as llm:
        several = [llm.sequence([3, 7, 20 + i], seed=i) for i in range(5)]
        single = [llm.sequence([3, 7, 20 + i], seed=i) for i in range(5)]
        for _ in range(6):
            together = llm.step(several, **options)
            for step, sequence in zip(together, single, strict=True):
                expected = log_probability(sequence.logits.copy(), step.token)
                assert sequence.step(**options) == step
                assert step.logprob == expected


def test_a_row_of_nan_changes_no_sequence_of_the_step():
    with tiny_llm() as llm:
        fine, broken = llm.sequence([3, 7], seed=1), llm.sequence([4], seed=2)
        llm.logits([fine, broken])
        broken.logits[3] = np.nan
        before = fine.tokens, fine.random.draws, broken.tokens, broken.random.draws
        with pytest.raises(InvalidRequest, match="NaN"):
            llm.step([fine, broken], temperature=1.0)
        assert (fine.tokens, fine.random.draws, broken.tokens, broken.random.draws) == before


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_sequence_without_room_changes_no_sequence_of_the_step(temperature):
    with tiny_llm() as llm:
        full = llm.sequence([3] * llm.context_length, seed=2)
        several = [llm.sequence([3, 7], seed=1), full, llm.sequence([4], seed=3)]
        expected = llm.sequence([4], seed=3).step(temperature=temperature)
        before = [(one.tokens, one.random.draws) for one in several]
        with pytest.raises(ContextOverflow, match="do not fit into a context of"):
            llm.step(several, temperature=temperature)
        assert [(one.tokens, one.random.draws) for one in several] == before
        assert several[2].step(temperature=temperature) == expected


def test_sequences_that_share_random_numbers_use_one_after_the_other():
    with tiny_llm() as llm:
        sequences = [llm.sequence([5, 6], seed=4) for _ in range(2)]
        sequences[1].random = sequences[0].random
        rows = llm.logits(sequences)
        uniforms = [sequences[0].random.peek(i) for i in range(2)]
        params = SamplingParams(temperature=1.0)
        expected = [alone(*each) for each in zip(rows, [params.numbers[:4]] * 2, uniforms, strict=True)]
        assert [step.token for step in llm.step(sequences, temperature=1.0)] == expected
        assert sequences[0].random.draws == 2


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_texts_that_run_together_are_those_that_run_alone(options):
    prompts = [[9, 4, 10 + i] for i in range(6)]
    lengths = [3, 9, 14, 14, 20, 20]
    with tiny_llm() as llm:
        together = [
            llm.generate(prompt, max_tokens=n, seed=i, ignore_eos=True, **options)
            for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True))
        ]
    with tiny_llm() as llm:
        streams = [
            llm.astream(prompt, max_tokens=n, seed=i, ignore_eos=True, **options)
            for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True))
        ]
        assert asyncio.run(collected(streams)) == [result.tokens for result in together]


async def collected(streams):
    async def tokens(stream):
        return [token.id async for token in stream]

    return await asyncio.gather(*map(tokens, streams))
