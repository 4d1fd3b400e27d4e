"""Events of a thread for tasks of an event loop."""

import asyncio
import time

from stretto.engine.worker import LoopNotifier

SECONDS = 60.0  # no test waits so long


def test_what_is_handed_over_has_been_taken():
    async def main():
        news, heard, left = LoopNotifier(), [], []

        async def task():
            while True:
                await news.wait()
                heard.clear()

        def give():
            for number in range(20):
                heard.append(number)
                news.hand_over(SECONDS)
                left.extend(heard)

        running = asyncio.create_task(task())
        await asyncio.sleep(0)  # until it waits
        begun = time.monotonic()
        await asyncio.to_thread(give)
        assert time.monotonic() - begun < SECONDS / 2
        assert left == []
        running.cancel()

    asyncio.run(main())


def test_a_task_that_is_slow_is_not_waited_for():
    async def main():
        news, slow = LoopNotifier(), asyncio.Event()

        async def task():
            await news.wait()
            await slow.wait()

        running = asyncio.create_task(task())
        await asyncio.sleep(0)
        await asyncio.to_thread(news.hand_over, 0.01)  # taken, and not yet done with it
        begun = time.monotonic()
        await asyncio.to_thread(news.hand_over, SECONDS)
        assert time.monotonic() - begun < SECONDS / 2
        slow.set()
        await running

    asyncio.run(main())


def test_nobody_waits_for_a_loop_that_is_closed():
    forgotten = []

    async def main():
        news = LoopNotifier()
        news.forget = lambda: forgotten.append(True)
        return news

    news = asyncio.run(main())
    news.hand_over(SECONDS)
    assert forgotten == [True]
