"""Faults that were found in the engine, each with the test that shows it."""

import asyncio
import gc
import threading
import time

import numpy as np
import pytest

from serving import until
from stretto import Limits
from stretto.errors import CacheFull, Cancelled, InvalidRequest, QueueFull
from stretto.testing import mock_llm


def endless(seen):
    return ord("x")


def within(seconds, work):
    """What `work` returns or raises, if it comes to an end in time."""
    found = []

    def run():
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it is stuck"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def settled(llm):
    """Nothing runs, nothing is held, and every request that was added has ended."""
    assert llm.cache.stats().held == 0
    llm.cells.check()
    metrics = llm.metrics
    assert metrics.added == sum(metrics.finished.values()) + metrics.failed


# -- callbacks and hooks that use the engine --


class Shy:
    """Makes the most probable token improbable; twice, and it is seen."""

    def __init__(self):
        self.calls = []

    def __call__(self, logits, tokens):
        self.calls.append(len(tokens))
        logits += np.where(logits == logits.max(), -15.0, 0.0).astype(np.float32)


@pytest.mark.parametrize("place", ["callback", "hook"])
def test_computing_a_sequence_in_between_does_not_hook_others_twice_or_never(place):
    def script(seen):
        row = np.zeros(258, np.float32)
        row[ord("a") + len(seen) % 5], row[ord("A") + len(seen) % 5] = 20.0, 10.0
        return row

    alone = mock_llm(script).generate("b", max_tokens=8, temperature=0, hooks=[Shy()])
    llm, shy = mock_llm(script), Shy()

    def nested(*_):
        with llm.sequence("c") as inner:
            inner.step(temperature=0)
            inner.step(temperature=0)

    options = {"callback": nested} if place == "callback" else {"hooks": [nested]}
    first = llm.stream("b", max_tokens=8, temperature=0, hooks=[shy])
    other = llm.stream("a", max_tokens=8, temperature=0, **options)
    last = llm.stream("b", max_tokens=8, temperature=0, hooks=[Shy()])
    assert len(other.result.tokens) == 8
    assert first.result.tokens == last.result.tokens == alone.tokens
    assert shy.calls == list(range(1, 9))
    settled(llm)


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm.generate("i", max_tokens=1),
        lambda llm: list(llm.stream("i", max_tokens=1)),
        lambda llm: llm.score("ij"),
        lambda llm: llm.parallel("i", max_tokens=1),
    ],
    ids=["generate", "stream", "score", "parallel"],
)
@pytest.mark.parametrize("place", ["callback", "hooks", "stop"])
def test_hooks_and_callbacks_cannot_step_the_engine(use, place):
    llm = mock_llm(endless)

    def nested(*_):
        use(llm)

    options = {place: nested if place == "callback" else [nested]}
    with pytest.raises(InvalidRequest, match="cannot run requests of the model that is calling it"):
        within(60, lambda: llm.generate("a", max_tokens=2, **options))
    assert llm.generate("a", max_tokens=2, temperature=0).text == "xx"
    settled(llm)


def test_a_callback_asks_for_more_cells_than_there_are():
    llm = mock_llm(endless, cells=64)

    def callback(token):
        llm.sequence("i" * 60).logits  # noqa: B018

    with pytest.raises(CacheFull):
        within(60, lambda: llm.generate("a" * 30, max_tokens=2, callback=callback))
    settled(llm)


def test_a_hook_that_needs_cells_does_not_preempt_its_own_request():
    def ban(logits, tokens):
        logits[ord("x")] = -np.inf
        with llm.sequence("i" * 30) as inner:
            inner.step(temperature=0)

    row = np.zeros(258, np.float32)
    row[ord("x")], row[ord("y")] = 20.0, 10.0
    llm = mock_llm(lambda seen: row, cells=64)
    result = within(60, lambda: llm.generate("a" * 20, max_tokens=4, temperature=0, hooks=[ban]))
    assert result.text == "yyyy"
    settled(llm)


def test_a_callback_that_waits_for_itself_is_told_so():
    llm = mock_llm(endless)
    streams, errors = [], []

    def callback(token):
        try:
            streams[0].result  # noqa: B018
        except InvalidRequest as error:
            errors.append(str(error))

    streams.append(llm.stream("a", max_tokens=5, callback=callback))
    assert within(60, lambda: streams[0].result).finish_reason == "cancelled"
    assert "a hook or callback cannot run requests of the model that is calling it" in errors[0]
    settled(llm)


@pytest.mark.parametrize("last", [False, True])
def test_a_callback_cancels_its_own_stream(last):
    llm = mock_llm("Hello")
    streams = []

    def callback(token):
        if not last or token.finish_reason:
            streams[0].cancel()

    streams.append(llm.stream("a", temperature=0, callback=callback))
    events = list(streams[0])
    assert streams[0].result.finish_reason == "cancelled"
    assert events[-1].finish_reason == "cancelled"
    settled(llm)


def test_a_callback_closes_the_model_while_the_worker_waits():
    llm = mock_llm(lambda seen: time.sleep(0.001) or ord("x"))

    async def other():
        return await llm.agenerate("b", max_tokens=500)

    worker = threading.Thread(target=lambda: asyncio.run(other()), daemon=True)
    worker.start()
    until(lambda: llm.metrics.running == 1)
    n = []

    def callback(token):
        n.append(token)
        if len(n) == 5:
            llm.close()

    result = within(60, lambda: llm.generate("a", max_tokens=100, callback=callback))
    assert result.finish_reason == "cancelled"
    worker.join(60)
    assert not worker.is_alive()


# -- Ctrl-C while we step for others --


def test_ctrl_c_between_the_pass_and_its_logits_leaves_nobody_behind():
    llm = mock_llm(endless)
    other = llm.stream("o", max_tokens=6, temperature=0)
    mine = llm.stream("m", max_tokens=6, temperature=0)
    next(other), next(mine)
    compute = llm.engine.runner.run_batch

    def interrupt(*given):
        compute(*given)
        raise KeyboardInterrupt

    llm.engine.runner.run_batch = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(mine)
    llm.engine.runner.run_batch = compute
    assert within(60, lambda: other.result).text == "x" * 6
    assert mine.result.finish_reason == "cancelled"
    settled(llm)


def test_ctrl_c_in_anothers_hook_has_it_computed_again():
    calls = []

    def hook(logits, tokens):
        logits[ord("x")] -= 12.0  # once: 8 are left; twice: none
        logits[ord("y")] += 4.0
        calls.append(len(tokens))
        if len(calls) == 2:
            raise KeyboardInterrupt

    llm = mock_llm(endless)
    other = llm.stream("o", max_tokens=4, temperature=0, hooks=[hook])
    mine = llm.stream("m", max_tokens=4, temperature=0)
    next(mine)
    with pytest.raises(KeyboardInterrupt):
        next(mine)
    assert other.result.text == "xxxx"
    assert calls == [1, 2, 2, 3, 4]
    settled(llm)


def test_ctrl_c_in_anothers_callback_ends_that_request():
    def callback(token):
        raise KeyboardInterrupt

    llm = mock_llm(endless)
    other = llm.stream("o", max_tokens=4, temperature=0, callback=callback)
    third = llm.stream("t", max_tokens=4, temperature=0)
    mine = llm.stream("m", max_tokens=4, temperature=0)
    with pytest.raises(KeyboardInterrupt):
        next(mine)
    with pytest.raises(Cancelled, match="in the middle of a token"):
        other.result  # noqa: B018
    assert third.result.text == "xxxx"
    settled(llm)


# -- ends --


def test_a_timeout_ends_a_prompt_that_is_being_read():
    llm = mock_llm(lambda seen: time.sleep(0.02) or ord("x"), limits=Limits(max_tokens_per_step=8))
    other = llm.stream("o", max_tokens=1000, temperature=0)
    next(other)
    before = llm.metrics.prompt_tokens
    late = llm.stream("l" * 900, timeout=0.1)
    assert late.result.finish_reason == "timeout"
    assert llm.metrics.prompt_tokens - before < 100  # five steps of eight in a tenth of a second
    other.cancel()
    settled(llm)


def test_beams_that_fill_the_cache_say_what_they_have():
    llm = mock_llm(endless, cells=32, context_length=64)
    with llm.sequence("held" * 5) as held:
        held.logits  # noqa: B018
        result = llm.generate("p", beams=2, max_tokens=30)
    assert (result.finish_reason, result.stop_reason) == ("length", "cache full")
    assert result.text == "x" * len(result.tokens) != ""
    settled(llm)


def test_beams_take_no_stop_functions():
    llm = mock_llm("Hello")
    for stop in (lambda text: True, [lambda text: True]):
        with pytest.raises(InvalidRequest, match="stop functions"):
            llm.generate("p", beams=2, stop=stop)
    assert llm.generate("p", beams=2, stop=["l"]).text == "He"


# -- counting --


def test_siblings_and_refused_requests_are_counted_right():
    llm = mock_llm("Hello", limits=Limits(max_queue=1))
    llm.generate("p", n=3)
    assert llm.metrics.added == 3
    settled(llm)
    waiting = llm.stream("w")
    with pytest.raises(QueueFull):
        llm.generate("a", n=2)  # all of it is refused
    assert (llm.metrics.added, llm.metrics.refused) == (4, 1)
    waiting.cancel()
    settled(llm)


def test_a_list_longer_than_the_queue_is_one_call():
    llm = mock_llm("Hello", limits=Limits(max_running=2, max_queue=1))
    assert [result.text for result in llm.generate(["a"] * 9)] == ["Hello"] * 9
    settled(llm)
    results = asyncio.run(llm.agenerate(["a"] * 9))
    assert [result.text for result in results] == ["Hello"] * 9
    settled(llm)


def test_who_decodes_takes_turns_when_a_pass_is_too_small():
    llm = mock_llm(endless, limits=Limits(max_tokens_per_step=2))
    order = []
    streams = [
        llm.stream(name, max_tokens=6, temperature=0, callback=lambda token, name=name: order.append(name))
        for name in "abcde"
    ]
    for stream in streams:
        assert stream.result.text == "x" * 6
    for i in range(len(order)):
        counts = [order[:i].count(name) for name in "abcde"]
        assert max(counts) - min(counts) <= 2
    settled(llm)


def test_no_room_to_shift_shared_cells_ends_a_request_with_its_text():
    llm = mock_llm(endless, cells=16, context_length=12)
    seq = llm.sequence("abcdefgh")
    seq.logits  # noqa: B018
    others = [llm.sequence(text) for text in ("ijk",)]
    others[0].logits  # noqa: B018
    result = llm.generate("abcdefgh", overflow="shift", keep=1, temperature=0, max_tokens=100)
    assert result.finish_reason == "length"
    assert result.text == "x" * len(result.tokens)


def test_waiting_for_room_counts_no_hits():
    llm = mock_llm(endless, cells=128)
    llm.generate("p" * 40, max_tokens=1)
    before = llm.cache.stats()
    running = llm.stream("r" * 60, max_tokens=20, temperature=0)
    next(running)
    waiting = llm.stream("p" * 40 + "q" * 60, max_tokens=1, temperature=0)
    for _ in range(10):
        next(running)
    assert llm.cache.stats().lookups == before.lookups + 1
    assert waiting.result.usage.cached_tokens <= 40
    after = llm.cache.stats()
    assert (after.lookups, after.hits) == (before.lookups + 2, before.hits + 1)
    settled(llm)


def test_what_a_parked_request_finds_again_is_not_cached_for_it():
    llm = mock_llm(endless, cells=200)
    results = llm.generate([letter * 40 for letter in "abcdef"], max_tokens=60, temperature=0)
    assert llm.metrics.preempted > 0
    assert [result.usage.cached_tokens for result in results] == [0] * 6


def test_a_task_that_is_cancelled_while_it_is_refused_is_quiet():
    complaints = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        with mock_llm(endless, limits=Limits(max_running=1, max_queue=0)) as llm:
            running = llm.stream("a")
            next(running)
            task = asyncio.create_task(llm.agenerate("b"))
            with llm.engine.lock:  # so that it is refused after it was cancelled
                await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            for _ in range(1000):  # by a thread that gets the lock now
                if llm.metrics.refused:
                    break
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            del task
            gc.collect()
            await asyncio.sleep(0)
            assert llm.metrics.refused == 1

    asyncio.run(main())
    assert complaints == []
