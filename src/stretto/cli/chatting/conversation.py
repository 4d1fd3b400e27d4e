"""A conversation as a tree of turns: pure data, which knows neither a terminal nor a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
        return text_of(self.question)


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
        return self.messages_of(self.path)

    def messages_of(self, turns: Iterable[Turn], question: Content | None = None) -> list[dict[str, Any]]:
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


def text_of(content: Content | None) -> str:
    """The text of a message, without its images."""
    if content is None or isinstance(content, str):
        return content or ""
    return " ".join(part.strip() for part in content if isinstance(part, str)).strip()


def images_of(content: Content | None) -> list[Image]:
    """The images of a message."""
    return (
        [] if content is None or isinstance(content, str) else [p for p in content if not isinstance(p, str)]
    )
