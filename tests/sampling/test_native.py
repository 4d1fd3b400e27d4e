"""The native sampler takes the token that the plain functions take."""

from dataclasses import replace

import numpy as np
import pytest

from stretto import _native
from stretto.errors import InvalidRequest
from stretto.sampling import SamplingParams, transforms
from stretto.sampling.sampler import choose, choose_by_definition


def random_params(rng):
    def pick(*options):
        return options[rng.integers(len(options))]

    return SamplingParams(
        temperature=pick(0, 0.3, 0.7, 1.0, 1.7),
        top_k=pick(0, 1, 5, 40, 1000),
        top_p=pick(0.1, 0.5, 0.9, 0.95, 1.0),
        min_p=pick(0.0, 0.01, 0.05, 0.5, 1.0),
        repetition_penalty=pick(1.0, 1.0, 1.3, 0.8),
        presence_penalty=pick(0.0, 0.0, 0.7, -0.5),
        frequency_penalty=pick(0.0, 0.0, 0.4),
        logit_bias=pick(None, None, {3: 2.5, 7: -np.inf, 11: -1.0}),
    )


def near_a_border(row, params, tokens, n_prompt, uniform):
    """Whether a cut-off or the draw lies within 1e-6 of a decision, where either answer is right."""
    nearby = {
        choose_by_definition(row, changed, tokens, n_prompt, u)
        for changed in (
            params,
            *(replace(params, top_p=min(max(params.top_p * f, 1e-9), 1.0)) for f in (1 - 1e-6, 1 + 1e-6)),
            *(replace(params, min_p=min(params.min_p * f, 1.0)) for f in (1 - 1e-6, 1 + 1e-6)),
        )
        for u in (uniform, max(uniform - 1e-6, 0.0), min(uniform + 1e-6, 1 - 1e-12))
    }
    return len(nearby) > 1


@pytest.mark.parametrize("at", [0, 255, 256, 29_999])
def test_finds_what_stands_anywhere_in_a_long_row(at):
    row = np.full(30_000, -3.0, np.float32)
    row[at] = -2.0
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=0.01, top_k=1)):
        assert choose(row, params, (), 0, 0.5) == at
    row[at] = np.nan
    with pytest.raises(InvalidRequest, match="NaN"):
        choose(row, SamplingParams(temperature=0), (), 0, 0.5)
    row[:] = -np.inf
    row[at] = 0.0
    assert choose(row, SamplingParams(top_k=5), (), 0, 0.5) == at


@pytest.mark.parametrize("n", [17, 500, 3000])
def test_the_same_token_on_random_rows(n):
    rng = np.random.default_rng(n)
    different = 0
    for case in range(3400):
        row = (rng.standard_normal(n) * rng.choice([0.5, 3.0, 12.0])).astype(np.float32)
        if case % 5 == 0:
            row = np.round(row)  # many equal logits
        if case % 7 == 0:
            row[rng.integers(0, n, n // 2)] = -np.inf
            row[0] = 1.0
        params, uniform = random_params(rng), float(rng.random())
        tokens = rng.integers(0, n, rng.integers(0, 20)).tolist()
        n_prompt = int(rng.integers(0, len(tokens) + 1))
        ours = choose(row, params, tokens, n_prompt, uniform)
        if ours != choose_by_definition(row, params, tokens, n_prompt, uniform):
            assert near_a_border(row, params, tokens, n_prompt, uniform), (case, params, uniform)
            different += 1
    assert different < 10


@pytest.mark.parametrize("n", [49_152, 262_144])
def test_the_same_token_on_rows_of_real_size(n):
    rng = np.random.default_rng(n)
    for _ in range(40):
        row = (rng.standard_normal(n) * 4).astype(np.float32)
        params, uniform = random_params(rng), float(rng.random())
        ours = choose(row, params, [], 0, uniform)
        theirs = choose_by_definition(row, params, [], 0, uniform)
        assert ours == theirs or near_a_border(row, params, [], 0, uniform)


OPEN = SamplingParams(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0)


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 700), (0.5, 701), (1 - 2**-53, 4000)])
@pytest.mark.parametrize("params", [OPEN, replace(OPEN, top_p=0.999999999), replace(OPEN, min_p=1e-300)])
def test_what_weighs_nothing_never_comes(params, uniform, token):
    row = np.full(5000, -np.inf, np.float32)
    row[[700, 701, 4000]] = 3.0, 2.0, 3.0
    for low in (-np.inf, -100.0, np.finfo(np.float32).min):
        row[300] = low
        assert choose(row, params, [], 0, uniform) == token


@pytest.mark.parametrize("params", [OPEN, replace(OPEN, top_p=0.9), replace(OPEN, min_p=0.3)])
def test_every_token_comes_as_often_as_it_should(params):
    rng = np.random.default_rng(5)
    row = (rng.standard_normal(1500) * 2).astype(np.float32)
    kept = transforms.temper(row, params.temperature)
    if params.top_p < 1:
        kept = transforms.keep_top_p(kept, params.top_p)
    if params.min_p:
        kept = transforms.keep_min_p(kept, params.min_p)
    n = 20_000
    taken = [choose(row, params, [], 0, (i + 0.5) / n) for i in range(n)]
    counts = np.bincount(taken, minlength=len(row))
    assert taken == sorted(taken)
    assert np.abs(counts - n * transforms.softmax(kept)).max() <= 1.01


@pytest.mark.parametrize("n", [17, 128, 300, 3000, 49_152])
def test_a_mask_is_as_good_as_minus_infinity(n):
    rng = np.random.default_rng(n)
    for case in range(60):
        row = (rng.standard_normal(n) * 3).astype(np.float32)
        if case % 3 == 0:
            row = np.round(row)  # many equal logits
        allowed = rng.random(n) < rng.choice([0.01, 0.5, 0.99])
        for start in range(0, n, 128):  # whole stretches of one kind too
            if rng.random() < 0.4:
                allowed[start : start + 128] = rng.random() < 0.5
        allowed[rng.integers(n)] = True
        row[rng.integers(n)] = np.nan if case % 10 == 0 else 0.0
        words = np.zeros(-(-n // 32) * 32, bool)
        words[:n] = allowed
        words[n:] = rng.random() < 0.5  # bits behind the last token mean nothing
        mask = np.packbits(words, bitorder="little").view(np.uint32)
        params, uniform = random_params(rng), float(rng.random())
        tokens = rng.integers(0, n, 5).tolist()
        outcomes = []
        for logits, given in ((row, mask), (np.where(allowed, row, np.float32(-np.inf)), None)):
            try:
                outcomes.append(choose(logits, params, tokens, 2, uniform, given))
            except InvalidRequest as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], (case, params)


def test_the_row_is_left_alone():
    row = np.arange(50, dtype=np.float32)
    before = row.copy()
    choose(row, SamplingParams(repetition_penalty=2.0, logit_bias={3: 1.0}), [1, 2], 0, 0.5)
    assert np.array_equal(row, before)


def test_equal_logits_keep_the_lower_ids():
    row = np.zeros(100, np.float32)
    params = SamplingParams(temperature=1.0, top_k=3, top_p=1.0, min_p=0.0)
    assert {choose(row, params, [], 0, u) for u in np.linspace(0, 0.999, 50)} == {0, 1, 2}
    assert np.flatnonzero(transforms.keep_top_k(row, 3) > -np.inf).tolist() == [0, 1, 2]


def call(**changes):
    arguments = {
        "logits": np.zeros(4, np.float32),
        "uniform": 0.5,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition": 1.0,
        "presence": 0.0,
        "frequency": 0.0,
        "tokens": np.empty(0, np.int32),
        "n_prompt": 0,
        "biased": np.empty(0, np.int32),
        "bias": np.empty(0, np.float32),
    }
    return _native.sample(**{**arguments, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"logits": np.empty(0, np.float32)},
        {"logits": np.zeros(4, np.float64)},
        {"logits": np.zeros((2, 2), np.float32)},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"min_p": float("nan")},
        {"repetition": 0.0},
        {"tokens": np.array([4], np.int32)},
        {"tokens": np.array([-1], np.int32)},
        {"biased": np.array([9], np.int32), "bias": np.zeros(1, np.float32)},
        {"biased": np.array([1], np.int32)},
    ],
)
def test_native_code_checks_for_itself(changes):
    with pytest.raises((ValueError, TypeError)):
        call(**changes)


def test_codes_for_rows_that_cannot_be_sampled():
    assert call(logits=np.array([1, np.nan], np.float32)) == -1
    assert call(logits=np.full(3, -np.inf, np.float32)) == -2
    assert call(logits=np.array([np.inf, 0], np.float32)) == -3
    assert call(n_prompt=10**9, tokens=np.array([1], np.int32), presence=1.0) in range(4)
