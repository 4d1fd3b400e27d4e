"""Choosing a set: thresholds, widths, end tokens, mixtures, temperatures, schedules."""

import numpy as np
import pytest

from stretto.errors import InvalidRequest
from stretto.parallel import Bezier, Cosine, Linear
from stretto.parallel.render import Loop, find_loop
from stretto.parallel.sets import combine, distributions, select, temper
from stretto.sampling.transforms import softmax

P = np.array([0.1, 0.4, 0.25, 0.25])


@pytest.mark.parametrize(
    ("threshold", "most", "tokens"),
    [
        (0.25, 8, [1, 2, 3]),
        (0.05, 8, [1, 2, 3, 0]),
        (0.05, 2, [1, 2]),
        (0.3, 8, [1]),
        (1.0, 8, [1]),
        (0.05, 1, [1]),
    ],
)
def test_the_tokens_that_pass(threshold, most, tokens):
    chosen = select(P, threshold, most)
    assert chosen.tokens == tokens
    assert chosen.probabilities == P[tokens].tolist()
    assert sum(chosen.weights) == pytest.approx(1)
    assert chosen.weights[0] == pytest.approx(0.4 / P[tokens].sum())


def test_an_end_token_ends_alone_or_is_dropped():
    assert select(P, 0.1, 8, {1}) == select(P, 1.0, 1, {1})
    assert select(P, 0.1, 8, {1}).end == 1
    assert select(P, 0.1, 8, {1}).tokens == []
    dropped = select(P, 0.1, 8, {2})
    assert dropped.end is None
    assert dropped.tokens == [1, 3, 0]
    assert sum(dropped.weights) == pytest.approx(1)
    assert select(P, 0.1, 2, {2}).tokens == [1]  # it is dropped from the set, nobody takes its place


def test_the_next_distribution():
    rows = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    each = distributions(rows)
    np.testing.assert_allclose(each, [softmax(row) for row in rows], rtol=1e-5)
    mixed = combine(each, [0.5, 0.3, 0.2], "mixture")
    np.testing.assert_allclose(mixed, 0.5 * each[0] + 0.3 * each[1] + 0.2 * each[2], rtol=1e-5)
    assert mixed.sum() == pytest.approx(1, abs=1e-5)
    np.testing.assert_array_equal(combine(each, [0.5, 0.3, 0.2], "best"), each[0])
    np.testing.assert_array_equal(combine(each[:1], [1.0], "mixture"), each[0])


def test_temperature():
    row = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    p = distributions(row[np.newaxis])[0]
    assert temper(p, 1.0) is p
    np.testing.assert_allclose(temper(p, 0.5), softmax(row / np.float32(0.5)), rtol=1e-5)
    assert temper(p, 0.0).tolist() == [float(i == row.argmax()) for i in range(50)]
    assert np.isfinite(temper(np.array([1.0, 0.0]), 2.0)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers(value):
    with pytest.raises(InvalidRequest, match="finite"):
        distributions(np.full((1, 3), value, np.float32))


def test_schedules():
    for schedule in (Linear(0.1, 0.5), Cosine(0.1, 0.5), Bezier(0.1, 0.2, 0.4, 0.5)):
        values = [schedule(t) for t in np.linspace(0, 1, 11)]
        assert values[0] == pytest.approx(0.1)
        assert values[-1] == pytest.approx(0.5)
        assert values == sorted(values)
    assert Linear(0.1, 0.5)(0.25) == pytest.approx(0.2)
    assert Cosine(0.1, 0.5)(0.25) == pytest.approx(0.1 + 0.4 * (1 - np.sqrt(0.5)) / 2)
    assert Bezier(0.1, 0.9, 0.9, 0.1)(0.5) == pytest.approx(0.7)
    for wrong in (0.0, 1.1, float("nan"), "a"):
        with pytest.raises(InvalidRequest, match="threshold"):
            Linear(0.5, wrong)


def test_repetitions():
    assert find_loop([(i,) for i in range(40)]) is None
    assert find_loop([(1,)] * 11) is None
    assert find_loop([(9,), *[(1,)] * 12]) == Loop(1, 1, 12)
    assert find_loop([(9, 8), *[(1,), (2, 3), (4,), (5,)] * 3]) == Loop(1, 4, 3)
    assert find_loop([*[(1,), (2, 3), (4,), (5,)] * 3, (7,)]) is None
