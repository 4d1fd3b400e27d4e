"""Anthropic's `cache_control`: prefixes stay for their time whatever else comes, within bounds."""

from contextlib import ExitStack

import httpx

from serving import mock, serving, until, visiting
from stretto.server.anthropic.endpoints import find_breakpoints
from stretto.server.anthropic.schemas import MessagesRequest
from stretto.server.generation.kept import MAX_TIMED, release_expired

RULES = "Read each file before you change it, and say what you did. " * 4
FIVE, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


def text(said, control=None):
    return {"type": "text", "text": said, **({"cache_control": control} if control else {})}


def body(system=None, last=None, **fields):
    messages = [
        {"role": "user", "content": [text("Hello")]},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": [text("Go on", last)]},
    ]
    return {"model": "mock", "max_tokens": 2, "messages": messages, "system": [text(RULES, system)], **fields}


def test_breakpoints_that_count():
    def found(**fields):
        return find_breakpoints(MessagesRequest.model_validate(body(**fields)))

    assert found() == []
    assert found(last=FIVE) == [(3, 300.0)]
    assert found(system=HOUR) == [(0, 3600.0)]
    assert found(system=FIVE, last=HOUR) == [(3, 3600.0)]  # the longer prefix stays longer
    assert found(system=HOUR, last=FIVE) == [(0, 3600.0), (3, 300.0)]
    assert found(cache_control=FIVE) == [(3, 300.0)]
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {}}, "cache_control": HOUR}
    assert found(tools=[tool]) == [(0, 3600.0)]


def ask(web, made):
    answer = web.post("/v1/messages", json=made)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]


def flood(web, n=12):
    """Other prompts, as many as there are cells and more."""
    for i in range(n):
        more = {"model": "mock", "prompt": f"{i:03}" * 90, "max_tokens": 2}
        assert web.post("/v1/completions", json=more).status_code == 200


def pinned(server):
    timed = server.state.registry.models["mock"].timed_pins
    return {name: [one.pin.n_tokens for one in pins] for name, pins in timed.items()}


def test_a_prefix_stays_for_its_time_and_no_longer():
    with visiting(mock(cells=2048, context_length=1024)) as (server, web):
        served = ask(web, body()) and server.state.registry.models["mock"]
        flood(web)
        assert ask(web, body())["cache_read_input_tokens"] == 0
        size = ask(web, body(last=FIVE))["cache_read_input_tokens"] + 1
        until(lambda: pinned(server) == {"": [size - 1]} or pinned(server) == {"": [size]})
        flood(web)
        assert ask(web, body())["input_tokens"] == 1
        made = served.timed_pins[""][0].until
        release_expired(served, lambda: made - 1.0)
        assert pinned(server)
        release_expired(served, lambda: made)
        assert pinned(server) == {}
        flood(web)
        assert ask(web, body())["cache_read_input_tokens"] == 0


def test_a_system_prompt_stays_without_the_rest():
    with visiting(mock(cells=2048, context_length=1024)) as (server, web):
        ask(web, body(system=HOUR))
        until(lambda: pinned(server))
        (n,) = pinned(server)[""]
        assert len(RULES) < n < len(RULES) + 60
        flood(web)
        assert ask(web, body())["cache_read_input_tokens"] == n


def test_a_conversation_has_one_prefix_and_a_caller_a_few():
    with visiting(mock(cells=8192, context_length=1024)) as (server, web):
        made = body(last=FIVE)
        for i in range(3):
            ask(web, made)
            made["messages"] += [
                {"role": "assistant", "content": f"Answer {i}"},
                {"role": "user", "content": [text("And then?", FIVE)]},
            ]
        until(lambda: pinned(server))
        assert len(pinned(server)[""]) == 1
        for i in range(MAX_TIMED + 2):
            ask(web, body(last=FIVE) | {"system": f"{i} {RULES}"})
        assert len(pinned(server)[""]) == MAX_TIMED


def test_callers_share_a_quarter_of_the_cells():
    keys = ("ann", "bob")
    with serving(mock(cells=2048, context_length=1024), api_keys=keys) as server, ExitStack() as stack:
        ann, bob = (
            stack.enter_context(
                httpx.Client(base_url=server.url, timeout=60, headers={"authorization": f"Bearer {key}"})
            )
            for key in keys
        )
        for i in range(3):
            ask(ann, body(last=FIVE) | {"system": f"{i} {RULES}"})
            ask(bob, body(last=FIVE) | {"system": f"{i} {RULES}"})
        held = [sum(pins) for pins in pinned(server).values()]
        assert 0 < sum(held) <= 512
        long = body(last=FIVE) | {"system": RULES * 3}
        ask(ann, long)
        assert sum(map(sum, pinned(server).values())) <= 512


def test_of_a_prefix_that_is_too_long_the_beginning_stays():
    with visiting(mock(cells=2048, context_length=1024)) as (server, web):
        ask(web, body(last=FIVE))
        ask(web, body(last=FIVE) | {"system": RULES * 3})  # longer than a quarter of the cells
        assert pinned(server) == {"": [512]}
        flood(web)
        assert ask(web, body() | {"system": RULES * 3})["cache_read_input_tokens"] >= 512


def test_a_response_goes_on_with_the_cells_of_the_one_before():
    with visiting(mock(cells=4096, context_length=2048)) as (_, web):
        fields = {"model": "mock", "max_output_tokens": 40, "prompt_cache_key": "first"}
        made = web.post("/v1/responses", json={**fields, "instructions": RULES, "input": "Hello"}).json()
        before = made["usage"]["total_tokens"]
        more = {**fields, "instructions": RULES, "input": "And?", "previous_response_id": made["id"]}
        used = web.post("/v1/responses", json=more).json()["usage"]
        assert used["input_tokens_details"]["cached_tokens"] >= before - 1
        assert "cache_difference" not in used
        other = web.post("/v1/responses", json={**more, "prompt_cache_key": "second"}).json()["usage"]
        assert other["input_tokens_details"]["cached_tokens"] == other["input_tokens"] - 1
