"""An honest client among hostile ones, for some seconds; benchmarks/hostile.py has more, and measures it."""

import asyncio
import random
import sys
import time
from pathlib import Path

from serving import mock, serving, until

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from hostile import BODIES, Client, body, crowd

CONNECTIONS, SECONDS = 150, 4.0


def test_an_honest_client_is_answered_among_hostile_ones():
    """All its requests, and afterwards the server holds nothing of the others."""

    async def main(port):
        hostile = asyncio.create_task(crowd(Client(port, 0.5), CONNECTIONS, SECONDS))
        times = await Client(port).honest(SECONDS)
        await hostile
        return times

    with serving(mock("Hello world", 0.001), max_running=64, max_queue=4096) as running:
        times = asyncio.run(main(running.port))
        assert len(times) >= 20
        traffic, llm = running.state.traffic, running.llm()
        until(lambda: not running.state.generations and not traffic.active and not traffic.body_bytes)
        until(lambda: llm.cache.stats().held == 0)
        llm.cells.check()


def test_no_body_goes_unanswered():
    """Each of the hostile bodies gets one answer, and a text beside it comes."""

    async def main(port):
        asked = [Client(port).ask(data) for data in (*BODIES.values(), body(prompt="Hi"))]
        return await asyncio.wait_for(asyncio.gather(*asked), 60)

    with serving(mock("Hello world")) as running:
        answers = asyncio.run(main(running.port))
    assert [answer[9:12] for answer in answers] == [b"400"] * 4 + [b"200", b"200", b"400", b"200"]


def test_every_misbehaviour_ends():
    async def main(port):
        client, end = Client(port), time.monotonic() + 1
        ways = client.drip, client.never_complete, client.costly, client.vanish
        await asyncio.wait_for(asyncio.gather(*(way(random.Random(1), end) for way in ways)), 60)

    with serving(mock("Hello world", 0.01)) as running:
        asyncio.run(main(running.port))
        until(lambda: not running.state.generations)
