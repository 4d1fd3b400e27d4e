"""A conversation that can be saved and continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.cli.output import clean
from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from stretto.vision import Image

ROLES = ("system", "user", "assistant")


class Conversation:
    """Messages in turn, with at most one system message, which comes first.

    >>> conversation = Conversation("Be brief.")
    >>> conversation.add("user", "Hi")
    >>> [message["role"] for message in conversation.messages]
    ['system', 'user']
    """

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages, as a chat template takes them."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return first + self.turns

    def add(self, role: str, content: str | list[str | Image], reasoning: str = "") -> None:
        """Append a message: a text, or texts and images; an answer may have its reasoning."""
        thoughts = {"reasoning_content": reasoning} if reasoning else {}
        self.turns.append({"role": role, "content": content, **thoughts})

    def reset(self) -> None:
        """Remove all messages but the system message."""
        self.turns.clear()

    def save(self, path: Path, model: str) -> None:
        """Write it as JSON, atomically."""
        from stretto.weights.files import atomic_write

        if any(not isinstance(turn["content"], str) for turn in self.turns):
            raise InvalidRequest("a conversation with images cannot be saved; /reset begins a new one")
        document = {"model": model, "messages": self.messages}
        try:
            with atomic_write(path) as file:
                file.write(json.dumps(document, indent=2).encode("ascii") + b"\n")
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{path} cannot be written: {_why(error)}") from None

    @classmethod
    def load(cls, path: Path) -> Conversation:
        """Read a file that `save` has written."""
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{path} cannot be read as a saved chat: {_why(error)}") from None
        messages = document.get("messages") if isinstance(document, dict) else None
        if not isinstance(messages, list):
            raise InvalidRequest(f"{path} is not a saved chat: it has no list of messages")
        loaded = cls()
        for index, message in enumerate(messages):
            if not _is_message(message, first=index == 0):
                raise InvalidRequest(
                    f"{path}: message {index} must have a role (user or assistant; system only as "
                    f"the first) and a text as content, not be {clean(repr(message)[:80])}"
                )
            if message["role"] == "system":
                loaded.system = message["content"]
            else:
                loaded.add(message["role"], message["content"], message.get("reasoning_content", ""))
        return loaded


def _is_message(message: Any, first: bool) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        return False
    if not isinstance(message.get("reasoning_content", ""), str):
        return False
    return message.get("role") in (ROLES if first else ROLES[1:])


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
