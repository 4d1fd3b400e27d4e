"""The commands of a chat, a table of functions. The help and docs/reference/terminal.md are made from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from stretto.cli import config_file
from stretto.cli.chatting.answers import Answer, Piece
from stretto.cli.chatting.conversation import Conversation, Turn, list_images, load_chat, save_chat
from stretto.cli.chatting.screen import note, pairs, show
from stretto.cli.chatting.session import Chat, unquote
from stretto.cli.output import clean
from stretto.errors import InvalidRequest
from stretto.options.generating import BY_NAME
from stretto.weights import hub

if TYPE_CHECKING:
    from stretto.text.tokenizer import Tokenizer


# What `/tree` and `/tokens` show.

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


# A context that is full: what can be done about it, and doing it.

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


Run = Callable[[Chat, str], None]


class Leave(Exception):
    """Ends the chat."""


@dataclass(frozen=True)
class Command:
    """A command: its name, what it takes, what it does."""

    name: str
    takes: str  # "" for nothing; in brackets what may be left out
    help: str
    run: Run

    @property
    def usage(self) -> str:
        """How it is typed."""
        return f"/{self.name} {self.takes}".rstrip()


COMMANDS: dict[str, Command] = {}
ALIASES = {"quit": "exit", "clear": "reset", "summarize": "summarise"}
KEYS = {
    "Tab": "complete a command, a model or a path",
    "Alt-Enter": "begin a new line; so does a \\ at the end of one; a pasted text is one message",
    "Up, Down": "earlier messages, also of earlier chats",
    "Ctrl-C": "stop the answer; its text so far stays. At the prompt: drop the line; twice: end the chat",
    "Ctrl-D": "end the chat",
    "//TEXT": "say something that begins with a /",
    "FILE.png": "in a line: show that image (a model with --vision)",
}


def command(name: str, takes: str, help_text: str) -> Callable[[Run], Run]:
    """Enter a function into the table."""

    def enter(run: Run) -> Run:
        COMMANDS[name] = Command(name, takes, help_text, run)
        return run

    return enter


def run_command(chat: Chat, name: str, argument: str) -> None:
    """Carry out a command; `Leave` if it ends the chat."""
    known = COMMANDS.get(ALIASES.get(name, name))
    if known is None:
        raise InvalidRequest(
            f"there is no command /{name}; /help lists them, and // begins a text that begins with a /"
        )
    argument = argument.strip()
    if argument and not known.takes:
        raise InvalidRequest(f"/{name} stands alone; // begins a text that begins with a /")
    if not argument and known.takes and not known.takes.startswith("["):
        raise InvalidRequest(f"/{name} needs {NEEDS.get(known.takes, known.takes)}")
    known.run(chat, argument)


NEEDS = {
    "FILE": "the name of a file",
    "FILE [--state]": "the name of a file",
    "N": "the number of a turn (/tree)",
}


# -- turns --


@command("undo", "", "take the last turn back; it stays in the /tree")
def _undo(chat: Chat, argument: str) -> None:
    turn = chat.conversation.undo()
    note(f"turn {turn.number} is undone; /fork {turn.number} goes back to it")


@command("retry", "", "answer the last message again, as another branch")
def _retry(chat: Chat, argument: str) -> None:
    turn = chat.conversation.last()
    if turn.question is None:
        raise InvalidRequest(f"turn {turn.number} has no message that could be answered again")
    chat.conversation.head = turn.parent
    try:
        chat.ask(turn.question)
    except BaseException:
        chat.conversation.head, chat.draft = turn, ""
        raise


@command("edit", "[N]", "change the last message, or that of turn N, and send it as another branch")
def _edit(chat: Chat, argument: str) -> None:
    conversation = chat.conversation
    turn = conversation.find(_number(argument, "edit")) if argument else conversation.last()
    conversation.head = turn.parent
    chat.draft, chat.images = turn.text(), list_images(turn.question)
    note(f"turn {turn.number}: change the message and send it; /fork {turn.number} goes back to it")


@command("fork", "N", "go back to turn N and branch there: its tokens are cached, and nothing is lost")
def _fork(chat: Chat, argument: str) -> None:
    turn = chat.conversation.go(_number(argument, "fork"))
    note(f"at turn {turn.number}, {chat.n_used:,} tokens: {clean(turn.text()[:80])}")


@command("tree", "", "show all turns and branches, with their numbers")
def _tree(chat: Chat, argument: str) -> None:
    if not chat.conversation.turns:
        raise InvalidRequest("nothing has been said yet")
    show(tree_text(chat.conversation))


@command("tokens", "[N [K]]", "the last answer's probabilities; those at token N; go on with number K there")
def _tokens(chat: Chat, argument: str) -> None:
    turn = chat.conversation.last()
    if turn.record is None or not turn.record.tokens:
        raise InvalidRequest(f"the tokens of turn {turn.number} are not known; /retry makes new ones")
    place, _, choice = argument.partition(" ")
    tokenizer = chat.llm.tokenizer
    if not place:
        show(tokens_text(turn.record, tokenizer))
        note("/tokens N shows what else token N could have been, /tokens N K goes on with number K of these")
        return
    n = _within(place, len(turn.record.said), "a token")
    top = turn.record.said[n - 1].top
    if not choice:
        show(alternatives_text(turn.record, n, tokenizer))
        return
    chat.choose(turn, n - 1, top[_within(choice.strip(), len(top), "an alternative") - 1][0])


# -- the conversation --


@command("system", "[TEXT]", "set the system message, with - remove it; alone: show it")
def _system(chat: Chat, argument: str) -> None:
    conversation = chat.conversation
    if argument:
        conversation.system = None if argument == "-" else argument
    note(f"system message: {clean(conversation.system or 'none of yours')}")


SAVE = "--save "


@command(
    "set",
    "[[--save] NAME [VALUE]]",
    "set temperature, system … for this chat, with - back to the default; --save: for later ones too; alone: "
    "show them",
)
def _set(chat: Chat, argument: str) -> None:
    saves = argument.startswith(SAVE)
    name, _, value = argument.removeprefix(SAVE).strip().partition(" ")
    value = value.strip()
    if name in ("", "--save"):
        pairs([(one, _setting(chat, one)) for one in SETTABLE])
        return
    name = name.replace("-", "_")
    if name not in SETTABLE:
        raise InvalidRequest(f"/set knows no {clean(name)!r:.40}; it sets {', '.join(SETTABLE)}")
    if value:
        if name == "model" and value == "-":
            raise InvalidRequest("a chat has a model; /set model NAME takes another one")
        if saves and name not in SAVED:
            raise InvalidRequest(f"{name} is for one chat; it cannot be saved")
        if saves and value == "-":
            config_file.unset(SAVED[name])
        _put(chat, name, None if value == "-" else value)
        if saves and value != "-":
            config_file.set_value(SAVED[name], value)
    elif saves:
        raise InvalidRequest(f"/set --save {name} needs a value, or - for none")
    place = f", and in {config_file.path()}" if saves else ""
    note(clean(f"{name}: {_setting(chat, name)}{place}"))


SAVED = {  # keys of the configuration file
    "system": "system",
    "model": "model",
    **{name: f"sampling.{name}" for name in config_file.NUMBERS},
    "max_tokens": "max_tokens",
}
SETTABLE = (*SAVED, "seed")


def _setting(chat: Chat, name: str) -> str:
    """The value of a setting, as it is shown."""
    if name == "system":
        return chat.conversation.system or "none"
    if name == "model":
        return chat.model
    value = chat.settings.get(name)
    return str(value) if value is not None else "the default"


def _put(chat: Chat, name: str, text: str | None) -> None:
    """Set a value for this chat; None: back to the default."""
    known, chosen = hub.defaults(chat.model), config_file.read()
    if name == "system":
        usual = known.system if chosen.system is None else chosen.system
        chat.conversation.system = (usual if text is None else text) or None
    elif name == "model":
        chat.switch(chosen.resolve(str(text)))
    elif text is None:
        settings = {**known.sampling, **chosen.sampling, "max_tokens": chosen.max_tokens}
        chat.settings.pop(name, None)
        chat.settings.update({name: settings[name]} if name in settings else {})
    else:
        value = config_file.number(text)
        BY_NAME[name].check(value)
        chat.settings[name] = value


@command("image", "FILE", "show an image with what you say next")
def _image(chat: Chat, argument: str) -> None:
    from stretto.vision import Image

    if chat.llm.vision is None:
        raise InvalidRequest("this model sees no images; start the chat with --vision and an mmproj file")
    image = Image.open(Path(unquote(argument)).expanduser())
    chat.images.append(image)
    note(f"{image.width} × {image.height} pixels; now say something about it")


@command("reset", "", "forget the conversation and all its branches, keep the system message")
def _reset(chat: Chat, argument: str) -> None:
    chat.conversation.reset()
    chat.images = []
    note("a new conversation")


@command("drop", "[N]", "go on without the N oldest turns, or as many as leave half of the context free")
def _drop(chat: Chat, argument: str) -> None:
    n = drop(chat, _number(argument, "drop") if argument else None)
    note(f"without the oldest {n} turn{'' if n == 1 else 's'}: {chat.n_used:,} tokens")


@command("summarise", "", "replace the oldest turns by a summary that the model writes")
def _summarise(chat: Chat, argument: str) -> None:
    n = summarise(chat)
    note(f"a summary in place of {n} turn{'' if n == 1 else 's'}: {chat.n_used:,} tokens")


@command("save", "FILE [--state]", "write the conversation as JSON; --state: its KV cache too, as FILE.state")
def _save(chat: Chat, argument: str) -> None:
    path, state = _file(argument)
    save_chat(chat.conversation, path, chat.model)
    if state:
        with chat.llm.sequence(chat.prompt(chat.conversation.path, None)) as sequence:
            sequence.save(_state_path(path))
    note(f"saved to {clean(str(path))}")


@command(
    "load", "FILE [--state]", "go on with a saved conversation; --state: with the KV cache in FILE.state"
)
def _load(chat: Chat, argument: str) -> None:
    path, state = _file(argument)
    conversation = load_chat(path)
    if state:  # closed, its cells are a cached prefix like any other
        chat.llm.restore(_state_path(path), share=True).close()
    chat.conversation, chat.images = conversation, []
    n = len(conversation.path)
    note(f"{n} turn{'' if n == 1 else 's'}, {chat.n_used:,} tokens")


# -- the program --


@command("model", "[NAME]", "go on with another model; alone: show which one this is")
def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.switch(config_file.read().resolve(argument))
    llm = chat.llm
    note(f"{clean(chat.model)}, backend {llm.backend.name}, context {llm.context_length:,}")


@command("stats", "", "tokens and speed so far")
def _stats(chat: Chat, argument: str) -> None:
    note(chat.summary())


@command("help", "", "this list")
def _help(chat: Chat, argument: str) -> None:
    pairs([*((known.usage, known.help) for known in COMMANDS.values()), *KEYS.items()])


@command("exit", "", "end the chat, as Ctrl-D does")
def _exit(chat: Chat, argument: str) -> None:
    raise Leave


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidRequest(f"/{name} takes a number, not {clean(text[:40])!r}")
    return int(text)


def _within(text: str, most: int, what: str) -> int:
    number = _number(text, "tokens")
    if not 1 <= number <= most:
        raise InvalidRequest(f"/tokens: {what} has a number from 1 to {most}, not {number}")
    return number


def _file(argument: str) -> tuple[Path, bool]:
    name, state = argument.removesuffix(" --state"), argument.endswith(" --state")
    return Path(name.strip()).expanduser(), state


def _state_path(path: Path) -> Path:
    return path.with_name(path.name + ".state")
