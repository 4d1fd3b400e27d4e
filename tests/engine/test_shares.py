"""Turns of callers: many requests of one do not keep another's first one waiting. Counted in steps."""

from contextlib import contextmanager

import pytest

from stretto import Limits
from stretto.engine.limits import CURRENT_SHARE, Share
from stretto.errors import QueueFull, ShareFull
from stretto.llm.texts import new_batch
from stretto.testing import mock_llm

ANN, BOB = Share("ann"), Share("bob")


def endless(seen):
    return 97 + len(seen) % 26


@contextmanager
def owned(share):
    token = CURRENT_SHARE.set(share)
    try:
        yield
    finally:
        CURRENT_SHARE.reset(token)


def ask(llm, share, prompt, **options):
    """The request for one text, queued."""
    with owned(share):
        (branches,) = new_batch(llm.engine, [prompt], {"temperature": 0, "ignore_eos": True, **options})
    llm.engine.add(branches.requests[0])
    return branches.requests[0]


def steps_until(llm, done, most=1000):
    for n in range(most):
        if done():
            return n
        llm.engine.step()
    raise AssertionError("it never happened")


def first_token(llm, share):
    """Steps until bob's first token, behind 24 prompts of `share`."""
    for i in range(24):
        ask(llm, share, f"{i:02}" * 250, max_tokens=100)
    llm.engine.step()
    bob = ask(llm, BOB, "Hello", max_tokens=4)
    return steps_until(llm, lambda: bob.output.has_tokens)


def test_prompts_of_one_caller_do_not_keep_another_one_waiting():
    options = {"cells": 1 << 15, "context_length": 4096}
    assert first_token(mock_llm(endless, **options), BOB) > 20  # behind its own
    assert first_token(mock_llm(endless, **options), ANN) <= 2


def test_a_caller_finds_a_place_where_another_has_all():
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=4))
    theirs = [ask(llm, ANN, f"ann {i}", max_tokens=60) for i in range(12)]
    steps_until(llm, lambda: len(llm.engine.scheduler.running) == 4)
    mine = [ask(llm, BOB, f"bob {i}", max_tokens=8) for i in range(3)]
    llm.backend.batches.clear()
    assert steps_until(llm, lambda: mine[0].output.has_tokens) <= 2
    steps_until(llm, lambda: mine[0].finished)
    assert not any(one.finished for one in theirs)
    decoding = [tokens for tokens in llm.backend.batches if len(tokens) < 8]
    assert max(map(len, decoding)) == 4  # no step is wider than it may be
    steps_until(llm, lambda: all(one.finished for one in (*theirs, *mine)))
    assert all(len(one.output.tokens) == 60 for one in theirs)


def test_a_caller_finds_cells_where_another_has_all():
    alone = mock_llm(endless, cells=256)
    wanted = [
        alone.generate(f"{i} " * 25, max_tokens=40, temperature=0, ignore_eos=True).tokens for i in range(4)
    ]
    llm = mock_llm(endless, cells=256)
    theirs = [ask(llm, ANN, f"{i} " * 25, max_tokens=40) for i in range(8)]
    for _ in range(3):
        llm.engine.step()
    bob = ask(llm, BOB, "b" * 60, max_tokens=4)
    assert steps_until(llm, lambda: bob.output.has_tokens) <= 4
    assert llm.metrics.preempted == 1
    steps_until(llm, lambda: all(one.finished for one in theirs))
    assert [one.output.tokens for one in theirs[:4]] == wanted  # preempted or not


def order_of_starts(llm, *shares, n=12):
    """The owners of requests in the order in which they run, one at a time."""
    texts = [ask(llm, share, f"{share.owner} {i:03}", max_tokens=8) for share in shares for i in range(n)]
    ended = []
    while len(ended) < len(texts):
        llm.engine.step()
        ended += [one for one in texts if one.finished and one not in ended]
    return "".join(one.share.owner for one in ended)


def test_turns_are_by_weight():
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=1))
    assert order_of_starts(llm, Share("a"), Share("b"))[:12].count("b") in (5, 6, 7)
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=1))
    found = order_of_starts(llm, Share("a"), Share("b", weight=3.0))
    assert found[:12].count("b") in (8, 9, 10)
    assert found.count("a") == found.count("b") == 12


def test_one_owner_keeps_the_order_of_arrival():
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=1))
    texts = [ask(llm, ANN, f"{i:03}", max_tokens=4) for i in range(6)]
    steps_until(llm, lambda: all(one.finished for one in texts))
    assert llm.engine.scheduler.turns.rank(ANN) == 0  # nothing is counted for it


def test_priority_comes_before_turns():
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=1))
    running = ask(llm, ANN, "a", max_tokens=4)
    later = ask(llm, BOB, "b", max_tokens=4)
    first = ask(llm, ANN, "c", max_tokens=4, priority=1)
    llm.engine.step()
    steps_until(llm, lambda: first.finished)
    assert not later.finished or running.finished


def test_nobody_saves_turns_up():
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=1))
    for share in (ANN, BOB):
        ask(llm, share, "x" * 20, max_tokens=2)
    for i in range(10):
        ask(llm, ANN, f"a{i}" * 20, max_tokens=40)
    steps_until(llm, lambda: llm.metrics.finished.get("length", 0) >= 8)
    carl = [ask(llm, Share("carl"), f"c{i}", max_tokens=40) for i in range(10)]
    steps_until(llm, lambda: carl[0].finished)
    behind = llm.engine.scheduler.turns.rank(ANN) - llm.engine.scheduler.turns.rank(Share("carl"))
    assert behind < 200  # and not all that ann has had


def test_a_queue_that_one_caller_has_filled_has_room_for_another():
    llm = mock_llm(endless, cells=4096, limits=Limits(max_running=1, max_queue=4))
    ask(llm, ANN, "a", max_tokens=50)
    llm.engine.step()
    for i in range(4):
        ask(llm, ANN, f"a{i}", max_tokens=4)
    with pytest.raises(QueueFull):
        ask(llm, ANN, "too many", max_tokens=4)
    for i in range(2):
        ask(llm, BOB, f"b{i}", max_tokens=4)  # its half
    with pytest.raises(QueueFull):
        ask(llm, BOB, "too many", max_tokens=4)


def test_cells_of_an_owner_are_limited():
    llm = mock_llm(endless, cells=4096)
    small = Share("small", max_cells=100)
    first = ask(llm, small, "a" * 60, max_tokens=4)
    with pytest.raises(
        ShareFull, match=r"this request has 50 tokens, .* have 60, .* 100 cells: try again"
    ) as found:
        ask(llm, small, "b" * 50, max_tokens=4)
    assert found.value.param == "cells"
    with pytest.raises(ShareFull, match="shorten the prompt"):
        ask(llm, small, "b" * 150, max_tokens=4)
    ask(llm, ANN, "b" * 150, max_tokens=4)
    steps_until(llm, lambda: first.finished)
    ask(llm, small, "b" * 50, max_tokens=4)
