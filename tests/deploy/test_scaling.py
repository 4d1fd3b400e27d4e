"""How many replicas a load needs."""

import asyncio
import json
import pickle
from types import SimpleNamespace

import pytest

from live_cluster import ask, body, live, load, until, visiting
from stretto.deploy.application import CELLS, REQUESTS, Pressure, count_needed, measure_load


def context(requests, cells, least=1, most=8, target=1):
    return SimpleNamespace(
        aggregated_metrics={REQUESTS: dict(enumerate(requests)), CELLS: dict(enumerate(cells))},
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
    assert count_needed([measure_load(2.4, 0, 8, 0.8), measure_load(5.6, 0, 8, 0.8)]) == 1


def test_the_policy_can_be_sent_to_the_controller():
    policy = pickle.loads(pickle.dumps(Pressure(requests=2, cells=0.5)))
    assert policy(context([3], [0.0])) == (2, {})


@live
def test_a_load_step_adds_a_replica_and_its_end_removes_one_without_cutting_a_stream(two_replicas):
    scaling = {"requests": 2, "up_seconds": 1, "down_seconds": 2}
    two_replicas.up(
        "--replicas", 1, "--max-replicas", 2, "--threads", 1, "--set", f"autoscaling={json.dumps(scaling)}"
    )

    async def running(n):
        while await asyncio.to_thread(two_replicas.running) != n:
            await asyncio.sleep(0.5)

    async def run():
        async with visiting(two_replicas.url) as web:
            await running(1)
            async with load(web, 6, tokens=48) as heard:
                await running(2)
                await until(lambda: len({one.replica for one in heard[-12:] if one.done}) == 2)
                long = [asyncio.create_task(ask(web, body(n, 400))) for n in range(2)]
            await running(1)
            return heard, await asyncio.gather(*long)

    heard, long = asyncio.run(asyncio.wait_for(run(), 300))
    print(f"1 → 2 → 1 replicas: {len(heard)} requests, and {len(long)} of 400 tokens while one went")
    assert [one.error for one in (*heard, *long) if one.error] == []
    assert all(one.done for one in (*heard, *long))
