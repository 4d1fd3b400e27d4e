"""Log-probabilities of sampled texts: what `score` finds is what was reported, bit for bit."""

import numpy as np
import pytest

from stretto import SamplingParams
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest
from stretto.llm import LLM
from stretto.testing import byte_tokenizer
from tiny_models import N_CELLS, tiny_file, tiny_spec

PROMPT = [5, 17, 9, 33, 2, 40]
OTHER = [8, 8, 1]
FAMILIES = ["llama", "mixtral", "qwen35"]
SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.1, "logit_bias": {3: 2.0}},
    {"temperature": 1.0, "top_k": 0, "repetition_penalty": 1.3, "presence_penalty": 0.2},
]


def new_llm(name="llama", threads=2, cells=N_CELLS):
    backend = NativeBackend(tiny_file(name), tiny_spec(name), cells, threads, "f16", n_slots=8)
    return LLM(backend, byte_tokenizer())


@pytest.fixture(scope="module", params=FAMILIES)
def llm(request):
    with new_llm(request.param) as found:
        yield found


def reported(result):
    return np.array([token.logprob for token in result.logprobs], np.float32)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shaped", [False, True], ids=["raw", "sampled"])
def test_scores_are_the_log_probabilities_that_were_reported(llm, sampling, shaped):
    options = {"max_tokens": 12, "ignore_eos": True, "logprobs": 1, "sampled_logprobs": shaped, "seed": 3}
    streams = [llm.stream(text, **options, **sampling) for text in (PROMPT, OTHER)]  # in one batch
    for prompt, stream in zip((PROMPT, OTHER), streams, strict=True):
        result, params = stream.result, SamplingParams(**sampling) if shaped else None
        [packed] = llm.score(prompt, [result.tokens], sampling=params)
        assert np.array_equal(packed, reported(result))
        if shaped and "repetition_penalty" in sampling:
            continue
        whole = llm.score(prompt + result.tokens, sampling=params)
        assert np.array_equal(whole[-len(result.tokens) :], reported(result))


def test_other_threads_find_the_same_scores():
    options = {"max_tokens": 12, "ignore_eos": True, "logprobs": 1, "seed": 3, "temperature": 0.9}
    with new_llm(threads=1) as llm:
        result = llm.generate(PROMPT, **options)
    with new_llm(threads=2) as llm:  # another process, another model in memory
        llm.generate(PROMPT + result.tokens[:5], max_tokens=1)  # from the cache
        assert np.array_equal(llm.score(PROMPT, [result.tokens])[0], reported(result))


def test_excluded_tokens_have_no_probability(llm):
    [score] = llm.score(PROMPT, [[7, 9]], sampling=SamplingParams(temperature=0))
    assert set(score.tolist()) <= {0.0, -np.inf}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda llm: llm.score(PROMPT, sampling={"temperature": 1}), "sampling must be"),
        (lambda llm: llm.score(PROMPT, sampling=SamplingParams(presence_penalty=1.0)), "its continuations"),
        (lambda llm: llm.score(PROMPT, [[1]], sampling="greedy"), "sampling must be"),
    ],
)
def test_wrong_values_are_named(llm, call, message):
    with pytest.raises(InvalidRequest, match=message):
        call(llm)
