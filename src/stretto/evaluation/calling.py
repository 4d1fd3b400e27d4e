"""Tool calls: sixty short conversations, and the calls that their answers should have.

    for item in read_conversations("auto"):
        answer = await item.answer(llm)

Ten each: one call; several; none; types that tempt (a number as a word); nested arguments; a second turn,
behind the result of a call. Some quote calls, in a document or in a result, that nobody should make.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.llm import LLM

__all__ = ["GREEDY", "METRICS", "Conversation", "read_conversations"]

# Penalties of a model's authors would make another text.
GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
METRICS = ("right", "name", "arguments", "no_false_call", "valid_json")
MAX_TOKENS = 400
_CASES = Path(__file__).with_name("tool_cases.json")

Call = tuple[str, Any]  # a name and arguments


@dataclass(frozen=True)
class Conversation:
    """Messages, tools, and the calls that are right: of each argument, the values that are.

    An argument whose values are null may be anything, and one with null among them may be left out.
    `texts`: an answer without a call has one of these in it.
    """

    id: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    calls: Sequence[tuple[str, Mapping[str, Any]]]
    texts: Sequence[str]
    choice: str

    @property
    def parallel(self) -> bool:
        """Whether several calls are allowed: where calls are required, only if several are right."""
        return self.choice == "auto" or len(self.calls) > 1

    async def answer(self, llm: LLM) -> dict[str, Any]:
        """Ask the model, greedily, and compare."""
        found = await llm.achat(
            list(self.messages),
            tools=self.tools,
            tool_choice=self.choice,
            parallel_tool_calls=self.parallel,
            max_tokens=MAX_TOKENS,
            **GREEDY,
        )
        return self.judged([(call.name, call.arguments) for call in found.tool_calls], found.text)

    def judged(self, calls: Sequence[Call], text: str) -> dict[str, Any]:
        """Which metrics say that an answer with these calls is right, of those that say something of it.

        Arguments may be the text of a JSON object.
        """
        read = [(name, _read(arguments)) for name, arguments in calls]
        right: dict[str, bool] = {}
        if self.calls:
            right["name"] = sorted(name for name, _ in read) == sorted(name for name, _ in self.calls)
            right["arguments"] = right["name"] and _all_match(read, self.calls)
        else:
            right["no_false_call"] = not calls
        if calls:
            right["valid_json"] = all(isinstance(arguments, dict) for _, arguments in read)
        has_text = not self.texts or any(one.casefold() in text.casefold() for one in self.texts)
        right["right"] = right["arguments"] if self.calls else not calls and has_text
        return {"right": right, "calls": read, "text": text}


def _read(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _all_match(found: Sequence[Call], wanted: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """Whether each call is one of those that are wanted, in any order."""
    left = list(wanted)
    for name, arguments in found:
        match = next((one for one in left if one[0] == name and _matches(arguments, one[1])), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _matches(arguments: Any, wanted: Mapping[str, Any]) -> bool:
    if not isinstance(arguments, dict) or not arguments.keys() <= wanted.keys():
        return False
    return all(
        values is None or any(_same(arguments.get(name), value) for value in values)
        for name, values in wanted.items()
    )


def _same(found: Any, wanted: Any) -> bool:
    """Whether two values are equal; case and white space around a text do not matter."""
    if isinstance(found, str) and isinstance(wanted, str):
        return found.strip().casefold() == wanted.strip().casefold()
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_same(found[key], wanted[key]) for key in found)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    is_bool = isinstance(found, bool) or isinstance(wanted, bool)
    return bool(found == wanted) and (not is_bool or type(found) is type(wanted))


def read_conversations(choice: str) -> list[Conversation]:
    """The conversations where calls are free ("auto"), or those that need one ("required")."""
    data = json.loads(_CASES.read_text("utf-8"))
    tools = {tool["name"]: {"type": "function", "function": tool} for tool in data["tools"]}
    return [
        Conversation(
            f"{one['group']}: {one['id']}",
            one["messages"],
            [tools[name] for name in one["tools"]],
            [(call["name"], call["arguments"]) for call in one["calls"]],
            one.get("answer", ()),
            choice,
        )
        for one in data["cases"]
        if choice == "auto" or one["calls"]
    ]
