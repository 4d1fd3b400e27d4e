"""How many replicas a load needs."""

import pickle
from types import SimpleNamespace

import pytest

from stretto.deploy.scaling import CELLS, REQUESTS, Pressure, load_of, needed


def context(requests, cells, least=1, most=8, target=1):
    replicas = range(len(requests))
    return SimpleNamespace(
        aggregated_metrics={REQUESTS: dict(zip(replicas, requests)), CELLS: dict(zip(replicas, cells))},
        capacity_adjusted_min_replicas=least,
        capacity_adjusted_max_replicas=most,
        target_num_replicas=target,
    )


@pytest.mark.parametrize(
    ("requests", "cells", "replicas"),
    [
        ([0], [0.0], 1),
        ([8], [0.1], 1),
        ([9], [0.1], 2),
        ([3], [0.95], 2),  # three long conversations
        ([4, 4], [0.3, 0.3], 1),
        ([8, 1], [0.1, 0.1], 2),
        ([400], [0.1], 8),  # no more than there may be
    ],
)
def test_replicas_follow_the_queue_and_the_cells(requests, cells, replicas):
    assert Pressure(requests=8, cells=0.8)(context(requests, cells)) == (replicas, {})


def test_nothing_changes_before_anybody_has_reported():
    policy = Pressure(requests=8, cells=0.8)
    assert policy(SimpleNamespace(aggregated_metrics={}, target_num_replicas=3)) == (3, {})


def test_a_load_of_just_one_replica_needs_one():
    assert needed([load_of(2.4, 0, 8, 0.8), load_of(5.6, 0, 8, 0.8)]) == 1


def test_the_policy_can_be_sent_to_the_controller():
    policy = pickle.loads(pickle.dumps(Pressure(requests=2, cells=0.5)))
    assert policy(context([3], [0.0])) == (2, {})
