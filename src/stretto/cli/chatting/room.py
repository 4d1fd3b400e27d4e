"""A context that is full: what can be done about it, and doing it."""

from __future__ import annotations

from stretto.cli.chatting.session import Chat
from stretto.cli.conversation import Turn
from stretto.errors import InvalidRequest

KEPT_SHARE = 0.5  # of the context, after /drop and /summarise
SUMMARY_SHARE = 0.25  # of the context, for the summary
REQUEST = (
    "Summarise our conversation so far in one short text. Keep all facts, names and numbers that matter."
)


def offers(chat: Chat) -> list[tuple[str, str]]:
    """What makes room in the context of a chat: commands, and what each does."""
    found = []
    if chat.conversation.path and not _is_too_long(chat):
        found += [
            ("/drop", "drop the oldest turns (they stay in the /tree)"),
            ("/summarise", "replace the oldest turns by a summary"),
            ("/undo", "take the last turn back"),
            ("/reset", "begin a new conversation"),
        ]
    size, most = chat.llm.context_length, chat.llm.spec.context_length
    if size < most:
        cells = min(most, 2 * size)
        found.append((f"stretto chat --cells {cells}", f"a larger context; this model takes {most:,} tokens"))
    return found


def explain(chat: Chat, n_tokens: int) -> str:
    """Why there is no room for a prompt of some tokens."""
    limit = chat.llm.context_length
    if _is_too_long(chat):
        n_tokens = len(chat.prompt([], chat.waiting))
        return f"this message alone has {n_tokens:,} tokens, the context {limit:,}; send a shorter one"
    return f"the conversation has {n_tokens:,} tokens, the context {limit:,}"


def _is_too_long(chat: Chat) -> bool:
    """Whether the message that waits would not fit into an empty context either."""
    return bool(chat.waiting) and len(chat.prompt([], chat.waiting)) >= chat.llm.context_length


def drop(chat: Chat, n: int | None = None) -> int:
    """Go on without the oldest `n` turns, or with so many that half of the context is free."""
    path = chat.conversation.last().path
    if n is None:
        limit = chat.llm.context_length * KEPT_SHARE
        n = next((n for n in range(1, len(path)) if _size(chat, path[n:]) <= limit), len(path))
    if not 1 <= n <= len(path):
        raise InvalidRequest(f"/drop takes a number of turns from 1 to {len(path)}, not {n}")
    chat.conversation.rebase(path[n:])
    return n


def summarise(chat: Chat) -> int:
    """Let the model sum up the oldest turns, and go on with the summary in their place."""
    path, size = chat.conversation.last().path, chat.llm.context_length
    room = int(size * SUMMARY_SHARE)
    # Enough of them that half is free again, but no more than can be read with room for the summary.
    enough = next(
        (n for n in range(1, len(path)) if _size(chat, path[n:]) <= size * KEPT_SHARE - room), len(path)
    )
    n = next((n for n in range(enough, 0, -1) if len(chat.prompt(path[:n], REQUEST)) <= size - room), 0)
    if n == 0:
        raise InvalidRequest("there is nothing that can be summed up; /drop or /undo make room")
    answer = chat.generate(chat.prompt(path[:n], REQUEST), max_tokens=room)
    if answer.ending == "cancelled" or not answer.text.strip():
        raise InvalidRequest("there is no whole summary, so nothing was changed")
    chat.conversation.rebase([Turn(0, None, REQUEST, answer.text, answer.reasoning), *path[n:]])
    return n


def _size(chat: Chat, turns: list[Turn]) -> int:
    return len(chat.prompt(turns, None))
