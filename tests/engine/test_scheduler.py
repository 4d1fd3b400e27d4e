"""Who goes into a pass: order, limits, pieces of prompts, parking under pressure."""

import threading
import time

import pytest

from stretto import Limits
from stretto.engine.limits import Pace
from stretto.engine.sharing import RowCosts
from stretto.errors import InvalidRequest, QueueFull
from stretto.llm.texts import new_batch
from stretto.testing import mock_llm


def endless(seen):
    return ord("x")


def widths(llm):
    return [len(tokens) for tokens in llm.backend.batches]


class SteadyPace(Pace):
    """A token a millisecond, on any machine."""

    def tokens_in(self, milliseconds):
        return int(milliseconds)


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
    llm.engine.scheduler.pace = SteadyPace()  # 40 tokens in a step
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


def linear(seconds):
    """Costs of rows that take so long each."""
    costs = RowCosts()
    for n_rows in (1, 2, 4, 8, 16, 32):
        costs.learn(n_rows, n_rows * seconds)
    return costs


def test_row_costs_learn():
    costs = RowCosts()
    assert costs.rows_beside(2) > 1000  # nothing is known
    costs.learn(2, 0.010)
    assert costs.rows_beside(2) > 1000
    costs.learn(12, 0.040)
    assert costs.rows_beside(1) == costs.rows_beside(2) == 5  # 19 ms, by what is known
    costs.learn(6, 0.014)
    assert costs.rows_beside(2) == 8
    costs.learn(6, 1.0)  # a stall
    assert costs.rows_beside(2) == 7
    assert costs.rows_beside(12) > 1000
    costs.learn(
        3, 1.0
    )  # the first of three rows: no more than three times what one of two takes, or than six
    assert costs.rows_beside(2) == 7
    assert linear(0.010).rows_beside(2) == 4
    assert linear(0.0001).rows_beside(2) > 1000  # steps are short


def test_many_texts_of_a_call_take_turns_beside_others():
    """A lone text is in every step, which the 16 of another call may make twice as slow and no more."""
    llm = mock_llm(endless, cells=4096)
    scheduler = llm.engine.scheduler
    scheduler.row_costs = linear(0.010)
    scheduler.row_costs.learn = lambda n, seconds: None
    alone = [result.tokens for result in llm.generate("b", n=16, max_tokens=8, seed=5)]
    assert max(widths(llm)) == 16
    many = [*llm.generate(["a", "b"], n=16, max_tokens=8, seed=5)]
    assert max(widths(llm)) == 32  # one call

    llm.backend.batches.clear()
    engine = llm.engine
    (branches,) = new_batch(engine, ["b"], {"n": 16, "max_tokens": 8, "seed": 5})
    engine.add(branches.requests[0])
    engine.step()
    lone = llm.stream("c", max_tokens=6, temperature=0)
    assert lone.result.text == "xxxxxx"
    assert max(widths(llm)[1:]) == 4
    lengths = [len(request.output.tokens) for request in branches.requests]
    assert max(lengths) - min(lengths) <= 1  # they keep in step
    engine.step_until(lambda: all(request.finished for request in branches.requests))
    assert [result.tokens for result in branches.results()] == alone
    assert [result.tokens for result in many[1]] == alone
    llm.cells.check()


def test_calls_of_the_same_size_are_not_cut():
    llm = mock_llm(endless, cells=4096)
    engine = llm.engine
    engine.scheduler.row_costs = linear(0.010)
    calls = [new_batch(engine, ["b"], {"n": 8, "max_tokens": 4})[0].requests for _ in range(3)]
    for requests in calls:
        engine.add(requests[0])
    engine.step_until(lambda: all(request.finished for requests in calls for request in requests))
    assert max(widths(llm)) == 24


def branched(engine, prompts, **options):
    """The requests of a call that has been queued, those of the first prompt first."""
    branches = new_batch(engine, prompts, {"temperature": 0, **options})
    engine.add(*(one.requests[0] for one in branches))
    return [request for one in branches for request in one.requests]


def begun(requests):
    return [request for request in requests if request.output.has_tokens]


def test_a_call_that_fills_all_places_keeps_no_other_out():
    """A later text begins with the next step, before prompts of a large call; the pass grows no wider."""
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=4))
    engine = llm.engine
    many = branched(engine, [*"abcdefghij"], max_tokens=6)
    engine.step()
    assert begun(many) == many[:4]
    (lone,) = branched(engine, ["z"], max_tokens=3)
    engine.step()
    assert begun([lone]) == [lone]
    assert begun(many) == many[:4]
    engine.step_until(lambda: lone.finished)
    assert begun(many) == many[:4]
    engine.step_until(lambda: all(request.finished for request in many))
    assert [request.result().text for request in (*many, lone)] == ["x" * 6] * 10 + ["xxx"]
    assert max(widths(llm)) == 4
    assert llm.metrics.preempted == 0
    llm.cells.check()


def test_a_small_call_overtakes_large_ones_that_wait():
    """Four calls of 16 texts run and others wait: a text of a later call begins with the next step."""
    llm = mock_llm(endless, cells=4096)
    engine = llm.engine
    alone = [result.tokens for result in llm.generate("b", n=16, max_tokens=8, seed=5)]
    calls = [branched(engine, ["b"], n=16, max_tokens=8, seed=5, temperature=1.0) for _ in range(6)]
    engine.step(), engine.step()
    assert [len(begun(requests)) for requests in calls] == [16, 16, 16, 16, 0, 0]
    (lone,) = branched(engine, ["z"], max_tokens=3)
    for n_tokens in (1, 2, 3):
        engine.step()
        assert len(lone.output.tokens) == n_tokens
    assert lone.finished
    assert begun(calls[4]) == []
    engine.step_until(lambda: all(request.finished for requests in calls for request in requests))
    for requests in calls:
        assert [request.output.tokens for request in requests] == alone
    assert max(widths(llm)) == 64
    llm.cells.check()


def test_single_texts_do_not_keep_a_large_call_out():
    """They pass it while an older call has the places it needs, and do not count when that ends."""
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=4))
    engine = llm.engine
    first = branched(engine, ["a"], n=4, max_tokens=8)
    engine.step()
    large = branched(engine, ["b"], n=3, max_tokens=2)
    singles = [branched(engine, [letter], max_tokens=40)[0] for letter in "cdefghij"]
    engine.step()
    assert begun(singles) == singles[:3]
    engine.step_until(lambda: all(request.finished for request in first))
    engine.step()
    assert begun(large) == large
    assert begun(singles) == singles[:3]
    engine.step_until(lambda: all(request.finished for request in (*large, *singles)))
    assert max(widths(llm)) == 5  # one of each call: the last of the first, the large one, and three singles


def test_no_request_passes_one_of_a_higher_priority():
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=4))
    engine = llm.engine
    first = branched(engine, ["a"], n=4, max_tokens=8)
    engine.step()
    large = branched(engine, ["b"], n=3, max_tokens=2, priority=1)
    (single,) = branched(engine, ["c"], max_tokens=2)
    while not any(request.finished for request in first):
        assert begun([*large, single]) == []
        engine.step()
    engine.step_until(lambda: single.finished and all(request.finished for request in large))


def test_under_pressure_the_largest_call_is_preempted_first():
    llm = mock_llm(endless, cells=64, prefix_cache=False)
    engine = llm.engine
    many = branched(engine, [*"abcd"], max_tokens=20)
    engine.step()
    (lone,) = branched(engine, ["z"], max_tokens=15)
    engine.step()
    while not lone.finished:
        assert lone in engine.scheduler.running
        engine.step()
    assert llm.metrics.preempted > 0
    engine.step_until(lambda: all(request.finished for request in many))
    assert [request.result().text for request in (*many, lone)] == ["x" * 20] * 4 + ["x" * 15]
    llm.cells.check()


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


def test_a_long_list_waits_and_leaves_the_queue_to_other_calls():
    llm = mock_llm(endless, limits=Limits(max_running=1, max_queue=2), cells=4096)
    running = llm.stream("a", max_tokens=50)
    next(running)
    waiting = [llm.stream(text, max_tokens=2) for text in "bc"]
    assert [one.text for one in llm.generate(list("defghijk"), max_tokens=1)] == ["x"] * 8  # none is refused
    assert [stream.result.text for stream in waiting] == ["xx", "xx"]
    others = []

    def ask(token):
        if not others:
            others.append(llm.stream("late", max_tokens=1))

    assert len(llm.generate(list("defghijk"), max_tokens=2, callback=ask)) == 8
    assert others[0].result.text == "x"
    running.cancel()
    assert llm.metrics.refused == 1  # a try of the list, before it waited


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


def test_a_thread_that_steps_lets_others_add_their_requests(monkeypatch):
    """It released the lock and took it again at once: others often waited until it was done."""
    llm, free = mock_llm(endless), []
    lock = llm.engine.lock

    def try_lock():
        if found := lock.acquire(blocking=False):
            lock.release()
        free.append(found)

    def hand_over():
        thread = threading.Thread(target=try_lock)
        thread.start()
        thread.join()

    monkeypatch.setattr(llm.engine.arrivals, "hand_over", hand_over)
    llm.generate("a", max_tokens=5, temperature=0)
    assert free == [True] * 5


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
