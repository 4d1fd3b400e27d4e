"""Replicas that die, clients that vanish, replicas that are replaced: what each costs, counted."""

import asyncio
import os
import signal
import time

import httpx

from live_cluster import ask, body, live, load, replicas, until, visiting

pytestmark = live
CLIENTS = 6


def test_a_killed_replica_loses_only_what_it_was_answering(two_replicas):
    async def run():
        async with visiting(two_replicas.url) as web:
            before = await replicas(web, 2)
            async with load(web, CLIENTS, tokens=64) as heard:
                await until(lambda: len({one.replica for one in heard if one.done}) == 2)
                victim = heard[-1]
                killed = time.monotonic()
                os.kill(victim.pid, signal.SIGKILL)
                back = await until(
                    lambda: next((one for one in heard if one.replica and one.replica not in before), None)
                )
            return heard, victim.replica, killed, back

    heard, victim, killed, back = asyncio.run(run())
    lost = [one for one in heard if one.error]
    in_flight = [one for one in heard if one.started < killed < one.ended]
    print(
        f"{len(heard)} requests, {len(in_flight)} in flight, {len(lost)} lost, "
        f"a new replica answered {back.ended - killed:.1f} s later: {sorted({one.error for one in lost})}"
    )
    assert len(lost) <= sum(one.replica == victim for one in in_flight)
    assert [one for one in lost if one.started > killed] == []
    assert all(one.replica == victim and one.pieces for one in lost)  # what nobody had heard of was retried
    assert back.done


def test_a_vanished_client_frees_its_cells(two_replicas):
    async def generations(web, names):
        seen = {}
        while len(seen) < len(names):
            answer = await web.get("/stretto/stats", headers={"connection": "close"})
            seen[answer.headers["x-stretto-replica"]] = answer.json()["generations"]
        return seen

    async def run():
        async with visiting(two_replicas.url) as web:
            names = await replicas(web, 2)
            async with visiting(two_replicas.url) as others:
                left = await asyncio.gather(
                    *(ask(others, body(n, 3000), leave_after=4) for n in range(CLIENTS))
                )
            gone = time.monotonic()
            while any((await generations(web, names)).values()):
                assert time.monotonic() < gone + 60, "the cells were never freed"
            return left, time.monotonic() - gone

    left, seconds = asyncio.run(run())
    print(f"{len(left)} clients vanished; nothing was generated any more {seconds:.2f} s later")
    assert all(one.pieces >= 4 and not one.error for one in left)


def test_replicas_are_replaced_without_an_error(two_replicas):
    async def run():
        async with visiting(two_replicas.url) as web:
            before = await replicas(web, 2)
            async with load(web, CLIENTS) as heard:
                await until(lambda: len(heard) >= CLIENTS)
                await asyncio.to_thread(
                    two_replicas.up,
                    "--replicas",
                    2,
                    "--threads",
                    1,
                    "--set",
                    f"max_queue={100 + os.getpid() % 100}",
                )
                new = await until(
                    lambda: len({one.replica for one in heard if one.done and one.replica not in before}) == 2
                )
            return heard, new

    heard, new = asyncio.run(run())
    print(f"{len(heard)} requests while both replicas were replaced")
    assert new
    assert [one.error for one in heard if one.error] == []


def test_a_replica_that_is_gone_is_no_error_of_the_others(two_replicas):
    assert httpx.get(f"{two_replicas.url}/health").json()["status"] == "ok"
