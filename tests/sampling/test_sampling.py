"""Each step of sampling by its definition, the chain by its statistics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stretto
from stretto import _native
from stretto.errors import InvalidRequest
from stretto.sampling import RandomStream, SamplingParams, sample, transforms

INF = np.inf
OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # nothing cut off

rows = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=50).map(lambda r: np.array(r, np.float32))


def kept(row):
    return set(np.flatnonzero(row > -INF).tolist())


def probabilities(row):
    weights = np.exp(np.asarray(row, np.float64) - np.max(row))
    return weights / weights.sum()


def frequencies(logits, n=20_000, **options):
    rng = np.random.default_rng(11)
    counts = np.zeros(len(logits))
    for _ in range(n):
        counts[sample(logits, rng=rng, **options)] += 1
    return counts / n


# -- the single steps --


@given(rows, st.integers(1, 60))
def test_top_k_keeps_the_k_largest(row, k):
    result = transforms.keep_top_k(row, k)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    assert kept(result) == set(order[:k])
    assert all(result[i] == row[i] for i in kept(result))


@given(rows, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_that_reaches_p(row, p):
    p_of = transforms.softmax(row)
    chosen = kept(transforms.keep_top_p(row, p))
    inside = sum(p_of[i] for i in chosen)
    assert inside >= p - 1e-12
    assert inside - min(p_of[i] for i in chosen) < p + 1e-12  # without its least member it would not
    outside = set(range(len(row))) - chosen
    assert all(p_of[i] >= p_of[j] for i in chosen for j in outside)


@given(rows, st.floats(0.001, 1.0))
def test_min_p_keeps_what_is_near_the_best(row, p):
    p_of = probabilities(row)
    chosen = kept(transforms.keep_min_p(row, p))
    for i, probability in enumerate(p_of):
        if abs(probability - p * p_of.max()) > 1e-6:
            assert (i in chosen) == (probability >= p * p_of.max())
    assert int(np.argmax(row)) in chosen


@given(rows, st.floats(0.1, 10))
def test_temperature_divides(row, temperature):
    assert np.allclose(transforms.temper(row, temperature), row / temperature, rtol=1e-5)


@given(rows, st.floats(1.01, 5), st.data())
def test_repetition_pushes_down_whatever_the_sign(row, penalty, data):
    seen = data.draw(st.lists(st.integers(0, len(row) - 1), min_size=1, max_size=5))
    result = transforms.penalize(row, seen, 0, penalty, 0.0, 0.0)
    for i, (before, after) in enumerate(zip(row, result, strict=True)):
        if i not in seen:
            assert after == before
        elif abs(before) > np.finfo(np.float32).tiny:  # smaller numbers have too few bits left to shrink
            assert after < before
            assert np.isclose(after, before / penalty if before > 0 else before * penalty, rtol=1e-5)


def test_presence_and_frequency_count_generated_tokens_only():
    row = np.zeros(5, np.float32)
    result = transforms.penalize(row, [0, 0, 1, 2, 2, 2], 2, 1.0, 0.5, 0.25)
    assert result.tolist() == [0.0, -0.75, -1.25, 0.0, 0.0]


def test_bias_adds_and_excludes():
    row = transforms.add_bias(np.zeros(3, np.float32), {0: 1.5, 2: -INF})
    assert row.tolist() == [1.5, 0.0, -INF]


def test_steps_leave_their_input_alone():
    row = np.arange(5, dtype=np.float32)
    before = row.copy()
    transforms.penalize(row, [1], 0, 2.0, 1.0, 1.0)
    transforms.add_bias(row, {1: 3.0})
    transforms.keep_top_k(row, 2)
    transforms.keep_top_p(row, 0.5)
    transforms.keep_min_p(row, 0.5)
    sample(row, tokens=[1], repetition_penalty=2.0, logit_bias={0: 1.0}, rng=1)
    assert np.array_equal(row, before)


@given(rows, st.floats(0, 1, exclude_max=True))
def test_draw_walks_the_line_in_order_of_id(row, uniform):
    cumulative = np.cumsum(probabilities(row))
    token = transforms.draw(row, uniform)
    assert cumulative[token] > uniform - 1e-9
    assert token == 0 or cumulative[token - 1] <= uniform + 1e-9


# -- the chain --


def test_greedy_takes_the_best_and_the_lower_id_of_equals():
    assert sample([0.0, 3.0, 3.0, 1.0], temperature=0) == 1
    assert sample([-5.0, -INF, -4.0], temperature=0) == 2


def test_without_cuts_the_statistics_are_those_of_the_softmax():
    logits = np.array([0.0, 1.0, 2.0, -1.0], np.float32)
    found = frequencies(logits, temperature=1.0, **OPEN)
    assert np.abs(found - probabilities(logits)).max() < 0.015


def test_temperature_combines_with_top_k_and_top_p():
    logits = np.array([0.0, 1.0, 2.0, 3.0, -8.0], np.float32)
    found = frequencies(logits, temperature=2.0, top_k=3, top_p=1.0, min_p=0.0)
    expected = np.zeros(5)
    expected[1:4] = probabilities(logits[1:4] / 2)
    assert np.abs(found - expected).max() < 0.015
    # At temperature 2 the two best of the three hold 0.81 of the probability.
    found = frequencies(logits, temperature=2.0, top_k=3, top_p=0.8, min_p=0.0)
    expected[1:4] = [0, *probabilities(logits[2:4] / 2)]
    assert np.abs(found - expected).max() < 0.015
    # Sharper, the best alone does.
    assert frequencies(logits, n=200, temperature=0.3, top_k=3, top_p=0.8, min_p=0.0)[3] == 1.0


def test_penalties_act_before_the_draw():
    logits = [1.0, 1.0]
    found = frequencies(logits, temperature=1.0, presence_penalty=2.0, tokens=[0], **OPEN)
    assert np.abs(found - probabilities([-1.0, 1.0])).max() < 0.015


def test_a_seed_repeats_and_seeds_differ():
    logits = np.zeros(1000, np.float32)
    options = {"temperature": 1.0, **OPEN}
    assert sample(logits, rng=5, **options) == sample(logits, rng=5, **options)
    assert len({sample(logits, rng=seed, **options) for seed in range(50)}) > 40
    assert len({sample(logits, **options) for _ in range(50)}) > 40


def test_sample_is_public():
    assert stretto.sample is sample


@pytest.mark.parametrize(
    ("logits", "options", "message"),
    [
        ([], {}, "one row"),
        ([[1.0, 2.0]], {}, "one row"),
        (["a"], {}, "one row"),
        ([np.nan, 1.0], {}, "NaN"),
        ([-INF, -INF], {}, "every token is excluded"),
        ([INF, 1.0], {}, r"\+inf"),
        ([1.0], {"temperature": -1}, "temperature must be a number from 0 to 100, not -1"),
        ([1.0], {"temperature": np.nan}, "temperature"),
        ([1.0], {"temperature": "hot"}, "temperature"),
        ([1.0], {"temperature": True}, "temperature"),
        ([1.0], {"top_k": -1}, "top_k"),
        ([1.0], {"top_k": 1.5}, "top_k"),
        ([1.0], {"top_p": 0.0}, "top_p must be a number above 0 to 1, not 0.0"),
        ([1.0], {"top_p": 1.5}, "top_p"),
        ([1.0], {"min_p": 2}, "min_p"),
        ([1.0], {"repetition_penalty": 0}, "repetition_penalty"),
        ([1.0], {"presence_penalty": 1e9}, "presence_penalty"),
        ([1.0], {"frequency_penalty": INF}, "frequency_penalty"),
        ([1.0], {"logit_bias": [1]}, "logit_bias"),
        ([1.0], {"logit_bias": {0: np.nan}}, "logit_bias of token 0"),
        ([1.0], {"logit_bias": {0: INF}}, "logit_bias of token 0"),
        ([1.0], {"logit_bias": {5: 1.0}}, "logit_bias names token 5; the vocabulary ends at 0"),
        ([1.0], {"logit_bias": {-1: 1.0}}, "logit_bias"),
        ([1.0], {"tokens": [3], "presence_penalty": 1.0}, "token 3 in tokens"),
        ([1.0], {"rng": "x"}, "rng"),
        ([1.0], {"rng": -1}, "seed"),
    ],
)
def test_bad_input(logits, options, message):
    with pytest.raises(InvalidRequest, match=message):
        sample(logits, **options)


# -- the stream --


def test_a_stream_is_a_function_of_seed_index_and_draw():
    first = [RandomStream(3).uniform() for _ in range(2)]
    assert first[0] == first[1]
    stream = RandomStream(3)
    numbers = [stream.uniform() for _ in range(10)]
    assert numbers[0] == first[0]
    assert len(set(numbers)) == 10
    assert RandomStream(3, index=1).uniform() != first[0]
    assert RandomStream(4).uniform() != first[0]


@pytest.mark.parametrize(("seed", "index"), [(0, 0), (7, 3), ((1 << 64) - 1, 255)])
def test_its_numbers_are_those_of_numpy(seed, index):
    stream = RandomStream(seed, index)
    numbers = np.random.Generator(np.random.Philox(key=np.array([seed, index], np.uint64))).random(50)
    assert [stream.uniform() for _ in range(50)] == numbers.tolist()


@given(st.integers(0, 20))
def test_a_fork_goes_on_with_the_same_numbers(draws):
    stream = RandomStream(9)
    for _ in range(draws):
        stream.uniform()
    twin = stream.fork()
    assert twin.draws == stream.draws == draws
    assert [twin.uniform() for _ in range(5)] == [stream.uniform() for _ in range(5)]


def test_a_stream_can_begin_anywhere():
    stream = RandomStream(9, 2)
    numbers = [stream.uniform() for _ in range(40)]
    for draws in range(40):
        later = RandomStream(9, 2, draws)
        assert later.draws == draws
        assert [later.uniform() for _ in range(40 - draws)] == numbers[draws:]
        assert later.draws == 40
    far = 10**15 + 3  # at once, and where the native code would be
    assert RandomStream(9, 2, far).uniform() == _native.uniform(9, 2, far)
    for wrong in (-1, 1.5, True, (1 << 63) + 1):
        with pytest.raises(InvalidRequest, match="draws must be an integer"):
            RandomStream(9, 2, wrong)


def test_uniform_is_uniform():
    stream = RandomStream(1)
    numbers = np.array([stream.uniform() for _ in range(20_000)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert np.abs(counts / 1000 - 1).max() < 0.15


def test_params_are_hashable_data():
    assert SamplingParams(temperature=0.5) == SamplingParams(temperature=0.5)
    assert not SamplingParams().penalizes
    assert SamplingParams(frequency_penalty=0.1).penalizes


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 1e-7), ("temperature", 5e-324), ("repetition_penalty", 5e-324)]
)
def test_numbers_that_floats_cannot_divide_by_are_refused(name, value):
    with pytest.raises(InvalidRequest, match=f"{name} must be"):
        SamplingParams(**{name: value})


def test_numbers_that_were_peeked_at_are_not_taken():
    stream, plain = RandomStream(7, 1), RandomStream(7, 1)
    numbers = [plain.uniform() for _ in range(6)]
    assert stream.peek() == numbers[0]
    assert stream.peek(2) == numbers[2]
    assert stream.draws == 0
    assert [stream.uniform() for _ in range(4)] == numbers[:4]
    assert stream.fork().uniform() == stream.peek() == numbers[4]
    stream.peek(3)
    stream.skip_to(5)
    assert stream.uniform() == numbers[5]


def test_negative_penalties_are_taken():
    assert SamplingParams(presence_penalty=-1, frequency_penalty=-0.5).numbers[-2:] == (-1, -0.5)
