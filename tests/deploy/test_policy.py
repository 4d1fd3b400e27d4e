"""Which replica gets a request: prefixes, load, sessions, what is saved, and what the router remembers."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.deploy import policy as module
from stretto.deploy.policy import PICK_SECONDS, REPORT_SECONDS, Ask, Holdings, PrefixPolicy, RoundRobin
from stretto.deploy.prefixes import pack_keys
from stretto.errors import InvalidRequest

CHAT = list(range(1, 11))  # the keys of ten blocks
OTHER = list(range(101, 111))


def fleet(**reports):
    """Replicas with (keys, load) each, or a whole report."""
    made = Holdings()
    made.keep(list(reports))
    for name, what in reports.items():
        report = what if isinstance(what, dict) else {"keys": pack_keys(what[0]), "running": what[1]}
        made.take_report(name, report, 0.0)
    return made


def first(ask, made, policy=None):
    return (policy or PrefixPolicy()).order(ask, made, 10.0)[0]


def test_the_longest_prefix_wins():
    made = fleet(a=(CHAT[:5], 0), b=(CHAT[:8], 1), c=([], 0))
    assert first(Ask(CHAT), made) == "b"


def test_a_replica_that_is_too_busy_does_not_get_its_prefix():
    policy = PrefixPolicy(margin=4, ratio=0.5)
    assert first(Ask(CHAT), fleet(a=(CHAT, 4), b=([], 0)), policy) == "a"
    assert first(Ask(CHAT), fleet(a=(CHAT, 5), b=([], 0)), policy) == "b"
    assert first(Ask(CHAT), fleet(a=(CHAT, 30), b=([], 20)), policy) == "a"
    assert first(Ask(CHAT), fleet(a=(CHAT, 31), b=([], 20)), policy) == "b"


def test_the_second_longest_prefix_is_next():
    made = fleet(a=(CHAT, 17), b=([], 0), c=(CHAT[:6], 2))
    assert first(Ask(CHAT), made) == "c"


def test_a_short_common_prefix_crowds_no_replica():
    made = fleet(a=(CHAT[:2], 0), b=([], 0))
    for n in range(8):
        name = first(Ask([*CHAT[:2], *range(1000 * (n + 1), 1000 * (n + 1) + 8)]), made)
        made.note_pick(name, Ask(), 10.0)
    assert {name: made.load(name, 10.0) for name in "ab"} == {"a": 4, "b": 4}


def test_a_long_system_prompt_crowds_no_replica_either():
    made = fleet(a=(CHAT, 0), b=([], 0), c=([], 0))
    placed = {}
    for n in range(30):
        ask = Ask([*CHAT, 1000 * (n + 1)])  # ten blocks of eleven are common
        placed[n] = first(ask, made)
        made.note_pick(placed[n], ask, 10.0)
    assert min(Counter(placed.values()).values()) >= 9
    follow_ups = {n: first(Ask([*CHAT, 1000 * (n + 1), 1000 * (n + 1) + 1]), made) for n in placed}
    assert follow_ups == placed


def test_follow_ups_and_repeated_prompts_are_not_taken_for_a_system_prompt():
    made = fleet(a=([], 0), b=([], 0))
    for n in range(2, 9):
        made.note_pick("a", Ask(CHAT[:n]), 10.0)
        made.note_pick("a", Ask(CHAT[:n]), 10.0)
    assert not any(made.is_common(key) for key in CHAT)
    assert first(Ask(CHAT[:9]), made) == "a"


def test_short_prompts_that_share_all_their_blocks_crowd_no_replica():
    # A default system prompt is a block, and the questions behind it are no whole one.
    made = fleet(a=([], 0), b=([], 0))
    for _ in range(16):
        made.note_pick(first(Ask(CHAT[:1]), made), Ask(CHAT[:1]), 10.0)
    assert {name: made.load(name, 10.0) for name in "ab"} == {"a": 8, "b": 8}


def test_a_repeated_prompt_stays_where_it_is_while_that_is_as_idle():
    made = fleet(a=([], 0), b=(CHAT, 0))
    for now in range(10, 70, 6):  # each has ended before the next
        name = PrefixPolicy().order(Ask(CHAT), made, now)[0]
        made.note_pick(name, Ask(CHAT), now)
        assert name == "b"


def test_what_is_remembered_of_common_prefixes_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_BLOCKS_NOTED", 10)
    made = fleet(a=(range(100), 0))
    for n in range(100):
        made.note_pick("a", Ask([n, 1000 + n]), 10.0)
    assert len(made.forks) == 10


def test_what_is_saved_goes_to_its_replica_however_busy():
    made = fleet(a=(CHAT, 0), b={"saved": pack_keys([77]), "running": 50})
    assert first(Ask(CHAT, saved=77), made) == "b"
    assert first(Ask(CHAT, saved=78), made) == "a"


def test_a_session_sticks_and_moves_only_if_it_must():
    made = fleet(**{name: ([], 0) for name in "abcd"})
    placed = {f"s{n}": first(Ask(session=f"s{n}"), made) for n in range(200)}
    assert min(Counter(placed.values()).values()) > 20
    made.keep(["a", "b", "c"])
    moved = {name for name in placed if first(Ask(session=name), made) != placed[name]}
    assert moved == {name for name, place in placed.items() if place == "d"}


def test_a_session_leaves_a_replica_that_is_too_busy():
    made = fleet(a=([], 0), b=([], 0))
    name = first(Ask(session="s"), made)
    made.take_report(name, {"running": 20}, 0.0)
    assert first(Ask(session="s"), made) != name


def test_a_request_counts_as_held_and_as_load_until_reports_say_so():
    made = fleet(a=([], 0), b=([], 0))
    made.note_pick("a", Ask(CHAT), 10.0)
    assert made.lengths(CHAT, 10.0) == {"a": 10}
    assert made.load("a", 10.0) == 1
    made.take_report("a", {"keys": pack_keys(CHAT[:4]), "running": 1}, 10.0 + 2 * REPORT_SECONDS)
    assert made.load("a", 11.0) == 1
    assert made.lengths(CHAT, 11.0) == {"a": 10}
    assert made.lengths(CHAT, 10.0 + PICK_SECONDS) == {"a": 4}


def test_an_evicted_prefix_is_forgotten_with_the_next_report():
    made = fleet(a=(CHAT, 0), b=([], 0))
    assert made.lengths(CHAT, 10.0) == {"a": 10}
    made.take_report("a", {"keys": pack_keys(OTHER)}, 1.0)
    assert made.lengths(CHAT, 10.0) == {}
    assert made.lengths(OTHER, 10.0) == {"a": 10}


def test_a_coarse_report_still_finds_long_prefixes():
    made = fleet(a=(CHAT[3::4], 0), b=([], 0))
    assert made.lengths(CHAT, 10.0) == {"a": 8}


def test_a_replica_that_has_gone_is_never_chosen():
    made = fleet(a=(CHAT, 0), b=([], 0))
    made.note_pick("a", Ask(OTHER), 9.0)
    made.keep(["b"])
    assert PrefixPolicy().order(Ask(CHAT), made, 10.0) == ["b"]
    assert PrefixPolicy().order(Ask(OTHER), made, 10.0) == ["b"]
    made.keep([])
    assert PrefixPolicy().order(Ask(CHAT), made, 10.0) == []


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_PICKS", 100)
    made = fleet(a=([], 0))
    for n in range(100):
        made.note_pick("a", Ask(range(10 * n, 10 * n + 10)), 0.0)
    assert len(made.picks) == len(made.expiring) == 100


@pytest.mark.parametrize("policy", [PrefixPolicy(), RoundRobin()])
def test_every_policy_orders_all_replicas(policy):
    made = fleet(a=(CHAT, 3), b=([], 0), c=(OTHER, 9))
    for session in ("", "x", "y"):
        assert sorted(policy.order(Ask(CHAT, session), made, 10.0)) == ["a", "b", "c"]


def test_round_robin_takes_turns():
    policy, made = RoundRobin(), fleet(a=([], 0), b=([], 0), c=([], 0))
    assert Counter(first(Ask(), made, policy) for _ in range(9)) == {"a": 3, "b": 3, "c": 3}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a machine that is busy
@given(st.dictionaries(st.text(max_size=8), st.one_of(st.none(), st.integers(), st.binary(), st.text())))
def test_no_report_is_too_strange(report):
    made = fleet(a=report, b=(CHAT, 0))
    assert sorted(PrefixPolicy().order(Ask(CHAT, "s", 5), made, 10.0)) == ["a", "b"]


@pytest.mark.parametrize("field", [{"margin": -1}, {"ratio": 1e9}, {"min_share": 0}])
def test_impossible_settings_are_refused(field):
    with pytest.raises(InvalidRequest, match=next(iter(field))):
        PrefixPolicy(**field)


def test_a_follow_up_goes_where_its_prompt_went_before_a_report_tells_of_the_answer():
    made = fleet(a=([], 5), b=([], 0))
    made.note_pick("a", Ask(CHAT[:3]), 10.0)
    answered = Ask([*CHAT[:3], *range(500, 520)])
    assert first(answered, made) == "a"
    assert first(Ask([*CHAT[:2], *range(600, 620)]), made) == "b"  # no follow-up: it parts earlier
