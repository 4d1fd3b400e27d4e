"""A conversation as a tree of turns, and its file: pure data, which knows neither a terminal nor a model."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.cli.output import clean
from stretto.errors import InvalidRequest

if TYPE_CHECKING:
    from stretto.cli.chatting.answers import Answer
    from stretto.vision import Image

    Content = str | list[str | Image]


@dataclass(eq=False)
class Turn:
    """A question and its answer. One of them may be missing in a conversation that came from elsewhere."""

    number: int
    parent: Turn | None
    question: Content | None
    answer: str | None
    reasoning: str = ""
    record: Answer | None = None  # its tokens, while the model that made them is loaded
    children: list[Turn] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Its messages, as a chat template takes them."""
        messages: list[dict[str, Any]] = []
        if self.question is not None:
            messages.append({"role": "user", "content": self.question})
        if self.answer is not None:
            messages.append({"role": "assistant", "content": self.answer})
            if self.reasoning:
                messages[-1]["reasoning_content"] = self.reasoning
        return messages

    @property
    def path(self) -> list[Turn]:
        """The turns from the first one to this."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    def text(self) -> str:
        """What was asked, without images."""
        return join_text(self.question)


class Conversation:
    """Turns that go on from each other, one of which is the last one said; and a system message for all.

    Nothing is lost by going back: what is said next becomes a branch beside what was said before.

    >>> conversation = Conversation("Be brief.")
    >>> turn = conversation.add("Hi", "Hello!")
    >>> [message["role"] for message in conversation.messages]
    ['system', 'user', 'assistant']
    >>> conversation.undo().number, conversation.add("Hey", "Yes?").number
    (1, 2)
    >>> conversation.go(1).answer
    'Hello!'
    """

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.head: Turn | None = None  # the last turn said; the next one goes on from it
        self.turns: dict[int, Turn] = {}  # all there are by number, parents before children
        self.roots: list[Turn] = []

    @property
    def path(self) -> list[Turn]:
        """The turns that led here."""
        return [] if self.head is None else self.head.path

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages that led here, as a chat template takes them."""
        return self.make_messages(self.path)

    def make_messages(self, turns: Iterable[Turn], question: Content | None = None) -> list[dict[str, Any]]:
        """The system message, the messages of some turns, and a question that has no answer yet."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in turns:
            messages += turn.messages
        return messages if question is None else [*messages, {"role": "user", "content": question}]

    def add(
        self,
        question: Content | None,
        answer: str | None,
        reasoning: str = "",
        record: Answer | None = None,
        number: int | None = None,
    ) -> Turn:
        """Append a turn to the one that was said last, and return it."""
        number = max(self.turns, default=0) + 1 if number is None else number
        turn = Turn(number, self.head, question, answer, reasoning, record)
        (self.roots if self.head is None else self.head.children).append(turn)
        self.turns[number] = self.head = turn
        return turn

    def add_messages(self, messages: Iterable[dict[str, Any]]) -> None:
        """Append messages, each question with the answer behind it as one turn."""
        for message in messages:
            content, reasoning = message["content"], message.get("reasoning_content", "")
            if message["role"] == "system":
                self.system = content
            elif message["role"] == "user":
                self.add(content, None)
            elif self.head is not None and self.head.answer is None:
                self.head.answer, self.head.reasoning = content, reasoning
            else:
                self.add(None, content, reasoning)

    def last(self) -> Turn:
        """The turn that was said last; raises if there is none."""
        if self.head is None:
            raise InvalidRequest("nothing has been said yet")
        return self.head

    def undo(self) -> Turn:
        """Go back to before the last turn, and return that turn. It stays in the tree."""
        turn = self.last()
        self.head = turn.parent
        return turn

    def find(self, number: int) -> Turn:
        """The turn with a number."""
        if number not in self.turns:
            there = f"turns 1 to {max(self.turns)}" if self.turns else "no turns yet"
            raise InvalidRequest(f"there is no turn {number}; there are {there} (/tree shows them)")
        return self.turns[number]

    def go(self, number: int) -> Turn:
        """Go on from a turn."""
        self.head = self.find(number)
        return self.head

    def rebase(self, turns: Iterable[Turn]) -> None:
        """Start anew with copies of some turns, which become a branch of their own from the start."""
        self.head = None
        for turn in list(turns):
            self.add(turn.question, turn.answer, turn.reasoning)

    def reset(self) -> None:
        """Remove all turns; the system message stays."""
        self.head = None
        self.turns.clear()
        self.roots.clear()

    def forget_records(self) -> None:
        """Drop the tokens of all answers: another model has others."""
        for turn in self.turns.values():
            turn.record = None


def join_text(content: Content | None) -> str:
    """The text of a message, without its images."""
    if content is None or isinstance(content, str):
        return content or ""
    return " ".join(part.strip() for part in content if isinstance(part, str)).strip()


def list_images(content: Content | None) -> list[Image]:
    """The images of a message."""
    return (
        [] if content is None or isinstance(content, str) else [p for p in content if not isinstance(p, str)]
    )


# Chats in files: JSON with the messages, the whole tree where it has branches, and images inside.


ROLES = ("system", "user", "assistant")
MAX_BYTES = 256 << 20


def save_chat(conversation: Conversation, path: Path, model: str) -> None:
    """Write a conversation as JSON, atomically.

    `messages` are those that led to the last turn. A tree with branches has them all in `turns`.
    """
    from stretto.weights.files import atomic_write

    messages = [_saved_message(message) for message in conversation.messages]
    document: dict[str, Any] = {"model": model, "messages": messages}
    if len(conversation.turns) > len(conversation.path):
        document["current"] = None if conversation.head is None else conversation.head.number
        document["turns"] = [_saved_turn(turn) for turn in conversation.turns.values()]
    try:
        with atomic_write(path) as file:
            file.write(json.dumps(document, indent=2).encode("ascii") + b"\n")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} cannot be written: {_why(error)}") from None


def _saved_turn(turn: Turn) -> dict[str, Any]:
    messages = [_saved_message(message) for message in turn.messages]
    return {"number": turn.number, "parent": turn.parent and turn.parent.number, "messages": messages}


def _saved_message(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    return message if isinstance(content, str) else {**message, "content": [_saved_part(p) for p in content]}


def _saved_part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    from PIL import Image as Pillow

    file = io.BytesIO()
    Pillow.fromarray(part.pixels).save(file, "png")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
    return {"type": "image_url", "image_url": {"url": url}}


def load_chat(path: Path) -> Conversation:
    """Read a file that `save_chat` has written, or any with a list of messages."""
    document = _read(path)
    messages = document.get("messages")
    if not isinstance(messages, list):
        raise InvalidRequest(f"{path} is not a saved chat: it has no list of messages")
    loaded = Conversation()
    read = [_message(path, message, f"message {i}", i == 0) for i, message in enumerate(messages)]
    if "turns" not in document:
        loaded.add_messages(read)
        return loaded
    loaded.add_messages([message for message in read if message["role"] == "system"])
    if not isinstance(document["turns"], list):
        raise InvalidRequest(f"{path}: turns must be a list")
    for turn in document["turns"]:
        _add_turn(path, loaded, turn)
    current = document.get("current")
    if current is not None and not _is_number(current, loaded):
        raise InvalidRequest(f"{path}: current must be the number of a turn or null")
    loaded.head = None if current is None else loaded.turns[current]
    return loaded


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} cannot be read as a saved chat: {_why(error)}") from None
    return document if isinstance(document, dict) else {}


def _add_turn(path: Path, loaded: Conversation, turn: Any) -> None:
    """Add a turn that was saved; its parent stands before it."""
    if not isinstance(turn, dict) or not isinstance(turn.get("messages"), list):
        raise InvalidRequest(f"{path}: a turn must have a number, a parent and messages")
    number, parent = turn.get("number"), turn.get("parent")
    is_new = isinstance(number, int) and 0 < number < 1 << 31 and number not in loaded.turns
    if not is_new or not (parent is None or _is_number(parent, loaded)):
        raise InvalidRequest(
            f"{path}: a turn must have a number of its own and the number of an earlier turn as its parent, "
            f"not {clean(repr((number, parent))[:80])}"
        )
    messages = [_message(path, message, f"turn {number}", False) for message in turn["messages"]]
    roles = [message["role"] for message in messages]
    if roles not in (["user"], ["assistant"], ["user", "assistant"]):
        raise InvalidRequest(f"{path}: turn {number} must be a question, an answer, or both")
    question = messages[0]["content"] if roles[0] == "user" else None
    last = messages[-1] if roles[-1] == "assistant" else {}
    loaded.head = None if parent is None else loaded.turns[parent]
    loaded.add(question, last.get("content"), last.get("reasoning_content", ""), number=number)


def _is_number(number: Any, loaded: Conversation) -> bool:
    return isinstance(number, int) and number in loaded.turns


def _message(path: Path, message: Any, where: str, first: bool) -> dict[str, Any]:
    roles = ROLES if first else ROLES[1:]
    if isinstance(message, dict) and message.get("role") in roles:
        content = _content(message.get("content"), message["role"])
        reasoning = message.get("reasoning_content", "")
        if content is not None and isinstance(reasoning, str):
            return {"role": message["role"], "content": content, "reasoning_content": reasoning}
    raise InvalidRequest(
        f"{path}: {where} must have a role (user or assistant; system only as the first) and a text as "
        f"content, not be {clean(repr(message)[:80])}"
    )


def _content(content: Any, role: str) -> Content | None:
    """The content of a message; None if it is neither a text nor, of a user, texts and images."""
    if isinstance(content, str):
        return content
    if role != "user" or not isinstance(content, list) or not content:
        return None
    parts = [_part(part) for part in content]
    return None if None in parts else [part for part in parts if part is not None]


def _part(part: Any) -> str | Image | None:
    from stretto.vision import Image

    if not isinstance(part, dict):
        return None
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    holder = part.get("image_url")
    url = holder.get("url") if part.get("type") == "image_url" and isinstance(holder, dict) else None
    # Only images that the file holds itself: a chat of somebody else's must not open files here.
    return Image.open(url) if isinstance(url, str) and url.startswith("data:") else None


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
