"""Conversations that are kept, the last ones of `run` and `chat`, and `stretto logs`, which shows them."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto.cli import config_file
from stretto.cli.commands import Command, Group, refuse_options
from stretto.cli.generation import note, printable
from stretto.cli.output import clean, console, print_json, table
from stretto.errors import InvalidRequest

# Each is a JSON file in the store's home that only its owner can read: its messages, the model and the times.
# Images and sounds are kept as marks with their size or length. The setting `logs` turns it off; old ones
# make room for new ones.


FOLDER = "conversations"
MOST = 200  # conversations
MOST_BYTES = 64 << 20  # of all together
LARGEST_BYTES = 4 << 20  # of one; a larger one is not kept
MOST_SECONDS = 1 << 37  # of a time, in the year 6325: the system's calendar ends somewhere
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class SavedConversation:
    """A conversation; `begun` and `changed` are seconds since 1970."""

    id: str
    command: str  # that began it
    model: str
    begun: float
    changed: float
    messages: tuple[dict[str, Any], ...]

    @property
    def n_turns(self) -> int:
        """How many questions it has."""
        return sum(message["role"] == "user" for message in self.messages)

    @property
    def title(self) -> str:
        """Its first question, on one line."""
        first = next((one["content"] for one in self.messages if one["role"] == "user"), "")
        return " ".join(first.split())

    def as_data(self) -> dict[str, Any]:
        """Its fields, as they are in the file."""
        return asdict(self)


class Keeper:
    """Writes one conversation, again after each of its turns; or nothing, if that is not wanted.

    `root` is the first turn, where a conversation has several branches: another one is another conversation.
    """

    def __init__(self, command: str, goes_on: SavedConversation | None = None, root: Any = None) -> None:
        self._command = command
        self._kept, self._root = goes_on, root
        self._is_silent = False

    def keep(self, messages: Sequence[dict[str, Any]], model: str, root: Any = None) -> None:
        """Write the messages; a file that cannot be written is told of once, and stops nothing."""

        if not config_file.read().keep_logs:
            return
        if root is not self._root and self._root is not None:
            self._kept = None
        self._root = root
        now = time.time()
        id_, begun, command = new_id(now), now, self._command
        if self._kept is not None:
            id_, begun, command = self._kept.id, self._kept.begun, self._kept.command
        plain = tuple(_plain(message) for message in messages)
        self._kept = SavedConversation(id_, command, _absolute(model), begun, now, plain)
        try:
            _write(self._kept)
        except (OSError, ValueError) as error:
            if not self._is_silent:
                note(f"this conversation is not kept: {clean(str(error))} (stretto config set logs off)")
            self._is_silent = True


def new_id(now: float) -> str:
    """A name for a conversation, by the time of its beginning."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(2)}"


def folder() -> Path:
    """Where conversations are."""
    from stretto.weights.hub import Store

    return Store.default().home / FOLDER


def conversations() -> Iterator[SavedConversation]:
    """All conversations, the last one first; files that are damaged are left out."""
    for path in kept_files():
        try:
            yield _read(path)
        except (OSError, ValueError):
            continue


def last() -> SavedConversation:
    """The conversation that was written last; raises if there is none."""
    found = next(conversations(), None)
    if found is None:
        why = "" if config_file.read().keep_logs else "; they are not kept: stretto config set logs on"
        raise InvalidRequest(f"there is no conversation to go on with{why}", param="continue")
    return found


def find(name: str) -> SavedConversation:
    """A conversation by its id, or by its beginning; `last` is the last one."""
    if name == "last":
        return last()
    found = [path for path in kept_files() if path.stem.startswith(name)]
    exact = [path for path in found if path.stem == name] or found
    if len(exact) != 1 or not name:
        many = f"{len(exact)} conversations begin with" if exact else "there is no conversation"
        raise InvalidRequest(f"{many} {name!r:.80}; stretto logs lists them", param="id", value=name)
    try:
        return _read(exact[0])
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{exact[0]} cannot be read: {error}; delete it", param="id", value=name
        ) from None


def remove_all() -> int:
    """Remove all conversations: how many there were."""
    files = kept_files()
    for path in files:
        path.unlink(missing_ok=True)
    return len(files)


def kept_files() -> list[Path]:
    """The files, last changed first."""
    times: list[tuple[int, str, Path]] = []
    try:
        with os.scandir(folder()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another process removes old ones
                    if entry.name.endswith(".json") and entry.is_file(follow_symlinks=False):
                        times.append((entry.stat().st_mtime_ns, entry.name, Path(entry.path)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for *_, path in sorted(times, reverse=True)]


def _write(kept: SavedConversation) -> None:
    from stretto.weights.files import atomic_write

    data = json.dumps(kept.as_data(), ensure_ascii=True).encode("ascii") + b"\n"
    if len(data) > LARGEST_BYTES:
        raise ValueError(f"it has {len(data):,} bytes, and {LARGEST_BYTES:,} are the most")
    home = folder()
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    with atomic_write(home / f"{kept.id}.json", durable=False) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
    _make_room()


def _make_room() -> None:
    """Remove the oldest beyond what is kept."""
    nbytes = 0
    for number, path in enumerate(kept_files()):
        with suppress(FileNotFoundError):  # another process removes old ones too
            nbytes += path.stat().st_size
            if number and (number >= MOST or nbytes > MOST_BYTES):
                path.unlink()


def _read(path: Path) -> SavedConversation:
    from stretto.weights.files import read_records

    data = read_records(path, LARGEST_BYTES)
    messages = data.get("messages")
    if not isinstance(messages, list) or not all(_is_message(one) for one in messages):
        raise ValueError("its messages are no list of texts with roles")
    texts, times = ("command", "model"), ("begun", "changed")
    if not all(isinstance(data.get(name), str) for name in texts):
        raise ValueError("its command or its model is missing")
    if not all(isinstance(data.get(name), (int, float)) and 0 <= data[name] < MOST_SECONDS for name in times):
        raise ValueError("its times are missing")
    fields = {name: data[name] for name in (*texts, *times)}
    return SavedConversation(id=path.stem, messages=tuple(messages), **fields)


def _is_message(one: Any) -> bool:
    if not isinstance(one, dict) or one.get("role") not in ROLES or not isinstance(one.get("content"), str):
        return False
    return isinstance(one.get("reasoning_content", ""), str)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message as text: images and sounds become marks."""
    content = message["content"]
    if isinstance(content, str):
        return dict(message)
    parts = [part if isinstance(part, str) else _mark(part) for part in content]
    return {**message, "content": "\n".join(part.strip() for part in parts if part.strip())}


def _mark(part: Any) -> str:
    """What is kept of a `stretto.Image` or a `stretto.Audio`."""
    if hasattr(part, "seconds"):
        return f"[sound of {part.seconds:.1f} s]"
    return f"[image {part.width} × {part.height}]"


def _absolute(model: str) -> str:
    """A model by its name, or by a path that holds in every folder."""
    is_path = not model.startswith("hf:") and ("/" in model or model.endswith(".gguf"))
    path = Path(model).expanduser() if is_path else None
    return str(path.absolute()) if path is not None and path.exists() else model


logs = typer.Typer(cls=Group, invoke_without_command=True)


@logs.callback()
def listing(
    context: typer.Context,
    most: Annotated[int, typer.Option("--number", "-n", min=1, help="How many, the last ones first.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of objects.")] = False,
) -> None:
    """List the last conversations of run and chat; `stretto run -c` goes on with the last one.

    They are kept on this machine only, and not at all after: stretto config set logs off
    """
    if context.invoked_subcommand is not None:
        refuse_options(context)
        return
    found = list(islice(conversations(), most))
    if as_json:
        print_json([one.as_data() for one in found])
        return
    if not found:
        note("there are no conversations yet")
        return
    shown = table("id", "when", "model", "turns", "first message", right=("turns",))
    shown.columns[0].no_wrap = shown.columns[-1].no_wrap = True
    shown.columns[-1].overflow = "ellipsis"
    for one in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.changed))
        name = Path(one.model).name if one.model.endswith(".gguf") else one.model
        shown.add_row(*map(clean, (one.id, when, name, str(one.n_turns), one.title)))
    console().print(shown)


@logs.command(cls=Command)
def show(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="As `stretto logs` lists it, or its beginning; last.")
    ] = "last",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object.")] = False,
) -> None:
    """Show a conversation."""
    one = find(name)
    if as_json:
        print_json(one.as_data())
        return
    note(f"{one.id}, {clean(one.model)}")
    for message in one.messages:
        text = printable(message["content"])
        mark = {"user": "> ", "system": "system: "}.get(message["role"], "")
        print(mark + text.replace("\n", "\n> ") if mark == "> " else mark + text)
        print()


@logs.command(cls=Command)
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove all conversations from this machine."""
    asks = not yes and sys.stdin is not None and sys.stdin.isatty()
    if asks and not typer.confirm("Remove all conversations?", err=True):
        return
    n = remove_all()
    typer.echo(f"removed {n} conversation{'' if n == 1 else 's'}")
