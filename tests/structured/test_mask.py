"""The native sampler with a mask: as if what is masked had −inf."""

import numpy as np
import pytest

from stretto import _native
from stretto.errors import InvalidRequest
from stretto.sampling.params import SamplingParams
from stretto.sampling.sampler import choose, choose_by_definition


def packed(allowed):
    bits = np.zeros((len(allowed) + 31) // 32 * 32, np.uint8)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 1000, 49152])
def test_a_mask_is_minus_infinity(n):
    rng = np.random.default_rng(n)
    for trial in range(60 if n < 2000 else 6):
        row = rng.normal(0, 4, n).astype(np.float32)
        allowed = rng.random(n) < rng.choice([0.02, 0.5, 0.98, 1.0])
        allowed[rng.integers(n)] = True
        params = SamplingParams(
            temperature=float(rng.choice([0.0, 0.7, 1.0, 2.0])),
            top_k=int(rng.choice([0, 1, 5, 40])),
            top_p=float(rng.choice([1.0, 0.9])),
            min_p=float(rng.choice([0.0, 0.05])),
            repetition_penalty=float(rng.choice([1.0, 1.3])),
            frequency_penalty=float(rng.choice([0.0, 0.4])),
            logit_bias={int(rng.integers(n)): 3.0} if trial % 3 == 0 else None,
        )
        tokens = rng.integers(0, n, 20).tolist()
        uniform = rng.random()
        row_before = row.copy()
        token = choose(row, params, tokens, 5, uniform, packed(allowed))
        assert allowed[token]
        assert (row == row_before).all()
        masked = np.where(allowed, row, np.float32(-np.inf))
        assert token == choose(masked, params, tokens, 5, uniform)
        if n < 2000:
            assert token == choose_by_definition(masked, params, tokens, 5, uniform)


def test_what_is_masked_may_be_anything():
    row = np.array([np.nan, np.inf, 1.0, -np.inf, 2.0], np.float32)
    mask = packed([False, False, True, True, True])
    assert choose(row, SamplingParams(temperature=0), [], 0, 0.0, mask) == 4


def test_nothing_left():
    row = np.array([1.0, -np.inf, 2.0], np.float32)
    for allowed in ([False, False, False], [False, True, False]):
        with pytest.raises(InvalidRequest, match="every token is excluded"):
            choose(row, SamplingParams(), [], 0, 0.5, packed(allowed))


def test_a_mask_that_is_too_short_is_refused():
    row = np.zeros(33, np.float32)
    with pytest.raises(ValueError, match="a bit for each"):
        choose(row, SamplingParams(), [], 0, 0.5, np.ones(1, np.uint32))
    with pytest.raises(TypeError):
        _native.sample(row, 0.5, *SamplingParams().numbers, mask=np.ones(2, np.int64))
