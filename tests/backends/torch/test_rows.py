"""Rows of logits on a device, where they are moved to the host."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from stretto.backends.base import fetch_rows, host_rows  # noqa: E402
from stretto.backends.torch.rows import RowSampler  # noqa: E402

N = 100


def numbers(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, N)).astype(np.float32)


def test_rows_of_several_tensors_come_to_the_host_as_they_were():
    sampler, (one, two) = RowSampler("cpu", N, 4), (numbers(3), numbers(2, 1))
    first, second = sampler.rows(torch.from_numpy(one.copy())), sampler.rows(torch.from_numpy(two.copy()))
    rows = [first[2], second[1], first[0]]
    assert np.array_equal(host_rows(rows), [one[2], two[1], one[0]])
    first[2].numpy()[:] = 0  # its own, from then on
    assert np.array_equal(first[0].numpy(), one[0])
    assert np.array_equal(first[2].logits.numpy(), one[2])


def test_rows_that_are_on_the_host_stay_as_they_are():
    given = numbers(2)
    (row, other) = RowSampler("cpu", N, 4).rows(torch.from_numpy(given.copy()))
    row.numpy()[0] = 7.0
    fetch_rows([row, None, given[0], other, other])
    assert row.numpy()[0] == 7.0
    assert np.array_equal(other.numpy(), given[1])
