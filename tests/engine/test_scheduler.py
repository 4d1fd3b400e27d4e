"""Who goes into a pass: order, limits, pieces of prompts, parking under pressure."""

import threading
import time

import pytest

from stretto import Limits
from stretto.engine.limits import Pace
from stretto.errors import InvalidRequest, QueueFull
from stretto.testing import mock_llm


def endless(seen):
    return ord("x")


def widths(llm):
    return [len(tokens) for tokens in llm.backend.batches]


def test_requests_join_and_leave_between_steps():
    llm = mock_llm(endless)
    first = llm.stream("a", max_tokens=6, temperature=0)
    next(first), next(first)
    second = llm.stream("b", max_tokens=2, temperature=0)
    assert [token.text for token in second] == ["x", "x"]
    assert first.result.text == "x" * 6
    assert widths(llm) == [1, 1, 2, 2, 1, 1]


def test_a_long_prompt_does_not_hold_up_who_decodes():
    llm = mock_llm(endless, cells=4096, context_length=4096, limits=Limits(max_step_ms=40))
    stream = llm.stream("a", max_tokens=200, temperature=0)
    next(stream)
    llm.backend.batches.clear()
    llm._engine.scheduler.pace._seconds = 1e-3  # a token a millisecond: 40 of them in a step
    llm._engine.scheduler.pace.learn = lambda n, seconds: None
    long = llm.stream("b" * 1000, max_tokens=1, temperature=0)
    assert long.result.text == "x"
    assert max(widths(llm)) == 41
    assert len(widths(llm)) == 25
    assert stream.text == "x" * 26  # one token a step all the while


def test_alone_a_prompt_takes_whole_passes():
    llm = mock_llm(endless, cells=4096, context_length=4096)
    llm.generate("b" * 1000, max_tokens=1)
    assert widths(llm) == [512, 488]


def test_pace_learns():
    pace = Pace()
    assert pace.tokens_in(40) == 64
    pace.learn(100, 0.1)
    assert pace.tokens_in(40) == 40
    pace.learn(1, 10.0)  # a decoding step says nothing about prompts
    assert pace.tokens_in(40) == 40
    pace.learn(100, 0.3)
    assert pace.tokens_in(40) == 20
    assert pace.tokens_in(1) == Pace.MIN_TOKENS


def test_first_come_first_served_with_priorities():
    llm = mock_llm(endless, limits=Limits(max_running=1))
    order = []

    def note(name):
        return lambda token: order.append(name) if token.finish_reason else None

    streams = [
        llm.stream(name, max_tokens=2, priority=priority, callback=note(name))
        for name, priority in (("a", 0), ("b", 0), ("c", 5), ("d", -1), ("e", 5))
    ]
    for stream in streams:
        stream.result  # noqa: B018
    assert order == ["c", "e", "a", "b", "d"]


def test_the_queue_is_bounded():
    llm = mock_llm(endless, limits=Limits(max_running=1, max_queue=2))
    running = llm.stream("a", max_tokens=50)
    next(running)
    waiting = [llm.stream("b", max_tokens=1), llm.stream("c", max_tokens=1)]
    with pytest.raises(QueueFull, match="2 requests wait already, and max_queue is 2; try again later"):
        llm.stream("d")
    assert llm.metrics.refused == 1
    waiting[0].cancel()
    assert llm.stream("e", max_tokens=1).result.text == "x"
    for stream in (running, *waiting):
        stream.cancel()
    assert llm.cache.stats().held == 0


def test_waiting_costs_time_too():
    llm = mock_llm(endless, limits=Limits(max_running=1))
    running = llm.stream("a", max_tokens=1000, temperature=0)
    next(running)
    late = llm.stream("b", timeout=0.05)
    time.sleep(0.06)
    assert late.result.finish_reason == "timeout"
    assert late.result.tokens == []


def test_a_cancelled_request_leaves_the_queue():
    llm = mock_llm(endless, limits=Limits(max_running=1))
    running = llm.stream("a", max_tokens=1000)
    next(running)
    waiting = llm.stream("b")
    waiting.cancel()
    next(running)
    assert llm.metrics.waiting == 0
    assert waiting.result.finish_reason == "cancelled"


def test_under_pressure_requests_are_parked_and_lose_nothing():
    llm = mock_llm(endless, cells=200)
    prompts = [letter * 40 for letter in "abcdef"]
    results = llm.generate(prompts, max_tokens=60, temperature=0)
    assert [result.text for result in results] == ["x" * 60] * 6
    assert llm.metrics.preempted > 0
    assert llm.cache.stats().held == 0
    llm.cells.check()


def test_samples_of_a_prompt_count_one_by_one():
    llm = mock_llm(endless, limits=Limits(max_running=4))
    options = {"max_tokens": 5, "temperature": 0}
    llm.generate(["a", "b", "c"], best_of=3, **options)
    assert max(widths(llm)) == 3  # one prompt after the other
    llm.backend.batches.clear()
    llm.generate(["d", "e", "f"], n=2, **options)
    assert max(widths(llm)) == 4
    llm.backend.batches.clear()
    assert len(llm.generate("g", n=9, **options)) == 9  # more than may run, but it is the only one
    assert max(widths(llm)) == 9


def test_max_running_and_step_limits_hold():
    llm = mock_llm(endless, limits=Limits(max_running=3, max_tokens_per_step=8))
    llm.generate(["abcdefghij"] * 7, max_tokens=5, temperature=0)
    assert max(widths(llm)) <= 8


@pytest.mark.parametrize(
    "options",
    [
        {"max_running": 0},
        {"max_queue": -1},
        {"max_tokens_per_step": 0},
        {"max_step_ms": 0.0},
        {"max_running": 1.5},
    ],
)
def test_wrong_limits(options):
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        Limits(**options)


def test_eight_threads_on_one_engine():
    llm = mock_llm(lambda seen: seen[0])
    found, errors = {}, []

    def work(number):
        letter = chr(ord("a") + number)
        try:
            for _ in range(20):
                result = llm.generate(letter * 3, max_tokens=5, temperature=0)
                found.setdefault(letter, set()).add(result.text)
                with llm.sequence(letter) as seq:
                    assert seq.step(temperature=0).text == letter
                assert "".join(t.text for t in llm.stream(letter, max_tokens=3, temperature=0)) == letter * 3
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert found == {letter: {letter * 5} for letter in "abcdefgh"}
    assert llm.cache.stats().held == 0
    llm.cells.check()


def test_an_exception_in_a_callback_ends_its_request_alone():
    llm = mock_llm(endless)

    def fail(token):
        raise RuntimeError("mine")

    other = llm.stream("a", max_tokens=5, temperature=0)
    with pytest.raises(RuntimeError, match="mine"):
        llm.generate("b", callback=fail)
    assert other.result.text == "x" * 5
    assert llm.metrics.failed == 1
    assert llm.cache.stats().held == 0


def test_metrics():
    llm = mock_llm("Hello")
    llm.generate(["prompt one", "prompt two"], temperature=0)
    llm.generate("prompt one", temperature=0)
    metrics = llm.metrics
    assert (metrics.added, metrics.finished, metrics.failed) == (3, {"stop": 3}, 0)
    assert metrics.cached_tokens == 9
    assert metrics.prompt_tokens + metrics.cached_tokens + metrics.decoded_tokens == 30 + 3 * 5
    assert metrics.first_token.n == 3
    assert metrics.between_tokens.n == 3 * 5
    assert metrics.width.n == metrics.steps
    assert min(metrics.forward, metrics.sampling, metrics.python) > 0
    assert (metrics.waiting, metrics.running) == (0, 0)
    assert metrics.as_dict()["finished"] == {"stop": 3}
