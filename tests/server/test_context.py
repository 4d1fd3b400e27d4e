"""Anthropic's context management: which results and thoughts are cleared, and what the answer says of it."""

import asyncio
import json

import pytest

from serving import mock, visiting
from stretto.server.anthropic.context import CLEARED, clear_thinking, clear_tool_uses, edit_context
from stretto.server.anthropic.schemas import AnthropicMessage, ClearThinking, ClearToolUses

TOOLS = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in ("read", "note")]


def talk(n, size=200, thinking=False):
    """A conversation with n calls of tools, every third of `note`; with reasoning before each, if asked."""
    messages = [{"role": "user", "content": "Look at the files."}]
    for i in range(n):
        thoughts = [{"type": "thinking", "thinking": f"thought {i} " * 4, "signature": "x"}] * thinking
        name = "note" if i % 3 == 2 else "read"
        use = {"type": "tool_use", "id": f"call{i:05}", "name": name, "input": {"path": f"file{i}"}}
        result = {"type": "tool_result", "tool_use_id": f"call{i:05}", "content": f"{i} " * (size // 2)}
        messages += [
            {"role": "assistant", "content": [*thoughts, use]},
            {"role": "user", "content": [result]},
        ]
    return messages


def parsed(messages):
    return [AnthropicMessage.model_validate(one) for one in messages]


def results(messages):
    return [
        block.content == CLEARED
        for one in messages
        if not isinstance(one.content, str)
        for block in one.content
        if block.type == "tool_result"
    ]


def uses(**fields):
    return ClearToolUses.model_validate({"type": "clear_tool_uses_20250919", **fields})


def amount(kind, value):
    return {"type": kind, "value": value}


def test_old_results_are_cleared_and_the_last_ones_kept():
    messages = parsed(talk(6))
    found, n = clear_tool_uses(messages, uses())
    assert (results(found), n) == ([True] * 3 + [False] * 3, 3)
    assert results(messages) == [False] * 6  # those that came stay as they are
    found, n = clear_tool_uses(messages, uses(keep=amount("tool_uses", 0), exclude_tools=["note"]))
    assert (results(found), n) == ([True, True, False] * 2, 4)
    assert clear_tool_uses(messages, uses(keep=amount("tool_uses", 9)))[1] == 0


@pytest.mark.parametrize(
    ("given", "emptied"), [(None, []), (False, []), (True, [0, 1, 2]), (["note"], [2]), ([], [])]
)
def test_arguments_are_cleared_if_they_are_to_be(given, emptied):
    found, _ = clear_tool_uses(parsed(talk(6)), uses(clear_tool_inputs=given))
    inputs = [block.input for one in found if one.role == "assistant" for block in one.content]
    assert [i for i, one in enumerate(inputs) if not one] == emptied


@pytest.mark.parametrize(
    ("keep", "n"),
    [
        ({}, 3),
        ({"keep": amount("thinking_turns", 3)}, 1),
        ({"keep": "all"}, 0),
        ({"keep": {"type": "all"}}, 0),
    ],
)
def test_old_thoughts_are_left_out(keep, n):
    asked = ClearThinking.model_validate({"type": "clear_thinking_20251015", **keep})
    found, n_cleared = clear_thinking(parsed(talk(4, thinking=True)), asked)
    has = [any(block.type == "thinking" for block in one.content) for one in found if one.role == "assistant"]
    assert (has, n_cleared) == ([False] * n + [True] * (4 - n), n)


def edited(messages, *edits):
    """The edits applied; a token is a character."""

    async def count(messages):
        return sum(len(json.dumps(one.model_dump())) for one in messages)

    return asyncio.run(edit_context(parsed(messages), edits, count))[1]


def test_edits_wait_for_their_trigger_and_for_enough_to_clear():
    messages = talk(6, size=1000)
    assert edited(messages, uses()) == []  # 100,000 tokens by default
    assert edited(messages, uses(trigger=amount("tool_uses", 6))) == []
    (told,) = edited(messages, uses(trigger=amount("tool_uses", 5)))
    assert told["type"] == "clear_tool_uses_20250919"
    assert told["cleared_tool_uses"] == 3
    assert 2500 < told["cleared_input_tokens"] < 3000
    due = amount("input_tokens", 5000)
    assert edited(messages, uses(trigger=due, clear_at_least=amount("input_tokens", 3000))) == []
    assert edited(messages, uses(trigger=due, clear_at_least=amount("input_tokens", 2500))) == [told]


def test_an_answer_says_what_was_cleared():
    options = {"context_length": 16384, "cells": 32768}
    messages = talk(6, size=1000, thinking=True)
    edits = [
        {"type": "clear_thinking_20251015"},
        {"type": "clear_tool_uses_20250919", "trigger": amount("input_tokens", 3000)},
    ]
    body = {"model": "mock", "max_tokens": 8, "messages": messages, "tools": TOOLS}
    managed = {**body, "context_management": {"edits": edits}}
    with visiting(mock(**options)) as (_, web):
        plain = web.post("/v1/messages", json=body).json()
        assert "context_management" not in plain
        answer = web.post("/v1/messages", json=managed).json()
        thoughts, results = answer["context_management"]["applied_edits"]
        assert (thoughts["type"], thoughts["cleared_thinking_turns"]) == ("clear_thinking_20251015", 5)
        assert (results["type"], results["cleared_tool_uses"]) == ("clear_tool_uses_20250919", 3)

        def size(one):
            return one["usage"]["input_tokens"] + one["usage"]["cache_read_input_tokens"]

        cleared = thoughts["cleared_input_tokens"] + results["cleared_input_tokens"]
        assert size(plain) - size(answer) == cleared > 2000
        again = web.post("/v1/messages", json=managed).json()
        assert again["usage"]["input_tokens"] == 1  # the same prompt as before
        with web.stream("POST", "/v1/messages", json={**managed, "stream": True}) as stream:
            last = next(line for line in stream.iter_lines() if '"message_delta"' in line and "data" in line)
        told = json.loads(last.removeprefix("data: "))
        assert told["context_management"] == answer["context_management"]
        counted = web.post(
            "/v1/messages/count_tokens", json={k: v for k, v in managed.items() if k != "max_tokens"}
        ).json()
        assert counted == {
            "input_tokens": size(answer),
            "context_management": {"original_input_tokens": size(plain)},
        }
        nothing = {**body, "context_management": {"edits": [edits[1] | {"keep": amount("tool_uses", 9)}]}}
        assert web.post("/v1/messages", json=nothing).json()["context_management"] == {"applied_edits": []}


def test_edits_that_are_not_known_are_refused():
    body = {"model": "mock", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}
    with visiting(mock()) as (_, web):
        for edit, told in (
            ({"type": "compact_20260112"}, "context_management.edits[0]"),
            ({"type": "clear_tool_uses_20250919", "keep": amount("input_tokens", 3)}, "keep"),
            ({"type": "clear_tool_uses_20250919", "trigger": amount("tool_uses", -1)}, "trigger"),
        ):
            refused = web.post("/v1/messages", json={**body, "context_management": {"edits": [edit]}})
            assert refused.status_code == 400
            assert told in refused.json()["error"]["message"]


def test_an_operator_may_have_cached_cells_edited():
    options = {"context_length": 16384, "cells": 65536}
    edits = [{"type": "clear_tool_uses_20250919", "trigger": amount("tool_uses", 5)}]
    body = {"model": "mock", "max_tokens": 4, "tools": TOOLS, "messages": talk(5, size=1000)}
    longer = {**body, "messages": talk(6, size=1000), "context_management": {"edits": edits}}
    used = {}
    for mode in ("recompute", "shift"):
        with visiting(mock(**options), defaults={"edits": mode}) as (_, web):
            assert "edit_mode" not in web.post("/v1/messages", json=body).json()["usage"]
            answer = web.post("/v1/messages", json=longer).json()
            assert answer["context_management"]["applied_edits"]
            used[mode] = answer["usage"]
            refused = web.post("/v1/completions", json={"model": "mock", "prompt": "Hi", "edits": "shift"})
            assert refused.status_code == 400
    assert "edit_mode" not in used["recompute"]
    assert used["shift"]["edit_mode"] == "shift"
    assert used["shift"]["cache_difference"] == used["recompute"]["cache_difference"]
    saved = used["shift"]["cache_read_input_tokens"] - used["recompute"]["cache_read_input_tokens"]
    assert saved > 1900  # two results that stay, of 1,000 tokens
