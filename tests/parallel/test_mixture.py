"""The next set from native code is the one that the plain functions of `select.py` choose."""

import numpy as np
import pytest

from stretto._native import Mixture
from stretto.backends.native import NativeBackend
from stretto.errors import InvalidRequest
from stretto.parallel.sets import combine, distributions, pick, pick_from, select, temper
from tiny_models import tiny_file, tiny_spec


def exact(rows):
    """float64[members, n_vocab]: the distributions."""
    each = np.exp(rows.astype(float) - rows.max(axis=1, keepdims=True))
    return each / each.sum(axis=1, keepdims=True)


def random_rows(rng, n_vocab):
    """Logits of a few members, flat or peaked, and their weights."""
    rows = rng.standard_normal((rng.integers(1, 9), n_vocab)) * rng.choice([0.1, 1.0, 4.0])
    if rng.random() < 0.3:
        rows[:, rng.integers(n_vocab, size=n_vocab // 4)] = -np.inf
    weights = rng.random(len(rows))
    return rows.astype(np.float32), (weights / weights.sum()).tolist()


@pytest.mark.parametrize("n_vocab", [2, 17, 128, 300, 3000, 40_000])
def test_the_set_of_the_definition(n_vocab):
    rng = np.random.default_rng(n_vocab)
    for _ in range(60):
        rows, weights = random_rows(rng, n_vocab)
        threshold, width = float(rng.choice([1e-9, 1e-3, 0.02, 0.2, 1.0])), int(rng.choice([1, 4, 8, 256]))
        ends = set(rng.integers(n_vocab, size=2).tolist())
        chosen = pick(Mixture(rows, list(range(len(rows)))), weights, threshold, width, ends)
        mixed = np.asarray(weights) @ exact(rows)
        expected = select(mixed.astype(np.float32), threshold, width, ends, int(mixed.argmax()))
        assert (chosen.tokens, chosen.end) == (expected.tokens, expected.end)
        np.testing.assert_allclose(chosen.probabilities, expected.probabilities, rtol=1e-6)
        plain = combine(distributions(rows), weights, "mixture")
        np.testing.assert_allclose(chosen.probabilities, plain[chosen.tokens], rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.05, 0.5, 1.0, 3.0])
def test_a_row_at_a_temperature(temperature):
    rng = np.random.default_rng(7)
    for n_vocab in (50, 5000):
        row = random_rows(rng, n_vocab)[0][0]
        chosen = pick_from(row, temperature, 0.01, 8)
        expected = select(temper(distributions(row[np.newaxis])[0], temperature), 0.01, 8)
        assert chosen.tokens == expected.tokens
        np.testing.assert_allclose(chosen.probabilities, expected.probabilities, rtol=1e-4)
    assert pick_from(row, temperature, 0.01, 8, {int(row.argmax())}).end == row.argmax()


def test_edges():
    rng = np.random.default_rng(3)
    rows, _ = random_rows(rng, 1000)
    rows[0, 5] = -np.inf
    order, tokens = rng.permutation(len(rows)).tolist(), [5, 999, 0]
    mixture, expected = Mixture(rows, order), exact(rows)[order][:, tokens]
    np.testing.assert_allclose(mixture.probabilities(tokens), expected, rtol=1e-6)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(mixture.log_probabilities(tokens), np.log(expected), rtol=1e-6)


def test_a_member_that_counts_for_nothing_changes_nothing():
    rows, _ = random_rows(np.random.default_rng(4), 500)
    alone = pick(Mixture(rows[:1], [0]), [1.0], 1e-3, 8)
    assert pick(Mixture(rows[:2], [1, 0]), [0.0, 1.0], 1e-3, 8) == alone
    edges = Mixture(rows, list(range(len(rows)))).probabilities(alone.tokens)
    assert edges[0] == alone.probabilities  # the same number, wherever it is asked for


def test_equal_probabilities_stand_in_order_of_id():
    row = np.zeros((2, 400), np.float32)
    assert pick(Mixture(row, [0, 1]), [0.5, 0.5], 1 / 400, 5).tokens == [0, 1, 2, 3, 4]
    assert pick(Mixture(row, [0, 1]), [0.5, 0.5], 1 / 400, 5).probabilities == [np.float32(1 / 400)] * 5
    row[:, 300] = 1e-9  # more than the others, though its probability is the same number
    assert pick(Mixture(row, [0, 1]), [0.5, 0.5], 1 / 400, 3).tokens == [300, 0, 1]


@pytest.mark.parametrize(("value", "message"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "excluded")])
def test_rows_that_are_no_distribution(value, message):
    row = np.full(300, value, np.float32)
    with pytest.raises(InvalidRequest, match=message):
        pick_from(row, 1.0, 0.1, 8)
    both = np.stack([np.zeros_like(row), row])
    assert Mixture(both, [0, 1]).error != 0
    with pytest.raises(ValueError, match="distribution"):
        Mixture(both, [0, 1]).pick([0.5, 0.5], 0.1, 8)


def test_arguments_are_checked():
    rows = np.zeros((2, 10), np.float32)
    for order, temperature in (([], 1.0), ([2], 1.0), ([0], 0.0), ([0], float("nan"))):
        with pytest.raises(ValueError, match=r"row|temperature"):
            Mixture(rows, order, temperature)
    mixture = Mixture(rows, [0, 1])
    for weights, threshold, most in (
        ([1.0], 0.1, 1),
        ([0.0, 0.0], 0.1, 1),
        ([-1.0, 2.0], 0.1, 1),
        ([float("nan"), 1.0], 0.1, 1),
        ([0.5, 0.5], -1.0, 1),
        ([0.5, 0.5], 0.1, 0),
    ):
        with pytest.raises(ValueError, match="weight"):
            mixture.pick(weights, threshold, most)
    with pytest.raises(ValueError, match="logit"):
        mixture.probabilities([10])


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_change_no_bit(threads):
    file = tiny_file("llama")
    backend = NativeBackend(file, tiny_spec("llama"), 16, threads=threads)
    rng = np.random.default_rng(threads)
    for n_vocab in (2, 17, 128, 300, 40_000):
        rows, weights = random_rows(rng, n_vocab)
        order, tokens = list(range(len(rows)))[::-1], rng.integers(n_vocab, size=4).tolist()
        alone, shared = Mixture(rows, order), backend.mixture(rows, order)
        assert shared.error == alone.error
        assert shared.pick(weights, 1e-3, 8) == alone.pick(weights, 1e-3, 8)
        assert shared.log_probabilities(tokens) == alone.log_probabilities(tokens)
    rows[0, 3] = np.nan
    assert backend.mixture(rows, order).error == Mixture(rows, order).error != 0
    backend.close()
