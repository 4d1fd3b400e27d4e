"""asyncio: streams and results, cancelled in every way there is."""

import asyncio
import gc
import threading
import time

import pytest

from stretto import Limits
from stretto.errors import InvalidRequest, QueueFull
from stretto.llm.texts import new_batch
from stretto.testing import mock_llm


def endless(seen):
    time.sleep(0.001)
    return ord("x")


def free_soon(llm):
    """Whether all cells are given back within a moment, or a while on a busy machine."""
    for _ in range(3000):
        if llm.cache.stats().held == 0:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def llm():
    with mock_llm(endless) as llm:
        yield llm
        llm.cells.check()


async def collect(stream):
    return "".join([token.text async for token in stream])


def test_a_stream():
    async def main():
        with mock_llm("Hello") as llm:
            stream = llm.astream("p", temperature=0)
            assert await collect(stream) == "Hello"
            assert (await stream.result()).text == "Hello"

    asyncio.run(main())


def test_a_loop_is_woken_for_a_step_and_not_for_a_token():
    async def main():
        loop = asyncio.get_running_loop()
        real, calls = loop.call_soon_threadsafe, []

        def counting(*args, **options):
            calls.append(args)
            return real(*args, **options)

        with mock_llm("x" * 40) as llm:
            loop.call_soon_threadsafe = counting
            n_tokens = 0
            async for news in llm.astream_many(["p", "q"], n=8, temperature=0, max_tokens=20):
                n_tokens += len(news)
            assert n_tokens == 16 * 20
            assert len(calls) <= llm.metrics.steps + 5  # some are those of the thread that makes requests

    asyncio.run(main())


def test_several_tasks_may_wait_for_one_stream(llm):
    async def main():
        stream = llm.astream("p", max_tokens=40)
        first = await anext(stream)
        both = await asyncio.gather(collect(stream), collect(stream))
        assert first.text + "".join(both) == "x" * 40

    asyncio.run(main())


def test_results():
    async def main():
        with mock_llm("Hello") as llm:
            assert (await llm.agenerate("p", temperature=0)).text == "Hello"
            results = await llm.agenerate(["p", "q"], temperature=0)
            assert [result.text for result in results] == ["Hello", "Hello"]
            samples = await llm.agenerate("p", n=3, temperature=0)
            assert [result.text for result in samples] == ["Hello"] * 3
            assert (await llm.agenerate("p", beams=2)).text == "Hello"

    asyncio.run(main())


def test_many_at_once_share_the_steps():
    async def main():
        with mock_llm("Hello world") as llm:
            forward = llm.backend.forward
            llm.backend.forward = lambda batch: time.sleep(0.02) or forward(batch)  # so that all come in time
            texts = await asyncio.gather(*(collect(llm.astream(str(i), temperature=0)) for i in range(16)))
            assert texts == ["Hello world"] * 16
            assert max(len(tokens) for tokens in llm.backend.batches) > 4

    asyncio.run(main())


def test_leaving_the_loop_frees_the_cells(llm):
    async def main():
        async for token in llm.astream("p", temperature=0):
            assert token.text == "x"
            break
        gc.collect()
        return await asyncio.to_thread(free_soon, llm)

    assert asyncio.run(main())


def test_closing_and_leaving_a_context(llm):
    async def main():
        stream = llm.astream("p", temperature=0)
        await anext(stream)
        await stream.aclose()
        assert await asyncio.to_thread(free_soon, llm)
        async with llm.astream("p", temperature=0) as stream:
            await anext(stream)
        assert await asyncio.to_thread(free_soon, llm)
        assert (await stream.result()).finish_reason == "cancelled"

    asyncio.run(main())


@pytest.mark.parametrize("what", ["astream", "agenerate"])
def test_cancelling_a_task(llm, what):
    async def main():
        task = asyncio.create_task(
            collect(llm.astream("p", temperature=0)) if what == "astream" else llm.agenerate("p", n=3)
        )
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(free_soon, llm)

    assert asyncio.run(main())


def test_cancelling_before_it_has_begun(llm):
    async def main():
        task = asyncio.create_task(llm.agenerate("p"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(free_soon, llm)

    assert asyncio.run(main())


def test_timeouts(llm):
    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(llm.agenerate("p"), 0.05)
        assert (await llm.agenerate("p", timeout=0.03)).finish_reason == "timeout"
        return await asyncio.to_thread(free_soon, llm)

    assert asyncio.run(main())


def test_the_loop_goes_on_meanwhile():
    ticks = threading.Semaphore(0)

    def after_a_tick(seen):
        assert ticks.acquire(timeout=60), "the loop stands still while a token is made"
        return ord("x")

    async def main():
        with mock_llm(after_a_tick) as llm:
            task = asyncio.create_task(llm.agenerate("p", max_tokens=20))
            while not task.done():
                ticks.release()
                await asyncio.sleep(0.001)
            return (await task).text

    assert asyncio.run(main()) == "x" * 20


def test_wrong_options_and_a_full_queue():
    async def main():
        with mock_llm(endless, limits=Limits(max_running=1, max_queue=0)) as llm:
            with pytest.raises(InvalidRequest, match="temperature"):
                await llm.agenerate("p", temperature=-1)
            with pytest.raises(InvalidRequest, match="temperature"):
                await collect(llm.astream("p", temperature=-1))
            stream = llm.astream("p", temperature=0)
            await anext(stream)
            with pytest.raises(QueueFull):
                await llm.agenerate("q")
            await stream.aclose()

    asyncio.run(main())


def test_a_failing_hook_fails_its_request_alone():
    def fail(logits, tokens):
        raise RuntimeError("mine")

    async def main():
        with mock_llm("Hello") as llm:
            good = asyncio.create_task(llm.agenerate("p", temperature=0))
            with pytest.raises(RuntimeError, match="mine"):
                await llm.agenerate("q", hooks=[fail])
            assert (await good).text == "Hello"

    asyncio.run(main())


def test_a_failing_backend_fails_who_is_in_the_step():
    def script(seen):
        if ord("!") in seen:
            raise MemoryError("no")
        return endless(seen)

    async def main():
        with mock_llm(script) as llm:
            with pytest.raises(MemoryError):
                await llm.agenerate("!")
            assert (await llm.agenerate("p", max_tokens=2)).text == "xx"

    asyncio.run(main())


def test_asyncio_and_threads_together(llm):
    texts = []

    def work():
        for _ in range(5):
            texts.append(llm.generate("t", max_tokens=4, temperature=0).text)

    async def main():
        return await asyncio.gather(*(llm.agenerate("a", max_tokens=4, temperature=0) for _ in range(8)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    results = asyncio.run(main())
    for thread in threads:
        thread.join(60)
    assert texts == ["xxxx"] * 40
    assert [result.text for result in results] == ["xxxx"] * 8
    assert free_soon(llm)


def test_requests_are_made_while_another_thread_steps(llm):
    """A prompt, and each of its `n` texts, waited for a step of the others before."""
    engine, made = llm.engine, []

    def work():
        made.extend(new_batch(engine, ["p", "q"], {"n": 4}))

    thread = threading.Thread(target=work)
    with engine.lock:  # as a step does
        thread.start()
        thread.join(60)
        assert [len(branches.requests) for branches in made] == [4, 4]
        for branches in made:
            for request in branches.requests:
                request.cancel()


def test_tracks_are_added_while_others_are_looked_through(llm):
    tracks = llm.engine.runner.tracks
    kept = [llm.sequence("a"), llm.sequence("b")]
    kept += [llm.sequence("c") for _ in tracks.values()]
    assert len(list(tracks.values())) == len(kept) == 4


def test_the_thread_ends_with_the_model():
    before = threading.active_count()

    async def main():
        llm = mock_llm("Hello")
        await llm.agenerate("p")
        llm.close()

    asyncio.run(main())
    assert threading.active_count() <= before
