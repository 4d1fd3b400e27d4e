"""The commands of a chat, a table of functions. The help and docs/reference/terminal.md are made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stretto import config
from stretto.cli.chatting import files, looks, room
from stretto.cli.chatting.notes import note, pairs, show
from stretto.cli.chatting.pictures import unquoted
from stretto.cli.chatting.session import Chat
from stretto.cli.conversation import images_of
from stretto.cli.output import clean
from stretto.errors import InvalidRequest
from stretto.options.generating import BY_NAME
from stretto.weights import hub

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
    chat.draft, chat.images = turn.text(), images_of(turn.question)
    note(f"turn {turn.number}: change the message and send it; /fork {turn.number} goes back to it")


@command("fork", "N", "go back to turn N and branch there: its tokens are cached, and nothing is lost")
def _fork(chat: Chat, argument: str) -> None:
    turn = chat.conversation.go(_number(argument, "fork"))
    note(f"at turn {turn.number}, {chat.n_used:,} tokens: {clean(turn.text()[:80])}")


@command("tree", "", "show all turns and branches, with their numbers")
def _tree(chat: Chat, argument: str) -> None:
    if not chat.conversation.turns:
        raise InvalidRequest("nothing has been said yet")
    show(looks.tree_text(chat.conversation))


@command("tokens", "[N [K]]", "the last answer's probabilities; those at token N; go on with number K there")
def _tokens(chat: Chat, argument: str) -> None:
    turn = chat.conversation.last()
    if turn.record is None or not turn.record.tokens:
        raise InvalidRequest(f"the tokens of turn {turn.number} are not known; /retry makes new ones")
    place, _, choice = argument.partition(" ")
    tokenizer = chat.llm.tokenizer
    if not place:
        show(looks.tokens_text(turn.record, tokenizer))
        note("/tokens N shows what else token N could have been, /tokens N K goes on with number K of these")
        return
    n = _within(place, len(turn.record.said), "a token")
    top = turn.record.said[n - 1].top
    if not choice:
        show(looks.alternatives_text(turn.record, n, tokenizer))
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
            config.unset(SAVED[name])
        _put(chat, name, None if value == "-" else value)
        if saves and value != "-":
            config.set_value(SAVED[name], value)
    elif saves:
        raise InvalidRequest(f"/set --save {name} needs a value, or - for none")
    place = f", and in {config.path()}" if saves else ""
    note(clean(f"{name}: {_setting(chat, name)}{place}"))


SAVED = {  # keys of the configuration file
    "system": "system",
    "model": "model",
    **{name: f"sampling.{name}" for name in config.NUMBERS},
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
    known, chosen = hub.defaults(chat.model), config.read()
    if name == "system":
        usual = known.system if chosen.system is None else chosen.system
        chat.conversation.system = (usual if text is None else text) or None
    elif name == "model":
        chat.switch(chosen.named(str(text)))
    elif text is None:
        settings = {**known.sampling, **chosen.sampling, "max_tokens": chosen.max_tokens}
        chat.settings.pop(name, None)
        chat.settings.update({name: settings[name]} if name in settings else {})
    else:
        value = config.number(text)
        BY_NAME[name].check(value)
        chat.settings[name] = value


@command("image", "FILE", "show an image with what you say next")
def _image(chat: Chat, argument: str) -> None:
    from stretto.vision import Image

    if chat.llm.vision is None:
        raise InvalidRequest("this model sees no images; start the chat with --vision and an mmproj file")
    image = Image.open(Path(unquoted(argument)).expanduser())
    chat.images.append(image)
    note(f"{image.width} × {image.height} pixels; now say something about it")


@command("reset", "", "forget the conversation and all its branches, keep the system message")
def _reset(chat: Chat, argument: str) -> None:
    chat.conversation.reset()
    chat.images = []
    note("a new conversation")


@command("drop", "[N]", "go on without the N oldest turns, or as many as leave half of the context free")
def _drop(chat: Chat, argument: str) -> None:
    n = room.drop(chat, _number(argument, "drop") if argument else None)
    note(f"without the oldest {n} turn{'' if n == 1 else 's'}: {chat.n_used:,} tokens")


@command("summarise", "", "replace the oldest turns by a summary that the model writes")
def _summarise(chat: Chat, argument: str) -> None:
    n = room.summarise(chat)
    note(f"a summary in place of {n} turn{'' if n == 1 else 's'}: {chat.n_used:,} tokens")


@command("save", "FILE [--state]", "write the conversation as JSON; --state: its KV cache too, as FILE.state")
def _save(chat: Chat, argument: str) -> None:
    path, state = _file(argument)
    files.save(chat.conversation, path, chat.model)
    if state:
        with chat.llm.sequence(chat.prompt(chat.conversation.path, None)) as sequence:
            sequence.save(_state_path(path))
    note(f"saved to {clean(str(path))}")


@command(
    "load", "FILE [--state]", "go on with a saved conversation; --state: with the KV cache in FILE.state"
)
def _load(chat: Chat, argument: str) -> None:
    path, state = _file(argument)
    conversation = files.load(path)
    if state:  # closed, its cells are a cached prefix like any other
        chat.llm.restore(_state_path(path), share=True).close()
    chat.conversation, chat.images = conversation, []
    n = len(conversation.path)
    note(f"{n} turn{'' if n == 1 else 's'}, {chat.n_used:,} tokens")


# -- the program --


@command("model", "[NAME]", "go on with another model; alone: show which one this is")
def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.switch(config.read().named(argument))
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
