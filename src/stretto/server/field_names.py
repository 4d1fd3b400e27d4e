"""Fields that other servers have, and what they are called here, for the errors about unknown ones."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from stretto.options.other_names import OURS

FIELDS = {
    "adapter": "lora",
    "template": "chat_template_kwargs",
    "continues": "continue_token_ids",
    "reasoning_budget": "thinking_budget_tokens",
    "thinking_budget": "thinking_budget_tokens",
}
"""Options of the library, and the fields of a request that set them."""

# What to send instead, where another name is not the whole answer, and the field that this needs.
ADVICE = {
    "do_sample": ("temperature", "temperature 0 always takes the most probable token"),
    "enable_thinking": ("chat_template_kwargs", 'send chat_template_kwargs: {"enable_thinking": false}'),
    "options": ("temperature", "its fields stand beside the others here: temperature, top_p, seed …"),
    "reasoning": ("reasoning_effort", "send reasoning_effort, or thinking_budget_tokens for a number"),
    "system": ("messages", 'send it as the first message, with "role": "system"'),
    "think": ("reasoning_effort", 'send reasoning_effort: "none", or another'),
}


def remedy(name: str, known: Collection[str]) -> str:
    """What to do about an unknown field: its name here, or to leave it out."""
    field, advice = ADVICE.get(name, ("", ""))
    if field in known:
        return advice
    ours = OURS.get(name, name)
    ours = FIELDS.get(ours, ours)
    if ours in known:
        return f"it is {ours} here"
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else "leave it out"
