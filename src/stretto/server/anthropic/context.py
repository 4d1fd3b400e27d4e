"""`context_management`: what is cleared from a conversation before it becomes a prompt.

Edits are made anew for each request, from the messages as they come: old results of tools become a short
text, old reasoning is left out. Everything before the first of them is found in the prefix cache as ever; all
behind it is computed again, so that the answer is that to the conversation as it is then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from stretto.server.anthropic.schemas import (
    AllThinking,
    AnthropicMessage,
    ClearThinking,
    ClearToolUses,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    ToolUses,
)

CLEARED = "[This result was cleared to make room; call the tool again if you need it.]"

Messages = list[AnthropicMessage]
Count = Callable[[Messages], Awaitable[int]]  # the tokens of a conversation


async def edit_context(
    messages: Messages, edits: Sequence[ClearToolUses | ClearThinking], count: Count
) -> tuple[Messages, list[dict[str, Any]]]:
    """The messages after some edits, and what each that was applied has cleared, as answers tell it."""
    applied: list[dict[str, Any]] = []
    n_before: int | None = None  # tokens, once they are known
    for edit in edits:
        if isinstance(edit, ClearThinking):
            shorter, n = clear_thinking(messages, edit)
        else:
            if not isinstance(edit.trigger, ToolUses):
                n_before = await count(messages) if n_before is None else n_before
                is_due = n_before > edit.trigger.value
            else:
                is_due = len(find_uses(messages)) > edit.trigger.value
            shorter, n = clear_tool_uses(messages, edit) if is_due else (messages, 0)
        if not n:
            continue
        n_before = await count(messages) if n_before is None else n_before
        n_after = await count(shorter)
        n_cleared = max(0, n_before - n_after)
        if isinstance(edit, ClearToolUses):
            if edit.clear_at_least is not None and n_cleared < edit.clear_at_least.value:
                continue
            told = {"type": edit.type, "cleared_tool_uses": n}
        else:
            told = {"type": edit.type, "cleared_thinking_turns": n}
        applied.append({**told, "cleared_input_tokens": n_cleared})
        messages, n_before = shorter, n_after
    return messages, applied


def find_uses(messages: Messages) -> list[ToolUseBlock]:
    """The calls of a conversation, the oldest first."""
    blocks = [block for one in messages if not isinstance(one.content, str) for block in one.content]
    return [block for block in blocks if isinstance(block, ToolUseBlock)]


def clear_tool_uses(messages: Messages, edit: ClearToolUses) -> tuple[Messages, int]:
    """The messages without the results of old calls, and with `clear_tool_inputs` without their arguments.

    Returns how many results were cleared too.
    """
    excluded = set(edit.exclude_tools or ())
    uses = [use for use in find_uses(messages) if use.name not in excluded]
    old = uses[: max(0, len(uses) - edit.keep.value)]
    names = edit.clear_tool_inputs
    emptied = {use.id for use in old if names is True or (isinstance(names, list) and use.name in names)}
    cleared = {use.id for use in old}
    n = 0
    found: Messages = []
    for message in messages:
        if isinstance(message.content, str):
            found.append(message)
            continue
        blocks: list[Any] = []
        for block in message.content:
            if isinstance(block, ToolResultBlock) and block.tool_use_id in cleared:
                n += 1
                block = block.model_copy(update={"content": CLEARED})
            elif isinstance(block, ToolUseBlock) and block.id in emptied:
                block = block.model_copy(update={"input": {}})
            blocks.append(block)
        found.append(message.model_copy(update={"content": blocks}))
    return found, n


def clear_thinking(messages: Messages, edit: ClearThinking) -> tuple[Messages, int]:
    """The messages with the reasoning of the last turns only, and how many turns lost theirs."""
    if edit.keep == "all" or isinstance(edit.keep, AllThinking):
        return messages, 0
    thinking = [at for at, one in enumerate(messages) if _has_thinking(one.content)]
    cleared: Collection[int] = set(thinking[: max(0, len(thinking) - edit.keep.value)])
    found = [
        one.model_copy(update={"content": [b for b in one.content if not isinstance(b, ThinkingBlock)]})
        if at in cleared
        else one
        for at, one in enumerate(messages)
    ]
    return found, len(cleared)


def _has_thinking(content: str | list[Any]) -> bool:
    return not isinstance(content, str) and any(isinstance(block, ThinkingBlock) for block in content)
