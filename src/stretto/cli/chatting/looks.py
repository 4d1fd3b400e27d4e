"""What `/tree` and `/tokens` show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from stretto.cli.chatting.answers import Answer, Piece
from stretto.cli.conversation import Conversation, Turn
from stretto.cli.output import clean

if TYPE_CHECKING:
    from stretto.text.tokenizer import Tokenizer

SHOWN_TURN = 60  # characters
SHOWN_TOKENS = 12  # the least certain ones
SURE, LIKELY = 0.9, 0.5  # probabilities from which a token is green, or yellow; others are red


def tree_rows(conversation: Conversation) -> Iterator[tuple[str, Turn]]:
    """All turns, each with the lines that join it to its branch; a chain without branches is not indented."""
    waiting = [(turn, first, rest) for turn, first, rest in _joined(conversation.roots, "")][::-1]
    while waiting:
        turn, first, rest = waiting.pop()
        yield first, turn
        waiting += _joined(turn.children, rest)[::-1]


def _joined(turns: list[Turn], prefix: str) -> list[tuple[Turn, str, str]]:
    """Turns of one parent: the lines in front of each, and in front of what follows it."""
    if len(turns) < 2:
        return [(turn, prefix, prefix) for turn in turns]
    *upper, last = turns
    return [(turn, f"{prefix}├ ", f"{prefix}│ ") for turn in upper] + [(last, f"{prefix}└ ", f"{prefix}  ")]


def tree_text(conversation: Conversation) -> Text:
    """The tree of a conversation, a line for each turn; those that led here are bold."""
    here, text = set(conversation.path), Text()
    for joint, turn in tree_rows(conversation):
        style = "bold" if turn in here else ""
        text.append(joint, "dim").append(f"{turn.number} ", "green" if turn in here else "dim")
        text.append(_short(turn.text() or "(an image)"), style).append(" → ", "dim")
        text.append(_short(turn.answer or ""), style)
        text.append("  ← here\n" if turn is conversation.head else "\n", "green")
    text.rstrip()
    return text


def _short(text: str) -> str:
    line = clean(" ".join(text[: 8 * SHOWN_TURN].split()))
    return line if len(line) <= SHOWN_TURN else line[: SHOWN_TURN - 1] + "…"


def probability(piece: Piece) -> float:
    """The probability that the model gave a token; 1 if it was not measured."""
    return 1.0 if piece.logprob is None else math.exp(piece.logprob)


def _style(share: float) -> str:
    return "green" if share >= SURE else "yellow" if share >= LIKELY else "red"


def tokens_text(answer: Answer, tokenizer: Tokenizer) -> Text:
    """An answer whose tokens are coloured by probability, and the ones that were least certain."""
    said, text = answer.said, Text()
    for piece in said:
        text.append(_spelled(tokenizer, piece.token, keep_lines=True), _style(probability(piece)))
    text.append("\n\n")
    doubtful = sorted(range(len(said)), key=lambda index: probability(said[index]))[:SHOWN_TOKENS]
    for index in sorted(doubtful):
        text.append(f"{index + 1:>5}  ", "dim").append_text(_row(said[index], tokenizer)).append("\n")
    text.rstrip()
    return text


def _row(piece: Piece, tokenizer: Tokenizer) -> Text:
    """A token, its probability, and the alternatives in one line."""
    share = probability(piece)
    row = Text().append(f"{share:6.1%} {_quoted(tokenizer, piece.token)}", _style(share))
    others = [(token, logprob) for token, logprob in piece.top if token != piece.token]
    names = ", ".join(f"{_quoted(tokenizer, token)} {math.exp(logprob):.1%}" for token, logprob in others[:3])
    return row.append(f"  {names}", "dim") if names else row


def alternatives_text(answer: Answer, n: int, tokenizer: Tokenizer) -> Text:
    """The most probable tokens at a place of an answer, numbered."""
    piece, text = answer.said[n - 1], Text()
    for number, (token, logprob) in enumerate(piece.top, 1):
        share, mark = math.exp(logprob), "  ← chosen" if token == piece.token else ""
        text.append(f"{number:>5}  ", "dim")
        text.append(f"{share:6.1%} {_quoted(tokenizer, token)}", _style(share)).append(f"{mark}\n", "dim")
    text.rstrip()
    return text


def _spelled(tokenizer: Tokenizer, token: int | None, keep_lines: bool = False) -> str:
    text = "" if token is None else tokenizer.decode([token], special=True)
    return "\n".join(map(clean, text.split("\n"))) if keep_lines else clean(text)


def _quoted(tokenizer: Tokenizer, token: int | None) -> str:
    text = _spelled(tokenizer, token)
    return f"token {token}" if "\ufffd" in text else f"“{text}”"  # a part of a character
